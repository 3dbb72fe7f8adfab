"""The tracker: what became of each record of one partition, in memory, and as the change that is to be saved."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.abc import Clock
from penstock.consuming.runs import RunSet
from penstock.model import (
    Batch,
    Change,
    Checkpoint,
    CheckpointKey,
    Failing,
    Handled,
    Happening,
    Pointer,
    Status,
)

HISTORY_EVERY_S: Final = 1.0
"""Runs of plain successes become a line of the history this often, however many batches they came in."""
KEEP_HISTORY_MS: Final = 7 * 24 * 3_600_000
_CLEAN_EVERY_S: Final = 60.0
_ERROR_LENGTH: Final = 2_000
DIED: Final = "its handler did not return: the process died"
"""What is noted of a suspect before it is tried. It stays if the process does not."""


class Tracker:
    """Finished, failing and pending records of one partition.

    The consumer's loop owns it; a worker that saves effect and checkpoint together holds `lock` while it does. Between
    `change` and `saved` nothing else may happen to it.
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
        """Behind the last record that this or an earlier owner has read, as it is stored."""
        self.position: Pointer = checkpoint.start
        """Behind the last record that this owner has read."""
        self.restarts = checkpoint.restarts
        self.processed = checkpoint.processed
        self.delivered = checkpoint.delivered
        self.dirty = False
        """Whether there is something to save."""
        self._owner = owner
        self._handler = handler
        self._clock = clock
        self._dedup_window_s = dedup_window_s
        self._finished = RunSet(checkpoint.finished)
        self._restored_end: Pointer = self._finished.end or checkpoint.start
        self._careful: Pointer | None = None
        self._failing = {failing.pointer: failing for failing in checkpoint.failing}
        self._plain = RunSet()
        self._plain_begun_ms = 0
        self._lines: list[Happening] = []
        self._handled: list[Handled] = []
        self._state: dict[bytes, bytes | None] = {}
        self._history_due_s = 0.0
        self._clean_due_s = 0.0

    def read(self, batch: Batch) -> list[tuple[int, int]]:
        """A batch has come. Gives those of its records, as `(low, high)`, that were not finished before."""
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
        """These records succeeded, with nothing to tell about them."""
        self.delivered += count
        if not self._plain_begun_ms or begun_ms < self._plain_begun_ms:
            self._plain_begun_ms = begun_ms
        self._plain.add(first, end)
        self._finish(first, end)

    def succeeded_after_failing(self, pointer: Pointer, first: Pointer, end: Pointer, begun_ms: int) -> None:
        """A record that had failed succeeded."""
        self.delivered += 1
        self._tell(first, end, Status.SUCCEEDED, self.attempts(pointer) + 1, "", begun_ms)
        self._failing.pop(pointer, None)
        self._finish(first, end)

    def gave_up(self, pointer: Pointer, first: Pointer, end: Pointer, error: str) -> None:
        """A record is with the dead letters, and finished."""
        self._tell(first, end, Status.EXHAUSTED, self.attempts(pointer), error, self._clock.wall_ms())
        self._failing.pop(pointer, None)
        self._finish(first, end)

    def ignored(self, first: Pointer, end: Pointer, why: str) -> None:
        """A record was finished without its handler."""
        self._tell(first, end, Status.IGNORED, 0, why, self._clock.wall_ms())
        self._finish(first, end)

    def skipped(self, first: Pointer, end: Pointer, why: str) -> None:
        """Records were passed over that are no longer there."""
        self.next = max(self.next, end)
        self.position = max(self.position, end)
        self.ignored(first, end, why)

    def failed(self, pointer: Pointer, first: Pointer, end: Pointer, error: str, begun_ms: int) -> Failing:
        """An attempt failed."""
        now_ms = self._clock.wall_ms()
        before = self._failing.get(pointer)
        counted = 1 if before is not None and self._careful == pointer else 0
        self._careful = None
        failing = Failing(
            pointer,
            (before.attempts if before else 0) + 1 - counted,
            error[:_ERROR_LENGTH],
            before.first_ms if before else begun_ms,
            now_ms,
        )
        self._failing[pointer] = failing
        self._tell(first, end, Status.FAILED, failing.attempts, error, begun_ms)
        self.dirty = True
        return failing

    def begin_carefully(self, pointer: Pointer) -> int:
        """Count an attempt as failed before it is made, in case that it kills us. Gives how many that makes."""
        now_ms = self._clock.wall_ms()
        before = self._failing.get(pointer)
        attempts = (before.attempts if before else 0) + 1
        first_ms = before.first_ms if before else now_ms
        self._failing[pointer] = Failing(pointer, attempts, DIED, first_ms, now_ms)
        self._careful = pointer
        self.dirty = True
        return attempts

    def remember(self, id: str) -> None:
        """The record of this idempotency key is finished."""
        self._handled.append(Handled(id, self._clock.wall_ms()))

    def keep(self, state: Mapping[bytes, bytes | None]) -> None:
        """Keyed state that changed with records that are finished."""
        self._state.update(state)

    def attempts(self, pointer: Pointer) -> int:
        """How often the record has failed."""
        failing = self._failing.get(pointer)
        if failing is None:
            return 0
        return failing.attempts - 1 if self._careful == pointer else failing.attempts

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

    @property
    def finished_ahead(self) -> int:
        """How many runs are finished behind the first record that is not."""
        return len(self._finished)

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
        """What is to be saved now; `last` when this owner ends well, and no other change follows."""
        if last:
            self.restarts = 0
        now_s = self._clock.monotonic_s()
        if last or now_s >= self._history_due_s:
            self._history_due_s = now_s + HISTORY_EVERY_S
            for first, end in self._plain:
                self._tell(first, end, Status.SUCCEEDED, 1, "", self._plain_begun_ms)
            self._plain = RunSet()
            self._plain_begun_ms = 0
        forget_handled = forget_happenings = None
        if now_s >= self._clean_due_s:
            self._clean_due_s = now_s + _CLEAN_EVERY_S
            now_ms = self._clock.wall_ms()
            forget_happenings = now_ms - KEEP_HISTORY_MS
            if self._dedup_window_s is not None:
                forget_handled = now_ms - round(self._dedup_window_s * 1000)
        return Change(
            self.checkpoint(),
            tuple(self._lines),
            dict(self._state),
            tuple(self._handled),
            forget_handled,
            forget_happenings,
        )

    def saved(self) -> None:
        """The last change is stored."""
        self._lines.clear()
        self._state.clear()
        self._handled.clear()
        self.dirty = False

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """What is told to the tracker inside counts only if the block ends well."""
        kept = (
            self.start,
            self.processed,
            self.delivered,
            dict(self._failing),
            list(self._lines),
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
                self._lines,
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

    def _tell(self, first: Pointer, end: Pointer, status: Status, attempt: int, error: str, begun_ms: int) -> None:
        now_ms = self._clock.wall_ms()
        self._lines.append(
            Happening(
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
