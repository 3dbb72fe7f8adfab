"""A checkpoint that several processes write in turns, record by record, each turn being one atomic change.

A turn needs no lock that its holder could die with. Whoever wants to write claims the lease of the partition over the
head of whoever has it, loads the checkpoint, and saves it changed; if somebody else has claimed the lease in between,
the save is refused, and the turn is taken again. Who is alone claims once and then only saves. The lease is held for
longer by nobody but a member that owns the partition as a whole; that one is left in peace while it is alive.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from penstock.abc import CheckpointStore, Clock, Feature
from penstock.consuming.claims import ClaimBook, ClaimWatch
from penstock.consuming.membership import Watch
from penstock.consuming.runs import RunSet
from penstock.errors import FencedError, GroupError, StoreUnavailableError
from penstock.model import Change, Checkpoint, CheckpointKey, Happening, Lease, Pointer, Status

SHARING: Final = "share/"
"""How the names of owners begin that claim a lease for one turn only."""
_TURNS: Final = 60
"""How often a turn is tried before the store counts as too busy. The pauses add up to several seconds."""
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.1
_OWNER_TTL_S: Final = 60.0
"""How long a member that owns the partition as a whole must be silent before it is written over."""
_HISTORY_EVERY_S: Final = 1.0
_CLEAN_EVERY_S: Final = 60.0
_KEEP_HISTORY_MS: Final = 7 * 24 * 3600 * 1000

Answer = TypeVar("Answer")


class OwnedError(GroupError):
    """A member of the group owns the partition as a whole, so it cannot be shared."""


class _Turn(Generic[Answer]):
    """A change that waits to be made, together with others, and what came of it."""

    __slots__ = ("answer", "edit", "error", "is_done")

    def __init__(self, edit: Callable[[ClaimBook], Answer]) -> None:
        self.edit = edit
        self.answer: Answer
        self.error: Exception | None = None
        self.is_done = False

    def result(self) -> Answer:
        if self.error is not None:
            raise self.error
        return self.answer


class Ledger:
    """The claims on one partition, for one member. Any thread may use it; those that wait are served by one save."""

    def __init__(
        self,
        store: CheckpointStore,
        key: CheckpointKey,
        owner: str,
        clock: Clock,
        chance: random.Random,
        first: Callable[[], Pointer],
    ) -> None:
        self.key = key
        self.owner = SHARING + owner
        self.watch = ClaimWatch()
        self._store = store
        self._clock = clock
        self._chance = chance
        self._first = first
        self._has_history = Feature.HISTORY in store.features
        self._lock = threading.Lock()
        self._queue_lock = threading.Lock()
        self._queue: list[_Turn[object]] = []
        self._lease: Lease | None = None
        self._checkpoint: Checkpoint | None = None
        self._owners = Watch(_OWNER_TTL_S)
        self._plain = RunSet()
        self._plain_begun_ms = 0
        self._lines: list[Happening] = []
        self._history_due_s = self._clean_due_s = clock.monotonic_s()

    def begin(self) -> ClaimBook:
        """The claims as they are now, with the place where the group begins stored, if it begins only now."""
        book = self.look()
        return self.change(ClaimBook.begin) if self._store.load(self.key) is None else book

    def look(self) -> ClaimBook:
        """The claims as they are now."""
        with self._lock:
            began_s = self._clock.monotonic_s()
            checkpoint = self._store.load(self.key)
            if checkpoint != self._checkpoint:
                self._lease = None
                self._checkpoint = checkpoint
            return self._book(began_s)

    def seen(self) -> ClaimBook:
        """The claims as they were last seen. What is missing may be there by now, and what is there may be gone."""
        with self._lock:
            return ClaimBook(self._checkpoint) if self._checkpoint else self._book(self._clock.monotonic_s())

    def change(self, edit: Callable[[ClaimBook], Answer]) -> Answer:
        """Change the claims as they are now. `edit` may be called more than once, each time with how they are then.

        What it raises is raised, and then it must have changed nothing. StoreUnavailableError: it may have been done
        or not. OwnedError: not now.
        """
        turn = _Turn(edit)
        with self._queue_lock:
            self._queue.append(turn)  # type: ignore[arg-type]
        with self._lock:
            if not turn.is_done:
                with self._queue_lock:
                    turns, self._queue = self._queue, []
                self._take(turns)
        return turn.result()

    def tell(self, first: Pointer, end: Pointer, status: Status, attempt: int, error: str, begun_ms: int) -> None:
        """A line for the history, saved with some later change. For `edit`: it counts when the change is made."""
        if not self._has_history:
            return
        if status is Status.SUCCEEDED and attempt == 1:
            self._plain_begun_ms = min(begun_ms, self._plain_begun_ms) if len(self._plain) else begun_ms
            self._plain.add(first, end)
            return
        now_ms = self._clock.wall_ms()
        self._lines.append(Happening(first, end, status, attempt, error, begun_ms, now_ms, self.owner, ""))

    def close(self) -> None:
        """Save what is left of the history, and let go of the lease."""
        with self._lock:
            self._history_due_s = float("-inf")
            try:
                if self._lease is not None and self._checkpoint is not None and (self._lines or len(self._plain)):
                    self._save(self._lease, self._checkpoint)
            except FencedError:
                self._lease = None
            if self._lease is not None:
                self._store.release(self._lease)
                self._lease = None

    def _take(self, turns: list[_Turn[object]]) -> None:
        """Make the changes that wait, with one save."""
        try:
            for tries in range(_TURNS):
                if tries > 1:  # somebody else is at it in this very moment
                    pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(tries, 10))
                    self._clock.sleep(pause_s * self._chance.random())
                if self._try(turns):
                    return
            raise StoreUnavailableError(
                f"{self.key} is written by so many members at once that {self.owner} had no turn: take more records at "
                "a time, or use more partitions"
            )
        except Exception as error:
            if not isinstance(error, OwnedError):
                self._lease = self._checkpoint = None
            for turn in turns:
                turn.error = error
        finally:
            for turn in turns:
                turn.is_done = True

    def _try(self, turns: list[_Turn[object]]) -> bool:
        began_s = self._clock.monotonic_s()
        lease = self._lease
        if lease is None:
            lease = self._claim()
            if lease is None:
                return False
            self._checkpoint = self._store.load(self.key)
            self._lease = lease
        told = (RunSet(self._plain), self._plain_begun_ms, list(self._lines))
        book = self._book(began_s)
        for turn in turns:
            try:
                turn.answer, turn.error = turn.edit(book), None
            except Exception as error:
                turn.error = error
        if not book.changed:
            return True
        checkpoint = book.checkpoint(self._clock.wall_ms())
        try:
            self._save(lease, checkpoint)
        except FencedError:
            self._lease = self._checkpoint = None
            self._plain, self._plain_begun_ms, self._lines = told
            return False
        except BaseException:
            self._plain, self._plain_begun_ms, self._lines = told
            raise
        self._checkpoint = checkpoint
        self.watch.saw(checkpoint.claims, began_s, self._clock.monotonic_s())
        return True

    def _claim(self) -> Lease | None:
        began_s = self._clock.monotonic_s()
        leases = self._store.leases(self.key.group)
        dead = self._owners.saw(leases, began_s, self._clock.monotonic_s())
        seen = next((lease for lease in leases if lease.name == self.key.lease_name), None)
        if seen is not None and seen.owner and not seen.owner.startswith(SHARING) and seen.owner not in dead:
            raise OwnedError(
                f"{self.key} is owned as a whole by {seen.owner}: a group either shares its partitions record by "
                "record or gives them out; use another group for the other way"
            )
        return self._store.claim(self.key.group, self.key.lease_name, self.owner, seen)

    def _book(self, began_s: float) -> ClaimBook:
        """The checkpoint that is in hand, to be looked at and changed. It was loaded after `began_s`."""
        if self._checkpoint is None:
            start = self._first()
            self._checkpoint = Checkpoint(start, start)
        self.watch.saw(self._checkpoint.claims, began_s, self._clock.monotonic_s())
        return ClaimBook(self._checkpoint)

    def _save(self, lease: Lease, checkpoint: Checkpoint) -> None:
        now_s = self._clock.monotonic_s()
        forget_ms = None
        if now_s >= self._history_due_s:
            self._history_due_s = now_s + _HISTORY_EVERY_S
            now_ms = self._clock.wall_ms()
            for first, end in self._plain:
                line = Happening(first, end, Status.SUCCEEDED, 1, "", self._plain_begun_ms, now_ms, self.owner, "")
                self._lines.append(line)
            self._plain = RunSet()
            if self._has_history and now_s >= self._clean_due_s:
                self._clean_due_s = now_s + _CLEAN_EVERY_S
                forget_ms = now_ms - _KEEP_HISTORY_MS
        change = Change(checkpoint, tuple(self._lines), forget_happenings_before_ms=forget_ms)
        self._store.save(lease, self.key, change)
        self._lines = []
