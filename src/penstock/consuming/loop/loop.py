"""The loop of a consumer: read, track, dispatch to workers, process their reports, save.

One thread runs the loop and owns all its state except the lanes, which it shares with the workers. Iterations are
short, however long handlers take.
"""

from __future__ import annotations

import collections
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.abc import Clock, GroupFeed, TopicStream
from penstock.consuming.counts import Counts
from penstock.consuming.loop.assigned_partition import AssignedPartition, awaits_reports
from penstock.consuming.loop.checkpointing import GroupProgress, ProgressSaver
from penstock.consuming.loop.dedup import Deduplication
from penstock.consuming.loop.delays import Delays
from penstock.consuming.loop.failures import FailureHandler
from penstock.consuming.loop.ownership import FencedPartitions, PartitionOwnership
from penstock.consuming.loop.reading import FeedReader, InFlightLimit
from penstock.consuming.loop.reports import Reports
from penstock.consuming.loop.suspects import SuspectDispatcher
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.stages import Stages
from penstock.consuming.workers.lanes import Lanes, Task
from penstock.consuming.workers.pool import Workers
from penstock.consuming.workers.runners import Report
from penstock.errors import ConnectionClosedError, FencedError, OffsetOutOfRangeError, OutcomeUnknownError
from penstock.model import Batch, Guarantee, Lease, Ordering, Pointer

logger = logging.getLogger(__name__)

_STOP_S: Final = 1.0
"""How long idle workers may take to end."""
_WAIT_S: Final = 0.1
"""How long an iteration waits for records, and so the longest delay of its other duties."""
_POLL_AT_LEAST_S: Final = 0.1
STUCK_S: Final = 60.0
"""A loop without an iteration for this long, and without a known problem, counts as stuck."""
SPARE_S: Final = 30.0
"""A member without partitions for this long is a spare: the group has more members than partitions."""
_REPORT_WAIT_S: Final = 0.01
"""How long an iteration waits for reports where every task is saved: waiting in the feed would delay them."""
_OTHERS_EVERY_S: Final = 0.2
"""How often a run with an `end` checks the progress of other members."""
_MOST_AT_ONCE: Final = 2_000
_REPORTS_AT_ONCE: Final = 100

Commit = concurrent.futures.Future[dict[int, Pointer]]
"""Resolves to the pointer up to which each partition is saved, or to the error."""


