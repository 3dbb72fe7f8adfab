"""The loop of a consumer: read, track, hand out, hear what became of it, save.

One thread runs it and owns all of it but the lanes, which workers share. Each turn is short, whatever handlers do.
"""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from penstock.abc import Clock, GroupFeed, Stream
from penstock.consuming.counts import Counts
from penstock.consuming.dedup import Deduplication
from penstock.consuming.giving_up import GivingUp
from penstock.consuming.lanes import Lanes, Task
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.owning import Owning
from penstock.consuming.progress import Progress
from penstock.consuming.reading import Reading, cut
from penstock.consuming.runners import Report
from penstock.consuming.saving import Saving
from penstock.consuming.settling import Settling
from penstock.consuming.share import Share, awaits_reports
from penstock.consuming.stages import Stages
from penstock.consuming.workers import Workers
from penstock.errors import FencedError, OffsetOutOfRangeError, OutcomeUnknownError
from penstock.model import Batch, Guarantee, Lease, Order, Pointer

logger = logging.getLogger(__name__)

_STOP_S: Final = 1.0
"""How long workers without a task may take to end."""
_WAIT_S: Final = 0.1
"""How long a turn waits for records: the most by which other duties are late."""
_POLL_AT_LEAST_S: Final = 0.1
_OTHERS_EVERY_S: Final = 0.2
"""How often a run that ends by itself looks how far other members have come."""
_MOST_AT_ONCE: Final = 2_000
DEADLY: Final = 5
"""A record whose handling has killed so many processes is given up."""
_REPORTS_AT_ONCE: Final = 100


class Open(Protocol):
    """Joins the group, once the loop is there to listen."""

    def __call__(self, listener: Loop) -> GroupFeed: ...


