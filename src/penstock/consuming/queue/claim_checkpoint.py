"""A checkpoint that several processes change in turn, record by record, each turn being one atomic change.

A turn needs no lock that its holder could die with. A member that wants to write takes the lease of the partition from
its current owner, loads the checkpoint, and saves it changed. If another member has claimed the lease in between, the
save is refused and the turn is repeated. A member that is alone claims once and then only saves. Only a member that
owns the whole partition holds the lease for longer, and its lease is respected while it is alive.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from penstock.abc import CheckpointStore, Clock, Feature
from penstock.consuming.lease_groups.membership import Watch
from penstock.consuming.loop.finished_runs import RunSet
from penstock.consuming.queue.claims import ClaimTable, ClaimWatch
from penstock.errors import FencedError, GroupError, StoreUnavailableError
from penstock.model import Change, Checkpoint, CheckpointKey, HistoryEntry, Lease, Pointer, Status

SHARING: Final = "share/"
"""Prefix of the owner in leases that are claimed for one turn only."""
_TURNS: Final = 60
"""How often a turn is tried before the store counts as too busy. The pauses add up to several seconds."""
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.1
_LONGEST_TURN_S: Final = 4.0
_SLOW_TURN_S: Final = 0.05
"""Where a turn takes longer, as in Kafka, members wait for the turns of others instead of ruining them."""
_OWNER_TTL_S: Final = 60.0
"""How long an owner of the whole partition must be silent before its lease is taken."""
_HISTORY_EVERY_S: Final = 1.0
_CLEAN_EVERY_S: Final = 60.0
_KEEP_HISTORY_MS: Final = 7 * 24 * 3600 * 1000

Answer = TypeVar("Answer")


class OwnedError(GroupError):
    """A member of the group owns the whole partition, so it cannot be shared."""


class _Turn(Generic[Answer]):
    """A change that waits to be made, together with others, and its result."""

    __slots__ = ("answer", "edit", "error", "is_done")

    def __init__(self, edit: Callable[[ClaimTable], Answer]) -> None:
        self.edit = edit
        self.answer: Answer
        self.error: Exception | None = None
        self.is_done = False

    def result(self) -> Answer:
        if self.error is not None:
            raise self.error
        return self.answer


class ClaimCheckpoint:
    """The claims on one partition, for one member. Thread-safe; changes that wait are saved together."""

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
        self._random = chance
        self._first = first
        self._has_history = Feature.HISTORY in store.features
        self._lock = threading.Lock()
        self._queue_lock = threading.Lock()
        self._queue: list[_Turn[object]] = []
        self._lease: Lease | None = None
        self._checkpoint: Checkpoint | None = None
        self._owners = Watch(_OWNER_TTL_S)
        self._turn_s = 0.0
        """How long the last turn took that began with a claim."""
        self._waited_for: Lease | None = None
        self._plain = RunSet()
        self._plain_begun_ms = 0
        self._history: list[HistoryEntry] = []
        self._history_due_s = self._clean_due_s = clock.monotonic_s()

    def begin(self) -> ClaimTable:
        """The current claims, after saving the start pointer if the group has no checkpoint yet."""
        table = self.look()
        return self.change(ClaimTable.begin) if self._store.load(self.key) is None else table

    def look(self) -> ClaimTable:
        """The current claims."""
        with self._lock:
            began_s = self._clock.monotonic_s()
            checkpoint = self._store.load(self.key)
            if checkpoint != self._checkpoint:
                self._lease = None
                self._checkpoint = checkpoint
            return self._table(began_s)

    def seen(self) -> ClaimTable:
        """The claims as last seen, which may be out of date."""
        with self._lock:
            return ClaimTable(self._checkpoint) if self._checkpoint else self._table(self._clock.monotonic_s())

    def change(self, edit: Callable[[ClaimTable], Answer]) -> Answer:
        """Apply `edit` to the current claims. It may be called more than once, each time with newer claims.

        If it raises, the error is passed on, and it must have changed nothing. StoreUnavailableError: the change may or
        may not be made. OwnedError: try later.
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

    def add_history(
        self, first: Pointer, end: Pointer, status: Status, attempt: int, error: str, begun_ms: int
    ) -> None:
        """Add a history entry, saved with a later change. For `edit`: it counts when the change is made."""
        if not self._has_history:
            return
        if status is Status.SUCCEEDED and attempt == 1:
            self._plain_begun_ms = min(begun_ms, self._plain_begun_ms) if len(self._plain) else begun_ms
            self._plain.add(first, end)
            return
        now_ms = self._clock.wall_ms()
        self._history.append(HistoryEntry(first, end, status, attempt, error, begun_ms, now_ms, self.owner, ""))

    def close(self) -> None:
        """Save the rest of the history and release the lease."""
        with self._lock:
            self._history_due_s = float("-inf")
            try:
                if self._lease is not None and self._checkpoint is not None and (self._history or len(self._plain)):
                    self._save(self._lease, self._checkpoint)
            except FencedError:
                self._lease = None
            if self._lease is not None:
                self._store.release(self._lease)
                self._lease = None

    def _take(self, turns: list[_Turn[object]]) -> None:
        """Make the waiting changes with one save."""
        try:
            took_s = 0.0
            for tries in range(_TURNS):
                if tries > 1:  # another member is writing at the same time
                    pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(tries, 10))
                    # In a slow store, a turn that begins during another one's ruins it: leave time for a whole one.
                    self._clock.sleep(max(pause_s, min(2 * took_s, _LONGEST_TURN_S)) * self._random.random())
                began_s = self._clock.monotonic_s()
                if self._try(turns):
                    return
                took_s = self._clock.monotonic_s() - began_s
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
        is_claimed = lease is None
        if lease is None:
            lease = self._claim()
            if lease is None:
                return False
            self._checkpoint = self._store.load(self.key)
            self._lease = lease
        told = (RunSet(self._plain), self._plain_begun_ms, list(self._history))
        table = self._table(began_s)
        for turn in turns:
            try:
                turn.answer, turn.error = turn.edit(table), None
            except Exception as error:
                turn.error = error
        if not table.changed:
            return True
        checkpoint = table.checkpoint(self._clock.wall_ms())
        try:
            self._save(lease, checkpoint)
        except FencedError:
            self._lease = self._checkpoint = None
            self._plain, self._plain_begun_ms, self._history = told
            return False
        except BaseException:
            self._plain, self._plain_begun_ms, self._history = told
            raise
        self._checkpoint = checkpoint
        now_s = self._clock.monotonic_s()
        self.watch.saw(checkpoint.claims, began_s, now_s)
        if is_claimed:
            self._turn_s = now_s - began_s
        return True

    def _claim(self) -> Lease | None:
        began_s = self._clock.monotonic_s()
        leases = self._store.leases(self.key.group)
        dead = self._owners.saw(leases, began_s, self._clock.monotonic_s())
        seen = next((lease for lease in leases if lease.name == self.key.lease_name), None)
        if seen is not None and seen.owner and not seen.owner.startswith(SHARING) and seen.owner not in dead:
            raise OwnedError(
                f"{self.key} is owned as a whole by {seen.owner}: a group either shares its partitions record by "
                "record or assigns them; use another group for the other mode"
            )
        if seen is not None and self._is_worth_waiting_for(seen):
            self._clock.sleep(min(self._turn_s, _LONGEST_TURN_S))
            return None
        return self._store.claim(self.key.group, self.key.lease_name, self.owner, seen)

    def _is_worth_waiting_for(self, seen: Lease) -> bool:
        """Whether another member may be in the middle of a turn. Each of its claims is waited for once."""
        is_others = seen.owner.startswith(SHARING) and seen.owner != self.owner
        if not is_others or self._turn_s < _SLOW_TURN_S or seen == self._waited_for:
            return False
        self._waited_for = seen
        return True

    def _table(self, began_s: float) -> ClaimTable:
        """The loaded checkpoint as claims. It was loaded after `began_s`."""
        if self._checkpoint is None:
            start = self._first()
            self._checkpoint = Checkpoint(start, start)
        self.watch.saw(self._checkpoint.claims, began_s, self._clock.monotonic_s())
        return ClaimTable(self._checkpoint)

    def _save(self, lease: Lease, checkpoint: Checkpoint) -> None:
        now_s = self._clock.monotonic_s()
        forget_ms = None
        if now_s >= self._history_due_s:
            self._history_due_s = now_s + _HISTORY_EVERY_S
            now_ms = self._clock.wall_ms()
            for first, end in self._plain:
                line = HistoryEntry(first, end, Status.SUCCEEDED, 1, "", self._plain_begun_ms, now_ms, self.owner, "")
                self._history.append(line)
            self._plain = RunSet()
            if self._has_history and now_s >= self._clean_due_s:
                self._clean_due_s = now_s + _CLEAN_EVERY_S
                forget_ms = now_ms - _KEEP_HISTORY_MS
        change = Change(checkpoint, tuple(self._history), forget_history_before_ms=forget_ms)
        self._store.save(lease, self.key, change)
        self._history = []