class Loop:
    """Runs a consumer. `run` returns when stopped or at the end, and raises the error that ended it."""

    def __init__(
        self,
        topic: str,
        options: ConsumerOptions,
        join_group: Callable[[Loop], GroupFeed],
        lanes: Lanes,
        make_workers: Callable[[Callable[[Report], None]], Workers],
        failures: FailureHandler,
        saver: ProgressSaver,
        ownership: PartitionOwnership,
        dedup: Deduplication,
        clock: Clock,
        counts: Counts,
        *,
        least_in_flight: int | None = None,
        outputs_in_transaction: bool = False,
        stream: TopicStream | None = None,
        stages: Stages | None = None,
        restore_state: Callable[[AssignedPartition], None] | None = None,
    ) -> None:
        """`join_group` gets the loop as the listener for its assignments. `least_in_flight`: begin with so few, and use
        the whole `in_flight` only while handlers are fast."""
        self._topic = topic
        self._stream = stream
        self._options = options
        self._join_group = join_group
        self._lanes = lanes
        self._failures = failures
        self._saver = saver
        self._ownership = ownership
        self._dedup = dedup
        self._delays = Delays(options.order, clock)
        self._clock = clock
        self._counts = counts
        self._restore_state = restore_state
        self._reports = Reports(
            options, lanes, failures, dedup, stages, clock, counts, outputs_in_transaction=outputs_in_transaction
        )
        self._suspects = SuspectDispatcher(self._reports, dedup, failures, self._save)
        self._reported = threading.Event()
        self._workers = make_workers(self._on_report)
        self._feed: GroupFeed | None = None
        self._has_keys = options.order is Ordering.KEY
        self._stopping = threading.Event()
        self._waits_for_room = False
        self._limit = InFlightLimit(least_in_flight or options.in_flight, options.in_flight, counts, clock)
        self._awaits_reports = False
        self._check_others_s = 0.0
        self._polled_s = 0.0
        self._progress = GroupProgress(clock)
        self._overdue_s = 0.0
        self._iterated_s = clock.monotonic_s()
        self._began_s = self._iterated_s
        self._joined = False
        self._reader = FeedReader(topic, clock, options.seed)
        self.partitions: dict[int, AssignedPartition] = {}
        self.released_totals: dict[int, tuple[int, int]] = {}
        """By released partition: how often records were handled, and how often that succeeded."""
        self.commits: collections.deque[Commit] = collections.deque()
        self._fenced = FencedPartitions(topic, clock)
        self._has_finished = False
        self.seeks: collections.deque[tuple[int, Pointer]] = collections.deque()

    def run(self) -> None:
        """Consume until stopped. Raises the error that ended the loop."""
        self._workers.start()
        try:
            self._feed = self._join_group(self)
            while not self._stopping.is_set():
                self._process_reports()
                if self._is_complete():
                    break
                self._iterate()
        finally:
            self._finish()

    def stop(self) -> None:
        """Stop reading, let running handlers finish, save, and return from `run`. Thread-safe."""
        self._stopping.set()
        self._wake()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def commit(self) -> Commit:
        """Save finished records in the next iteration. Thread-safe."""
        commit: Commit = concurrent.futures.Future()
        self.commits.append(commit)
        self._wake()
        if self._has_finished:
            self._complete_commits([], ConnectionClosedError("the consumer has ended"))
        return commit

    def _complete_commits(
        self, partitions: Sequence[AssignedPartition], error: BaseException | None = None, asked: int | None = None
    ) -> None:
        """Resolve the first `asked` pending commits, by default all: these partitions are saved, or lost if closed."""
        lost = sorted(assigned.partition for assigned in partitions if assigned.closed)
        if error is None and lost:
            error = FencedError(
                f"partitions {', '.join(map(str, lost))} of topic {self._topic!r} moved to another member "
                "before they were saved: records that were finished there are handled again"
            )
        while self.commits and asked != 0:
            commit = self.commits.popleft()
            asked = None if asked is None else asked - 1
            if error is None:
                commit.set_result({assigned.partition: assigned.tracker.start for assigned in partitions})
            else:
                commit.set_exception(error)

    def seek(self, partition: int, pointer: Pointer) -> None:
        """Continue at `pointer` from the next iteration on. Thread-safe."""
        self.seeks.append((partition, pointer))
        self._wake()

    def _wake(self) -> None:
        """Interrupt whatever the loop waits for. Thread-safe."""
        self._reported.set()
        if self._feed is not None:
            self._feed.wake()

    def problems(self) -> list[str]:
        """What keeps the consumer from making progress; empty strings where there is no problem."""
        breaker = self._failures.breaker
        return [
            self._reader.problem,
            self._saver.problem,
            self._failures.put_problem,
            f"the circuit is {breaker.circuit}: {breaker.reason}" if breaker.reason else "",
            *(
                _full_of_delayed(assigned)
                for assigned in list(self.partitions.values())
                if self._is_full_of_delayed(assigned)
            ),
        ]

    def stuck(self) -> str:
        """Why a restart of the process would help; "" while the loop runs, or waits for a known problem to pass."""
        still_s = self._clock.monotonic_s() - self._iterated_s
        if still_s < STUCK_S or self._stopping.is_set() or any(self.problems()):
            return ""
        return f"the consumer loop has not run for {still_s:.0f} s"

    def has_run_within(self, limit_s: float) -> bool:
        """Whether the loop has heard from its group lately: after a longer pause, partitions may be gone."""
        return self._clock.monotonic_s() - self._iterated_s < limit_s

    def unready(self) -> str:
        """Why nothing can be handled yet; "" once partitions are assigned, or this member is a spare."""
        if self._stopping.is_set():
            return "it is stopping"
        if self._joined or self._clock.monotonic_s() - self._began_s >= SPARE_S:
            return ""
        return "no partition has been assigned to it yet"

    def _is_complete(self) -> bool:
        """Whether a run with an `end` is done: every partition is at its end, those of other members included.

        A partition without an owner may be one of a member that died: it will be assigned before long.
        """
        if self._options.end is None or not all(assigned.is_at_end for assigned in self.partitions.values()):
            return False
        others = self._ownership.ends().keys() - self.partitions.keys()
        if others:
            now_s = self._clock.monotonic_s()
            if now_s < self._check_others_s:
                return False
            self._check_others_s = now_s + _OTHERS_EVERY_S
        return all(self._ownership.is_finished_by_others(partition) for partition in others)

    def _iterate(self) -> None:
        self._iterated_s = self._clock.monotonic_s()
        self._limit.update()
        self._failures.gate()
        self._reassign_overdue()
        self._dispatch_due()
        assert self._feed is not None
        self._fenced.claim_due(self._feed, self._claim_again)
        while self.seeks:
            self._seek(*self.seeks.popleft())
        if asked := len(self.commits):  # a commit that is asked for from now on may have reports of its own
            self._process_reports()  # reports that arrived before the commit belong to it
            partitions = list(self.partitions.values())
            self._save_due(now=True)
            self._complete_commits(partitions, asked=asked)
        else:
            self._save_due(now=False)
        room = self._room()
        if room < self._room_at_once:
            room = self._wait_for_room()
            if room <= 0:
                return
        if self._reader.must_wait:
            self._reported.wait(_WAIT_S / 2)
            self._reported.clear()
            return
        self._awaits_reports = awaits_reports(self.partitions.values())
        awaits_saves = self._lanes.saves_each_task and any(assigned.in_flight for assigned in self.partitions.values())
        wait_s = 0.0 if awaits_saves or self._reports.is_pending else self._poll_wait_s()
        self._dispatch(self._poll(min(room, _MOST_AT_ONCE), wait_s))
        if awaits_saves and not self._reports.is_pending:
            self._reported.wait(_REPORT_WAIT_S)
            self._reported.clear()

    def _poll_wait_s(self) -> float:
        """How long to wait for records: at most until the next delayed one is due."""
        due_s = self._delays.next_s()
        return _WAIT_S if due_s is None else min(_WAIT_S, due_s)

    def _room(self) -> int:
        in_flight, in_flight_bytes = 0, 0.0
        for assigned in self.partitions.values():
            in_flight += assigned.in_flight - assigned.delayed
            in_flight_bytes += (assigned.in_flight - assigned.delayed) * assigned.record_bytes
            self._pause_or_resume(assigned)
        if in_flight_bytes >= self._options.in_flight_bytes:
            return 0
        return self._limit.now - in_flight

    @property
    def _room_at_once(self) -> int:
        """For how many records there must be room before more are read."""
        return max(1, self._limit.now // 4)

    def _pause_or_resume(self, assigned: AssignedPartition) -> None:
        """Pause a partition that would take the room of the others, or holds too many delayed records."""
        assert self._feed is not None
        in_flight = assigned.in_flight - assigned.delayed
        is_full = self._is_full_of_delayed(assigned)
        if assigned.paused:
            if in_flight <= self._options.partition_in_flight // 2 and not is_full:
                assigned.paused = False
                self._feed.resume(assigned.partition)
        elif is_full or (in_flight >= self._options.partition_in_flight and len(self.partitions) > 1):
            assigned.paused = True
            self._feed.pause(assigned.partition)
            if is_full:
                logger.warning("%s", _full_of_delayed(assigned))

    def _is_full_of_delayed(self, assigned: AssignedPartition) -> bool:
        """Whether the partition has too many delayed records to read more before some are due."""
        if assigned.delayed >= self._options.partition_in_flight:
            return True
        bytes_each = self._options.in_flight_bytes / (2 * max(1, len(self.partitions)))
        return assigned.delayed > 1 and assigned.delayed * assigned.record_bytes >= bytes_each

    def _wait_for_room(self) -> int:
        """Wait briefly until many records fit: reading them one by one would cost a save each."""
        until_s = self._clock.monotonic_s() + _WAIT_S / 2
        room = 0
        self._waits_for_room = True
        while not self._stopping.is_set():
            self._reported.wait(_WAIT_S / 10)
            self._reported.clear()
            self._process_reports()
            room = self._room()
            if room >= self._room_at_once or self._clock.monotonic_s() >= until_s:
                break
        self._waits_for_room = False
        if room <= 0 and self._clock.monotonic_s() - self._polled_s >= _POLL_AT_LEAST_S:
            self._dispatch(self._poll(1, 0.0))  # the group needs regular polls, even without room
        return room

    def _poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        assert self._feed is not None
        self._polled_s = self._clock.monotonic_s()
        try:
            return self._reader.poll(self._feed, limit, wait_s)
        except OffsetOutOfRangeError as error:
            if self._stream is None:  # a queue on a stream has skipped what it may skip
                raise
            self._skip_expired(error)
            return ()

    def _dispatch(self, batches: Sequence[Batch]) -> None:
        """Track new batches, save the position read, then hand the records to the lanes."""
        dispatched: list[tuple[AssignedPartition, Batch, list[tuple[int, int]]]] = []
        for batch in batches:
            assigned = self.partitions.get(batch.partition)
            if assigned is None:
                continue
            if assigned.end is not None and batch.next > assigned.end:
                if batch.start >= assigned.end:
                    continue
                batch = _cut(batch, assigned.end)
            with assigned.tracker.lock:
                spans = assigned.tracker.read(batch)
                count = sum(high - low for low, high in spans)
                assigned.in_flight += count
                spans = self._delays.admit(assigned, batch, self._dedup.admit(assigned, batch, spans))
            if count:
                assigned.update_record_size(batch)
            dispatched.append((assigned, batch, spans))
        for assigned in {id(assigned): assigned for assigned, _, _ in dispatched}.values():
            if self._options.guarantee is Guarantee.AT_MOST_ONCE:
                self._finish_before_handling(assigned, dispatched)
            self._save(assigned)
        for assigned, batch, spans in dispatched:
            if assigned.closed or not spans:
                continue
            if batch.start < assigned.suspects_end or assigned.suspects:  # later records wait for the suspects
                assigned.suspects.extend((batch, index) for low, high in spans for index in range(low, high))
                self._suspects.hand_out(assigned)
            else:
                self._lanes.put(assigned, batch, spans, batch.keys() if self._has_keys else ())

    def _dispatch_due(self) -> None:
        """Hand delayed records that are due now to the lanes."""
        due = self._delays.take_due()
        for assigned in {id(assigned): assigned for assigned, _, _ in due}.values():
            if self._options.guarantee is Guarantee.AT_MOST_ONCE:
                ours = [(batch, index) for of, batch, index in due if of is assigned]
                self._finish_before_handling(
                    assigned, [(assigned, batch, [(index, index + 1)]) for batch, index in ours]
                )
                self._save(assigned)
        for assigned, batch, index in due:
            if batch.pointer(index) < assigned.suspects_end and not assigned.closed:
                assigned.suspects.append((batch, index))
                self._suspects.hand_out(assigned)
            else:
                self._reports.put_records([(assigned, batch, index)])

    def _finish_before_handling(
        self, assigned: AssignedPartition, dispatched: Sequence[tuple[AssignedPartition, Batch, list[tuple[int, int]]]]
    ) -> None:
        """At most once: mark all records finished before any of them is handled."""
        for of, batch, spans in dispatched:
            if of is assigned:
                for low, high in spans:
                    assigned.tracker.succeeded(batch.edge(low), batch.edge(high), 0, self._clock.wall_ms())

    def _on_report(self, report: Report) -> None:
        """Take a report. Called by workers."""
        self._reports.reports.append(report)
        if report.error is not None or self._awaits_reports or self._lanes.saves_each_task:
            self._wake()
        elif self._waits_for_room and len(self._reports.reports) >= min(_REPORTS_AT_ONCE, self._room_at_once):
            self._reported.set()

    def tree_ended(self, task: Task, index: int, error: BaseException | None) -> None:
        """Take the outcome of a record's tree of tasks. Called by the thread that completed it."""
        self._reports.trees.append((task, index, error))
        if self._waits_for_room or self._awaits_reports or error is not None:
            self._wake()

    def _process_reports(self) -> None:
        """Process what workers have reported."""
        for assigned, error in self._reports.process():
            if isinstance(error, OutcomeUnknownError):
                self._reclaim(assigned, error)
            else:
                self._fence(assigned, error)
        if self._reports.awaiting_save:
            self._save_awaiting()
        for assigned in list(self.partitions.values()):
            if assigned.suspects:
                self._suspects.hand_out(assigned)

    def _save_awaiting(self) -> None:
        """Save finished tasks, then release their lanes. Tasks that ended together share one save."""
        awaiting_save, self._reports.awaiting_save = self._reports.awaiting_save, []
        for assigned in {id(task.assigned): task.assigned for task, _ in awaiting_save}.values():
            self._save(assigned)
        for task, rest in awaiting_save:
            self._lanes.saved(task, () if task.assigned.closed else rest)

    def _reassign_overdue(self) -> None:
        """Give records whose handler takes too long to another worker. The first to finish counts."""
        visibility_s = self._options.visibility_s
        now_s = self._clock.monotonic_s()
        if visibility_s is None or now_s < self._overdue_s:
            return
        self._overdue_s = now_s + min(_WAIT_S, visibility_s / 4)
        for task in self._lanes.abandon_overdue(visibility_s):
            assigned = task.assigned
            if assigned.closed:
                continue
            error = TimeoutError(f"its handler did not return within {visibility_s:g} s")
            logger.warning("%s: %s; another worker gets it", task.batch[task.low].place, error)
            self._workers.replace_one()
            with assigned.tracker.lock:
                self._failures.failed(Report(task, task.low, error))

    def _seek(self, partition: int, pointer: Pointer) -> None:
        assigned = self.partitions.get(partition)
        if assigned is None:
            logger.warning("cannot seek: partition %d is not assigned to this consumer", partition)
            return
        assert self._feed is not None
        self._close_partition(assigned)
        self._add_partition(self._ownership.restart_at(assigned, pointer))
        self._save(self.partitions[partition])
        self._move_feed(partition, pointer)

    def _reclaim(self, assigned: AssignedPartition, error: OutcomeUnknownError) -> None:
        """Claim the partition again after a commit of unknown outcome: the claim ends the transaction for good."""
        logger.warning("%s is claimed and loaded again: %s", assigned.key, error)
        self._close_partition(assigned)
        self._claim_again(assigned.partition)

    def _claim_again(self, partition: int) -> None:
        taken = self._add_partition(self._ownership.take(partition, None))
        self._move_feed(partition, taken.tracker.position)

    def _move_feed(self, partition: int, pointer: Pointer) -> None:
        """Read from here on, also if the partition was paused."""
        assert self._feed is not None
        self._feed.seek(partition, pointer)
        self._feed.resume(partition)

    def _fence(self, assigned: AssignedPartition, error: FencedError) -> None:
        """Drop a partition that another owner has claimed, until this member may claim it again."""
        self._lose(assigned, str(error))
        self._progress.forget(assigned.partition)
        if self._ownership.is_claimed(assigned):
            self._fenced.add(assigned.partition, assigned.tracker.start)

    def _add_partition(self, assigned: AssignedPartition) -> AssignedPartition:
        """Start working on an assigned partition."""
        if self._restore_state is not None:
            self._restore_state(assigned)
        self.partitions[assigned.partition] = assigned
        return assigned

    def _close_partition(self, assigned: AssignedPartition) -> None:
        """Ignore further reports about the partition, and drop its waiting records."""
        assigned.closed = True
        self.released_totals[assigned.partition] = (assigned.tracker.processed, assigned.tracker.delivered)
        self._lanes.clear(assigned)
        self._failures.forget(assigned)
        self._delays.forget(assigned)
        self._reports.put_records(self._dedup.forget(assigned))

    def _save_due(self, *, now: bool) -> None:
        now_s = self._clock.monotonic_s()
        for assigned in list(self.partitions.values()):
            pending = assigned.tracker.dirty or assigned.uncommitted
            idle = assigned.in_flight == assigned.uncommitted_count + len(assigned.suspects)
            soon = now or idle or assigned.tracker.is_urgent
            if pending and (soon or now_s - assigned.saved_s >= self._options.commit_interval_s):
                self._save(assigned)
        self._progress.commit(self._feed, self.partitions.values(), wait=False)

    def _save(self, assigned: AssignedPartition, *, last: bool = False) -> None:
        if assigned.closed:
            return
        try:
            self._saver.save(assigned, last=last)
        except FencedError as error:
            self._fence(assigned, error)
        except OutcomeUnknownError as error:
            if last:  # the next owner's claim decides the outcome
                self._lose(assigned, str(error))
            else:
                self._reclaim(assigned, error)

    def _skip_expired(self, error: OffsetOutOfRangeError) -> None:
        """Continue where `on_expired` says after retention deleted unread records; raise without it."""
        assigned = self.partitions.get(error.partition)
        if assigned is None:
            return
        assert self._stream is not None
        if self._options.on_expired is None:
            raise error
        pointer = max(self._stream.locate(error.partition, self._options.on_expired), error.start)
        logger.error("%s; continuing at %d", error, pointer)
        with assigned.tracker.lock:
            if pointer > assigned.tracker.position:
                self._counts.expired += pointer - assigned.tracker.position
                assigned.tracker.skipped(assigned.tracker.position, pointer, "deleted by retention before it was read")
            else:
                assigned.tracker.position = pointer
        assert self._feed is not None
        self._feed.seek(error.partition, pointer)

    # Callbacks of the group, called inside `poll` and `close`.

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        starts = {}
        self._fenced.forget(partitions)
        for partition, lease in partitions.items():
            starts[partition] = self._add_partition(self._ownership.take(partition, lease)).tracker.position
            self._counts.assigned += 1
        if self._options.on_assigned is not None:
            self._options.on_assigned(sorted(partitions))
        self._joined = True
        return starts

    def revoked(self, partitions: Sequence[int]) -> None:
        ours = [self.partitions[partition] for partition in partitions if partition in self.partitions]
        self._release(ours, self._options.drain_s if self._stopping.is_set() else self._options.revoke_s)
        self._fenced.forget(partitions)
        if self._options.on_revoked is not None:
            self._options.on_revoked(sorted(partitions))

    def lost(self, partitions: Sequence[int]) -> None:
        self._fenced.forget(partitions)
        for assigned in [self.partitions[partition] for partition in partitions if partition in self.partitions]:
            self._lose(assigned, "the group has given it to another member")
        if self._options.on_lost is not None:
            self._options.on_lost(sorted(partitions))

    def _lose(self, assigned: AssignedPartition, why: str) -> None:
        """Drop a partition that another member owns, without saving."""
        if assigned.closed:
            return
        logger.warning("%s was lost: %s", assigned.key, why)
        self._counts.lost += 1
        self._close_partition(assigned)
        self.partitions.pop(assigned.partition, None)

    def _release(self, partitions: Sequence[AssignedPartition], budget_s: float) -> None:
        """Let running handlers finish within the budget, save, and release the partitions."""
        for assigned in partitions:
            self._drop_unstarted(assigned)
        deadline_s = self._clock.monotonic_s() + budget_s
        while self._reports.is_pending or any(self._is_busy(assigned) for assigned in partitions):
            self._process_reports()
            for assigned in partitions:
                self._drop_unstarted(assigned)
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                break
            self._waits_for_room = True
            self._reported.wait(min(left_s, _WAIT_S / 4))
            self._reported.clear()
            self._waits_for_room = False
        for assigned in partitions:
            if assigned.closed:
                continue
            unfinished = self._lanes.running(assigned)
            if unfinished and budget_s > 0:
                logger.warning("%s: %d handlers did not finish within %g s", assigned.key, unfinished, budget_s)
            self._save(assigned, last=True)
        self._progress.commit(self._feed, self.partitions.values(), wait=True)
        for assigned in partitions:
            if not assigned.closed:
                self._close_partition(assigned)
                self._counts.revoked += 1
                self._ownership.release(assigned)
                self.partitions.pop(assigned.partition, None)
                self._progress.forget(assigned.partition)

    def _is_busy(self, assigned: AssignedPartition) -> bool:
        if self._options.guarantee is Guarantee.AT_MOST_ONCE:
            return assigned.in_flight > 0 and not assigned.closed
        return self._lanes.running(assigned) > 0 or assigned.open_trees > 0

    def _drop_unstarted(self, assigned: AssignedPartition) -> None:
        """Leave unstarted records to the next owner. At most once, only delayed ones: the others would be lost."""
        assigned.in_flight -= self._delays.forget(assigned)
        if self._options.guarantee is Guarantee.AT_MOST_ONCE:
            return
        assigned.in_flight -= self._lanes.clear(assigned) + len(assigned.suspects)
        assigned.suspects.clear()

    def _finish(self) -> None:
        self._stopping.set()
        try:
            if self._feed is not None:
                self._feed.close()  # revokes all partitions
            partitions = list(self.partitions.values())
            self._release(partitions, self._options.drain_s)
            self._has_finished = True
        except BaseException as error:
            self._has_finished = True
            self._complete_commits([], error)
            raise
        finally:
            self._complete_commits([], ConnectionClosedError("the consumer ended before the commit"))
            self._lanes.close()
            hanging = self._workers.stop(_STOP_S)
            if hanging:
                logger.error("%d workers hang in their handlers and are abandoned", hanging)


def _full_of_delayed(assigned: AssignedPartition) -> str:
    return (
        f"partition {assigned.partition}: {assigned.delayed} records are delayed; no more are read until one is due. "
        "Raise partition_in_flight and in_flight_bytes, or send records with long delays to another topic"
    )


def _cut(batch: Batch, end: Pointer) -> Batch:
    """The records of a batch that come before the end of the run."""
    records = [record for record in batch if record.offset < end]
    return Batch(batch.topic, batch.partition, batch.start, end, records)