class Loop:
    """The parts of a consumer at work. `run` returns when it was stopped, has come to its end, or cannot go on."""

    def __init__(
        self,
        stream: Stream,
        options: ConsumerOptions,
        open_feed: Open,
        lanes: Lanes,
        make_workers: Callable[[Callable[[Report], None]], Workers],
        giving_up: GivingUp,
        saving: Saving,
        owning: Owning,
        dedup: Deduplication,
        clock: Clock,
        counts: Counts,
        *,
        outputs_in_transaction: bool,
        stages: Stages | None = None,
        begin_share: Callable[[Share], None] | None = None,
    ) -> None:
        self._stream = stream
        self._options = options
        self._open_feed = open_feed
        self._lanes = lanes
        self._giving_up = giving_up
        self._saving = saving
        self._owning = owning
        self._dedup = dedup
        self._clock = clock
        self._counts = counts
        self._begin_share = begin_share
        self._settling = Settling(
            options, lanes, giving_up, dedup, stages, clock, counts, outputs_in_transaction=outputs_in_transaction
        )
        self._reported = threading.Event()
        self._workers = make_workers(self._hear)
        self._feed: GroupFeed | None = None
        self._has_keys = options.order is Order.KEY
        self._stopping = threading.Event()
        self._waits_for_room = False
        self._awaits_reports = False
        self._others_due_s = 0.0
        self._polled_s = 0.0
        self._progress = Progress(clock)
        self._overdue_s = 0.0
        self._reading = Reading(stream.topic, clock, options.seed)
        self.shares: dict[int, Share] = {}
        self.past: dict[int, tuple[int, int]] = {}
        """Of partitions that were ours: how often records were handled, and how often that succeeded."""
        self.commits: collections.deque[threading.Event] = collections.deque()
        self.seeks: collections.deque[tuple[int, Pointer]] = collections.deque()

    def run(self) -> None:
        """Consume until stopped. What this raises says why it could not go on."""
        self._workers.start()
        try:
            self._feed = self._open_feed(self)
            while not self._stopping.is_set():
                self._settle()
                if self._has_ended():
                    break
                self._turn()
        finally:
            self._finish()

    def stop(self) -> None:
        """Stop reading, finish what handlers have in hand, save, and return from `run`. From any thread."""
        self._stopping.set()
        self._wake()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def commit(self, timeout_s: float | None) -> bool:
        """Save what is finished, with the next turn; wait for that, if there is a timeout. From any thread."""
        saved = threading.Event()
        self.commits.append(saved)
        self._wake()
        return saved.wait(timeout_s) if timeout_s is not None else True

    def seek(self, partition: int, pointer: Pointer) -> None:
        """Go on elsewhere, with the next turn. From any thread."""
        self.seeks.append((partition, pointer))
        self._wake()

    def _wake(self) -> None:
        """Whatever the loop waits for, there is something to do. From any thread."""
        self._reported.set()
        if self._feed is not None:
            self._feed.wake()

    def problems(self) -> list[str]:
        """What keeps it from getting on."""
        breaker = self._giving_up.breaker
        return [
            self._reading.problem,
            self._saving.problem,
            self._giving_up.put_problem,
            f"the circuit is {breaker.circuit}: {breaker.reason}" if breaker.reason else "",
        ]

    def _has_ended(self) -> bool:
        """Whether a run that ends by itself is done: every partition is at its end, ours and those of others.

        One that nobody has may have belonged to a member that died: it will be ours, or another's, before long.
        """
        if self._options.end is None or not all(share.is_at_end for share in self.shares.values()):
            return False
        others = self._owning.ends().keys() - self.shares.keys()
        if others:
            now_s = self._clock.monotonic_s()
            if now_s < self._others_due_s:
                return False
            self._others_due_s = now_s + _OTHERS_EVERY_S
        return all(self._owning.is_finished_by_others(partition) for partition in others)

    def _turn(self) -> None:
        self._giving_up.gate()
        self._give_overdue_away()
        while self.seeks:
            self._seek(*self.seeks.popleft())
        asked = [self.commits.popleft() for _ in range(len(self.commits))]
        self._save_what_is_due(now=bool(asked))
        for saved in asked:
            saved.set()
        room = self._room()
        if room < self._options.in_flight // 4:
            room = self._wait_for_room()
            if room <= 0:
                return
        if self._reading.must_wait:
            self._reported.wait(_WAIT_S / 2)
            self._reported.clear()
            return
        self._awaits_reports = awaits_reports(self.shares.values())
        self._begin(self._poll(min(room, _MOST_AT_ONCE), 0.0 if self._settling.has_news else _WAIT_S))

    def _room(self) -> int:
        in_flight, in_flight_bytes = 0, 0.0
        for share in self.shares.values():
            in_flight += share.in_flight
            in_flight_bytes += share.in_flight * share.record_bytes
            self._pause_or_resume(share)
        if in_flight_bytes >= self._options.in_flight_bytes:
            return 0
        return self._options.in_flight - in_flight

    def _pause_or_resume(self, share: Share) -> None:
        """A partition that is stuck must not take the room of the others."""
        assert self._feed is not None
        if share.paused:
            if share.in_flight <= self._options.partition_in_flight // 2:
                share.paused = False
                self._feed.resume(share.partition)
        elif share.in_flight >= self._options.partition_in_flight and len(self.shares) > 1:
            share.paused = True
            self._feed.pause(share.partition)

    def _wait_for_room(self) -> int:
        """Wait until there is room for many records, for a while: to read them one by one costs a save for each."""
        until_s = self._clock.monotonic_s() + _WAIT_S / 2
        room = 0
        self._waits_for_room = True
        while not self._stopping.is_set():
            self._reported.wait(_WAIT_S / 10)
            self._reported.clear()
            self._settle()
            room = self._room()
            if room >= self._options.in_flight // 4 or self._clock.monotonic_s() >= until_s:
                break
        self._waits_for_room = False
        if room <= 0 and self._clock.monotonic_s() - self._polled_s >= _POLL_AT_LEAST_S:
            self._begin(self._poll(1, 0.0))  # the group wants to be heard of, room or not
        return room

    def _poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        assert self._feed is not None
        self._polled_s = self._clock.monotonic_s()
        try:
            return self._reading.poll(self._feed, limit, wait_s)
        except OffsetOutOfRangeError as error:
            self._expired(error)
            return ()

    def _begin(self, batches: Sequence[Batch]) -> None:
        """Track what has come, save where it ends, and only then hand it out."""
        begun: list[tuple[Share, Batch, list[tuple[int, int]]]] = []
        for batch in batches:
            share = self.shares.get(batch.partition)
            if share is None:
                continue
            if share.end is not None and batch.next > share.end:
                if batch.start >= share.end:
                    continue
                batch = cut(batch, share.end)
            with share.tracker.lock:
                spans = share.tracker.read(batch)
                count = sum(high - low for low, high in spans)
                share.in_flight += count
                spans = self._dedup.admit(share, batch, spans)
            if count:
                share.weigh(batch)
            begun.append((share, batch, spans))
        for share in {id(share): share for share, _, _ in begun}.values():
            if self._options.guarantee is Guarantee.AT_MOST_ONCE:
                self._commit_first(share, begun)
            self._save(share)
        for share, batch, spans in begun:
            if share.closed or not spans:
                continue
            if batch.start < share.suspects_end or share.suspects:  # what stands behind suspects waits for them
                share.suspects.extend((batch, index) for low, high in spans for index in range(low, high))
                self._try_suspect(share)
            else:
                self._lanes.put(share, batch, spans, batch.keys() if self._has_keys else ())

    def _commit_first(self, share: Share, begun: Sequence[tuple[Share, Batch, list[tuple[int, int]]]]) -> None:
        """At most once: everything counts as finished before any of it is handled."""
        for of, batch, spans in begun:
            if of is share:
                for low, high in spans:
                    share.tracker.succeeded(batch.edge(low), batch.edge(high), 0, self._clock.wall_ms())

    def _try_suspect(self, share: Share) -> None:
        """One of these records may have killed those who handled it: one at a time, and noted before it is tried."""
        while share.suspects and share.in_flight == len(share.suspects) + self._dedup.waiting(share):
            batch, index = share.suspects.popleft()
            pointer = batch.pointer(index)
            if pointer >= share.suspects_end:
                self._settling.put_freed([(share, batch, index), *((share, *each) for each in share.suspects)])
                share.suspects.clear()
                return
            with share.tracker.lock:
                deaths = share.tracker.begin_carefully(pointer)
            self._save(share)
            if share.closed:
                return
            if deaths > DEADLY:
                self._giving_up.killer(share, batch, index)
                return
            self._settling.put_freed([(share, batch, index)])

    def _hear(self, report: Report) -> None:
        """Called by workers."""
        self._settling.reports.append(report)
        if report.error is not None or self._awaits_reports:
            self._wake()
        elif self._waits_for_room and len(self._settling.reports) >= _REPORTS_AT_ONCE:
            self._reported.set()

    def tree_settled(self, task: Task, index: int, error: BaseException | None) -> None:
        """All tasks that a record forked into have ended, or one has failed. Called by whoever saw it."""
        self._settling.trees.append((task, index, error))
        if self._waits_for_room or self._awaits_reports or error is not None:
            self._wake()

    def _settle(self) -> None:
        """Take in what workers have reported."""
        for share, error in self._settling.settle():
            if isinstance(error, OutcomeUnknownError):
                self._take_again(share, error)
            else:
                self.lose(share, str(error))
        for share in list(self.shares.values()):
            if share.suspects:
                self._try_suspect(share)

    def _give_overdue_away(self) -> None:
        """A record whose handler takes too long is given to another worker. Whoever is first counts."""
        visibility_s = self._options.visibility_s
        now_s = self._clock.monotonic_s()
        if visibility_s is None or now_s < self._overdue_s:
            return
        self._overdue_s = now_s + min(_WAIT_S, visibility_s / 4)
        for task in self._lanes.abandon_overdue(visibility_s):
            share = task.share
            if share.closed:
                continue
            error = TimeoutError(f"its handler did not return within {visibility_s:g} s")
            logger.warning("%s: %s; it is given to another worker", task.batch[task.low].place, error)
            self._workers.replace_one()
            with share.tracker.lock:
                self._giving_up.failed(Report(task, task.low, error))

    def _seek(self, partition: int, pointer: Pointer) -> None:
        share = self.shares.get(partition)
        if share is None:
            logger.warning("partition %d is not ours: it stays where it is", partition)
            return
        assert self._feed is not None
        self._forget(share)
        self._hold(self._owning.restarted(share, pointer))
        self._save(self.shares[partition])
        self._feed.seek(partition, pointer)

    def _take_again(self, share: Share, error: OutcomeUnknownError) -> None:
        """Nobody knows whether a transaction counts. A new claim ends it for good, and the checkpoint tells."""
        logger.warning("%s is claimed and loaded again: %s", share.key, error)
        assert self._feed is not None
        self._forget(share)
        taken = self._hold(self._owning.take(share.partition, None))
        self._feed.seek(share.partition, taken.tracker.position)

    def _hold(self, share: Share) -> Share:
        """From now on the partition is worked on as this share."""
        if self._begin_share is not None:
            self._begin_share(share)
        self.shares[share.partition] = share
        return share

    def _forget(self, share: Share) -> None:
        """Hear no more of what is under way in a share, and drop what is not."""
        share.closed = True
        self.past[share.partition] = (share.tracker.processed, share.tracker.delivered)
        self._lanes.clear(share)
        self._giving_up.forget(share)
        self._settling.put_freed(self._dedup.forget(share))

    def _save_what_is_due(self, *, now: bool) -> None:
        now_s = self._clock.monotonic_s()
        for share in list(self.shares.values()):
            pending = share.tracker.dirty or share.uncommitted
            idle = share.in_flight == share.uncommitted_count
            if pending and (now or idle or now_s - share.saved_s >= self._options.commit_interval_s):
                self._save(share)
        self._progress.show(self._feed, self.shares.values(), wait=False)

    def _save(self, share: Share, *, last: bool = False) -> None:
        if share.closed:
            return
        try:
            self._saving.save(share, last=last)
        except FencedError as error:
            self.lose(share, str(error))
        except OutcomeUnknownError as error:
            if last:  # nobody goes on with it here: the next owner's claim settles what happened
                self.lose(share, str(error))
            else:
                self._take_again(share, error)

    def _expired(self, error: OffsetOutOfRangeError) -> None:
        """Records are gone before they were read: go on where the policy says, or not at all."""
        share = self.shares.get(error.partition)
        if share is None:
            return
        if self._options.on_expired is None:
            raise error
        pointer = max(self._stream.locate(error.partition, self._options.on_expired), error.start)
        logger.error("%s; going on at %d", error, pointer)
        with share.tracker.lock:
            if pointer > share.tracker.position:
                self._counts.expired += pointer - share.tracker.position
                share.tracker.skipped(share.tracker.position, pointer, "deleted by retention before it was read")
            else:
                share.tracker.position = pointer
        assert self._feed is not None
        self._feed.seek(error.partition, pointer)

    # What the group tells, from inside `poll` and `close`.

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        starts = {}
        for partition, lease in partitions.items():
            starts[partition] = self._hold(self._owning.take(partition, lease)).tracker.position
            self._counts.assigned += 1
        if self._options.on_assigned is not None:
            self._options.on_assigned(sorted(partitions))
        return starts

    def revoked(self, partitions: Sequence[int]) -> None:
        shares = [self.shares[partition] for partition in partitions if partition in self.shares]
        self._hand_back(shares, self._options.drain_s if self._stopping.is_set() else self._options.revoke_s)
        if self._options.on_revoked is not None:
            self._options.on_revoked(sorted(partitions))

    def lost(self, partitions: Sequence[int]) -> None:
        for share in [self.shares[partition] for partition in partitions if partition in self.shares]:
            self.lose(share, "the group has given it to another member")
        if self._options.on_lost is not None:
            self._options.on_lost(sorted(partitions))

    def lose(self, share: Share, why: str) -> None:
        """Somebody else owns the partition: stop, and write nothing."""
        if share.closed:
            return
        logger.warning("%s is no longer ours: %s", share.key, why)
        self._counts.lost += 1
        self._forget(share)
        self.shares.pop(share.partition, None)

    def _hand_back(self, shares: Sequence[Share], budget_s: float) -> None:
        """Finish what handlers have in hand, within the budget, save, and let go."""
        for share in shares:
            self._drop_unbegun(share)
        deadline_s = self._clock.monotonic_s() + budget_s
        while self._settling.has_news or any(self._is_busy(share) for share in shares):
            self._settle()
            for share in shares:
                self._drop_unbegun(share)
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                break
            self._waits_for_room = True
            self._reported.wait(min(left_s, _WAIT_S / 4))
            self._reported.clear()
            self._waits_for_room = False
        for share in shares:
            if share.closed:
                continue
            unfinished = self._lanes.running(share)
            if unfinished and budget_s > 0:
                logger.warning("%s: %d handlers did not finish within %g s", share.key, unfinished, budget_s)
            self._save(share, last=True)
        self._progress.show(self._feed, self.shares.values(), wait=True)
        for share in shares:
            if not share.closed:
                self._forget(share)
                self._counts.revoked += 1
                self._owning.give_back(share)
                self.shares.pop(share.partition, None)
                self._progress.forget(share.partition)

    def _is_busy(self, share: Share) -> bool:
        if self._options.guarantee is Guarantee.AT_MOST_ONCE:
            return share.in_flight > 0 and not share.closed
        return self._lanes.running(share) > 0 or share.open_trees > 0

    def _drop_unbegun(self, share: Share) -> None:
        """What no worker has begun is for the next owner; but at most once, it would be lost."""
        if self._options.guarantee is Guarantee.AT_MOST_ONCE:
            return
        share.in_flight -= self._lanes.clear(share) + len(share.suspects)
        share.suspects.clear()

    def _finish(self) -> None:
        self._stopping.set()
        try:
            if self._feed is not None:
                self._feed.close()  # hands everything back
            self._hand_back(list(self.shares.values()), self._options.drain_s)
        finally:
            self._lanes.close()
            hanging = self._workers.stop(_STOP_S)
            if hanging:
                logger.error("%d workers still hang in their handlers; they are left behind", hanging)
