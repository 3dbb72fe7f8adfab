"""The tracker: the outcome of each record of one partition, in memory and as the change to save."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock.abc import Clock
from penstock.consuming.loop.finished_runs import RunSet
from penstock.model import Batch, Change, Checkpoint, CheckpointKey, Failing, Handled, HistoryEntry, Pointer, Status

HISTORY_EVERY_S: Final = 1.0
"""How often runs of plain successes become a history entry, however many batches they came in."""
KEEP_HISTORY_MS: Final = 7 * 24 * 3_600_000
_CLEAN_EVERY_S: Final = 60.0
_ERROR_LENGTH: Final = 2_000
DIED: Final = "its handler did not return: the process died"
"""Saved as the error of a suspect before it is tried; it remains only if the process dies."""
DIED_AMONG: Final = "the process died while this record was in hand, with others"
"""The same for suspects that are tried together. It is no attempt of any of them."""


class Tracker:
    """Finished, failing and pending records of one partition.

    Owned by the consumer's loop; a worker that saves effect and checkpoint together holds `lock` meanwhile. Nothing may
    change between `change` and `saved`.
    """

    def __init__(
        self,
        key: CheckpointKey,
        checkpoint: Checkpoint,
        *,
        owner: str,
        handler: str,
        clock: Clock,
        dedup_window_s: float | None = None,
    ) -> None:
        self.key = key
        self.lock = threading.RLock()
        self.start: Pointer = checkpoint.start
        self.next: Pointer = checkpoint.next
        """After the last record that this or an earlier owner has read, as stored."""
        self.position: Pointer = checkpoint.start
        """After the last record that this owner has read."""
        self.restarts = checkpoint.restarts
        self.processed = checkpoint.processed
        self.delivered = checkpoint.delivered
        self.dirty = False
        """Whether there is something to save."""
        self.is_urgent = False
        """Whether it should be saved now, rather than after `commit_interval_s`."""
        self._owner = owner
        self._handler = handler
        self._clock = clock
        self._dedup_window_s = dedup_window_s
        self._finished = RunSet(checkpoint.finished)
        self._restored_end: Pointer = self._finished.end or checkpoint.start
        self._suspect: Pointer | None = None
        self._in_hand: dict[Pointer, Failing | None] = {}
        """Suspects that are tried together, and what was known about them before."""
        self._failing = {failing.pointer: failing for failing in checkpoint.failing}
        self._plain = RunSet()
        self._plain_begun_ms = 0
        self._history: list[HistoryEntry] = []
        self._handled: list[Handled] = []
        self._state: dict[bytes, bytes | None] = {}
        self.saved_state: dict[bytes, bytes] | None = None
        """Keyed state as it was last saved; None unless it is served. Any thread may read it."""
        self._history_due_s = 0.0
        self._clean_due_s = 0.0

    def read(self, batch: Batch) -> list[tuple[int, int]]:
        """Take a new batch. Returns the `(low, high)` spans of its records that are not finished."""
        assert batch.start == self.position, f"{batch} does not follow {self.position}"
        self.position = batch.next
        if batch.next > self.next:
            self.next = batch.next
            self.dirty = True
        if not len(batch):
            self._finish(batch.start, batch.next)
            return []
        if batch.start >= self._restored_end:
            return [(0, len(batch))]
        return self._spans_left(batch)

    def _spans_left(self, batch: Batch) -> list[tuple[int, int]]:
        left: list[tuple[int, int]] = []
        for index, pointer in enumerate(batch.pointers()):
            if self.is_finished(pointer):
                self._finish(batch.edge(index), batch.edge(index + 1))
            elif left and left[-1][1] == index:
                left[-1] = (left[-1][0], index + 1)
            else:
                left.append((index, index + 1))
        return left

    def succeeded(self, first: Pointer, end: Pointer, count: int, begun_ms: int) -> None:
        """Mark records as succeeded at their first attempt."""
        self.delivered += count
        if not self._plain_begun_ms or begun_ms < self._plain_begun_ms:
            self._plain_begun_ms = begun_ms
        self._plain.add(first, end)
        self._finish(first, end)

    def succeeded_after_failing(self, pointer: Pointer, first: Pointer, end: Pointer, begun_ms: int) -> None:
        """Mark a record as succeeded after failed attempts."""
        self.delivered += 1
        self._add_history(first, end, Status.SUCCEEDED, self.attempts(pointer) + 1, "", begun_ms)
        self._failing.pop(pointer, None)
        self._finish(first, end)

    def gave_up(self, pointer: Pointer, first: Pointer, end: Pointer, error: str) -> None:
        """Mark a record as finished: it is a dead letter now."""
        self._add_history(first, end, Status.EXHAUSTED, self.attempts(pointer), error, self._clock.wall_ms())
        self._failing.pop(pointer, None)
        self._finish(first, end)

    def ignored(self, first: Pointer, end: Pointer, why: str) -> None:
        """Mark records as finished without their handler."""
        self._add_history(first, end, Status.IGNORED, 0, why, self._clock.wall_ms())
        self._finish(first, end)

    def skipped(self, first: Pointer, end: Pointer, why: str) -> None:
        """Mark records as finished that no longer exist."""
        self.next = max(self.next, end)
        self.position = max(self.position, end)
        self.ignored(first, end, why)

    def failed(self, pointer: Pointer, first: Pointer, end: Pointer, error: str, begun_ms: int) -> Failing:
        """Count a failed attempt."""
        now_ms = self._clock.wall_ms()
        before = self._failing.get(pointer)
        counted = 1 if before is not None and self._suspect == pointer else 0
        self._suspect = None
        failing = Failing(
            pointer,
            (before.attempts if before else 0) + 1 - counted,
            error[:_ERROR_LENGTH],
            before.first_ms if before else begun_ms,
            now_ms,
        )
        self._failing[pointer] = failing
        self._add_history(first, end, Status.FAILED, failing.attempts, error, begun_ms)
        self.dirty = True
        return failing

    def begin_suspect(self, pointer: Pointer) -> int:
        """Count an attempt as failed before it is made, in case it kills the process. Returns the attempts so far."""
        now_ms = self._clock.wall_ms()
        before = self._failing.get(pointer)
        attempts = (before.attempts if before else 0) + 1
        first_ms = before.first_ms if before else now_ms
        self._failing[pointer] = Failing(pointer, attempts, DIED, first_ms, now_ms)
        self._suspect = pointer
        self.dirty = True
        return attempts

    def begin_suspects(self, pointers: Iterable[Pointer]) -> None:
        """Mark records before they are tried together, in case one of them kills the process."""
        now_ms = self._clock.wall_ms()
        self._in_hand = {pointer: self._failing.get(pointer) for pointer in pointers}
        for pointer, before in self._in_hand.items():
            attempts, first_ms = (before.attempts, before.first_ms) if before else (0, now_ms)
            self._failing[pointer] = Failing(pointer, attempts, DIED_AMONG, first_ms, now_ms)
        self.dirty = True

    def _put_back(self) -> None:
        """Remove the marks of suspects that were not tried: this owner has not died."""
        for pointer, before in self._in_hand.items():
            failing = self._failing.get(pointer)
            if failing is not None and failing.error == DIED_AMONG:
                if before is None:
                    del self._failing[pointer]
                else:
                    self._failing[pointer] = before
        self._in_hand = {}

    def was_in_hand(self, pointer: Pointer) -> bool:
        """Whether an earlier owner died with this record in hand."""
        failing = self._failing.get(pointer)
        return failing is not None and failing.error in (DIED, DIED_AMONG)

    @property
    def any_was_in_hand(self) -> bool:
        return any(map(self.was_in_hand, self._failing))

    def remember(self, id: str) -> None:
        """Remember that the record with this idempotency key is finished."""
        self._handled.append(Handled(id, self._clock.wall_ms()))

    def keep(self, state: Mapping[bytes, bytes | None]) -> None:
        """Keep keyed state that finished records changed."""
        self._state.update(state)

    def attempts(self, pointer: Pointer) -> int:
        """How many attempts have failed."""
        failing = self._failing.get(pointer)
        if failing is None:
            return 0
        return failing.attempts - 1 if self._suspect == pointer else failing.attempts

    def failing(self, pointer: Pointer) -> Failing | None:
        return self._failing.get(pointer)

    def is_finished(self, pointer: Pointer) -> bool:
        return pointer < self.start or pointer in self._finished

    @property
    def any_failing(self) -> bool:
        return bool(self._failing)

    @property
    def failing_count(self) -> int:
        return len(self._failing)

    def checkpoint(self) -> Checkpoint:
        failing = sorted(self._failing.values(), key=lambda each: each.pointer) if self._failing else ()
        return Checkpoint(
            start=self.start,
            next=self.next,
            finished=self._finished.as_runs(),
            failing=tuple(failing),
            restarts=self.restarts,
            processed=self.processed,
            delivered=self.delivered,
            saved_ms=self._clock.wall_ms(),
        )

    def change(self, *, last: bool = False) -> Change:
        """The change to save now; `last` when this owner ends in order and no other change follows."""
        if last:
            self.restarts = 0
            self._put_back()
        now_s = self._clock.monotonic_s()
        if last or now_s >= self._history_due_s:
            self._history_due_s = now_s + HISTORY_EVERY_S
            for first, end in self._plain:
                self._add_history(first, end, Status.SUCCEEDED, 1, "", self._plain_begun_ms)
            self._plain = RunSet()
            self._plain_begun_ms = 0
        forget_handled = forget_history = None
        if now_s >= self._clean_due_s:
            self._clean_due_s = now_s + _CLEAN_EVERY_S
            now_ms = self._clock.wall_ms()
            forget_history = now_ms - KEEP_HISTORY_MS
            if self._dedup_window_s is not None:
                forget_handled = now_ms - round(self._dedup_window_s * 1000)
        return Change(
            self.checkpoint(),
            tuple(self._history),
            dict(self._state),
            tuple(self._handled),
            forget_handled,
            forget_history,
        )

    def saved(self) -> None:
        """Confirm that the last change is stored."""
        if self.saved_state is not None:
            for key, encoded in self._state.items():
                if encoded is None:
                    self.saved_state.pop(key, None)
                else:
                    self.saved_state[key] = encoded
        self._history.clear()
        self._state.clear()
        self._handled.clear()
        self.dirty = False

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Undo the changes made inside the block if it raises."""
        kept = (
            self.start,
            self.processed,
            self.delivered,
            dict(self._failing),
            list(self._history),
            dict(self._state),
            list(self._handled),
            self._finished.as_runs(),
            self._plain.as_runs(),
            self._plain_begun_ms,
        )
        try:
            yield
        except BaseException:
            (
                self.start,
                self.processed,
                self.delivered,
                self._failing,
                self._history,
                self._state,
                self._handled,
                finished,
                plain,
                self._plain_begun_ms,
            ) = kept
            self._finished, self._plain = RunSet(finished), RunSet(plain)
            raise

    def _finish(self, first: Pointer, end: Pointer) -> None:
        self.dirty = True
        if first <= self.start:
            moved = max(self.start, end)
            if self._finished:
                moved = self._finished.pop_from(moved)
            if moved > self.start:
                self.start = moved
                self.restarts = 0
        else:
            self._finished.add(first, end)

    def _add_history(
        self, first: Pointer, end: Pointer, status: Status, attempt: int, error: str, begun_ms: int
    ) -> None:
        now_ms = self._clock.wall_ms()
        self._history.append(
            HistoryEntry(
                first,
                end,
                status,
                attempt,
                error[:_ERROR_LENGTH],
                begun_ms or now_ms,
                now_ms,
                self._owner,
                self._handler,
            )
        )
