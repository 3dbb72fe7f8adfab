"""Queue semantics on a log: the members of a group divide the partitions of a stream record by record."""

from __future__ import annotations

import collections
import functools
import itertools
import logging
import math
import random
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from penstock.abc import CheckpointStore, Clock, Delivery, Feature, Features, Outcome, TopicStream
from penstock.consuming.loop.polling_feed import feed_of
from penstock.consuming.queue.claim_checkpoint import ClaimCheckpoint, OwnedError
from penstock.consuming.queue.claims import ClaimTable, Run
from penstock.consuming.queue.delivery import QueueDelivery, adjacent_runs, count_between, deliveries_of, ours, too_late
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    OffsetOutOfRangeError,
    StoreUnavailableError,
    UnknownTopicError,
)
from penstock.model import Batch, CheckpointKey, Claim, NewRecord, Pointer, Position, Status

logger = logging.getLogger(__name__)

_REREAD_S: Final = 5.0
"""How long to wait for a record that is known to exist."""
_PARTITIONS_EVERY_S: Final = 5.0
_TOPIC_SOON_S: Final = 0.5
_LOOK_S: Final = 1.0
"""How often to check for records that others released or died with, while waiting for new ones."""

Answer = TypeVar("Answer")


class StreamQueue:
    """`abc.Queue` on a stream: single records are delivered to whichever member of the group asks first.

    So more members than partitions can work, and a slow record holds up only itself; the price is order. Each group
    gets every record; the members of a group divide them. A received record must be settled or extended within
    `visibility_s`; otherwise a member that has seen its claim unchanged for that long, by its own clock, takes it as
    the next attempt, and settling it raises StaleDeliveryError. Wall clocks are not compared, so a new member waits for
    one whole `visibility_s` before it takes over what dead members have left.

    All members share one checkpoint for each partition in the store, which needs `Feature.LEASES`, and change it by
    compare-and-set. `receive` costs one change for each partition that delivers records, and `settle` costs one;
    threads that settle at the same time share one, and so does `settle_all`. At-least-once: kill -9 of any member loses
    nothing.

    `start` is where a group without a checkpoint starts, and `on_expired` where it continues when records have expired
    before they were received; without it, `receive` raises OffsetOutOfRangeError. Closing it leaves the
    stream and the store open.
    """

    def __init__(
        self,
        stream: TopicStream,
        store: CheckpointStore,
        group: str,
        *,
        member: str,
        visibility_s: float = 30.0,
        clock: Clock,
        start: Position = Position.EARLIEST,
        on_expired: Position | None = None,
    ) -> None:
        if Feature.LEASES not in store.features:
            raise ConfigError(
                f"sharing partitions needs a store that several processes can write: {type(store).__name__} has no "
                f"{Feature.LEASES}"
            )
        if not group or not member:
            raise ConfigError("a group and its members need non-empty names")
        if not visibility_s > 0:
            raise ConfigError(f"visibility_s={visibility_s!r} must be positive")
        self._stream = stream
        self._store = store
        self._group = group
        self._owner = f"{member}/{secrets.token_hex(4)}"
        self._visibility_ms = max(1, round(visibility_s * 1000))
        self._clock = clock
        self._start = start
        self._on_expired = on_expired
        self._random = random.Random()
        self._feed = feed_of(stream, clock)
        self._receiving = threading.Lock()
        self._by_partition: dict[int, ClaimCheckpoint] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._live: dict[int, int] = {}
        """Numbers of our claims, with how many unsettled records each has. Other claims under our name come from
        changes whose outcome is unknown."""
        self._partitions_due_s = self._look_due_s = float("-inf")
        self._resting: set[int] = set()
        """Partitions that another member owns as a whole, until the next check."""
        self._closed = False

    @property
    def name(self) -> str:
        return self._stream.topic

    @property
    def visibility_timeout_s(self) -> float:
        return self._visibility_ms / 1000

    @property
    def features(self) -> Features:
        kept = self._stream.features & {Feature.KEYS, Feature.HEADERS, Feature.PARTITIONS, Feature.CHOSEN_PARTITION}
        if Feature.DURABLE in self._stream.features & self._store.features:
            kept |= {Feature.DURABLE}
        return kept | {Feature.REDELIVERY, Feature.DELAYED_REDELIVERY, Feature.DELIVERY_COUNT}

    def receive(self, limit: int, wait_s: float) -> Sequence[QueueDelivery]:
        """Deliveries of this member's claims, as in `abc.Queue`. Records that others failed to settle come first."""
        try:
            return self._receive(limit, wait_s)
        except OffsetOutOfRangeError as error:
            if self._on_expired is None:
                raise
            pointer = max(self._stream.locate(error.partition, self._on_expired), error.start)
            logger.error("%s; continuing at %d", error, pointer)
            self.skip_to(error.partition, pointer)
            return []

    def _receive(self, limit: int, wait_s: float) -> Sequence[QueueDelivery]:
        if limit < 1:
            raise ConfigError(f"limit={limit!r} must be positive")
        until_s = self._clock.monotonic_s() + wait_s
        if not self._receiving.acquire(timeout=max(0.0, wait_s)):
            return []
        try:
            while True:
                self._check_open()
                self._find_partitions()
                shared = self._receive_again(limit) or self._receive_new(limit, until_s)
                if shared or (shared is None and self._clock.monotonic_s() >= until_s):
                    return shared or []
        finally:
            self._receiving.release()

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        if late := self.settle_all([delivery], outcome, delay_s):
            raise too_late(late[0], self._group)

    def settle_all(
        self, deliveries: Sequence[Delivery], outcome: Outcome = Outcome.DONE, delay_s: float = 0.0, reason: str = ""
    ) -> Sequence[QueueDelivery]:
        """Settle many, with one change for each partition. Returns those that were too late. `reason` is kept in the
        history."""
        self._check_open()
        is_again = outcome in (Outcome.RETRY, Outcome.RELEASE)
        if delay_s < 0 or (delay_s and not is_again):
            raise ConfigError(f"delay_s={delay_s!r} with {outcome}: a delay is for RETRY or RELEASE")
        late: list[QueueDelivery] = []
        for partition, settled in _by_partition(deliveries).items():
            late += self._settle(self._by_partition[partition], settled, outcome, math.ceil(delay_s * 1000), reason)
        if is_again:
            self._look_due_s = float("-inf")
            self._feed.wake()
        return late

    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[QueueDelivery]:
        """Restart the `visibility_s` of these deliveries, with one change for each partition. Returns those that
        another member has."""
        self._check_open()
        late: list[QueueDelivery] = []
        for partition, held in _by_partition(deliveries).items():
            late += self._extend(self._by_partition[partition], sorted(held, key=lambda each: each.first))
        return late

    def _extend(self, checkpoint: ClaimCheckpoint, held: Sequence[QueueDelivery]) -> Sequence[QueueDelivery]:
        numbers = {id(each): self._new_number(1) for each in held}

        def edit(table: ClaimTable) -> list[list[QueueDelivery]]:
            extended: list[list[QueueDelivery]] = []
            runs = list(adjacent_runs(held))
            while runs:
                run = runs.pop()
                place = (run[0].first, run[-1].end, checkpoint.owner, run[0].number)
                if table.extend(*place, as_number=numbers[id(run[0])], lasts_ms=self._visibility_ms):
                    extended.append(run)
                elif len(run) > 1:
                    runs += [[each] for each in run]
            return extended

        try:
            extended = checkpoint.change(edit)
        except OwnedError:
            extended = []
        except BaseException:
            for number in numbers.values():
                self._forget(number, 1)
            raise
        kept = {id(each) for run in extended for each in run}
        for run in extended:
            number = numbers[id(run[0])]
            with self._lock:
                self._live[number] = len(run)
            for each in run:
                self._forget(each.number, 1)
                each.number = number
        for each in held:
            if numbers[id(each)] != each.number:
                self._forget(numbers[id(each)], 1)
        return [each for each in held if id(each) not in kept]

    def send(self, records: Sequence[NewRecord]) -> None:
        self._check_open()
        for receipt in list(self._stream.append(records)):
            receipt.result()

    def skip_to(self, partition: int, pointer: Pointer) -> None:
        """Finish all records of a partition before this pointer, whoever has them; for example, expired ones."""
        self._check_open()
        with self._receiving:
            checkpoint = self._checkpoint(partition)
            checkpoint.change(lambda table: table.skip_to(pointer))
            self._feed.add(partition, checkpoint.seen().next)

    def close(self) -> None:
        """Release unsettled records, for others to take at once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._feed.wake()
        with self._receiving:
            self._feed.close()
            for checkpoint in self._by_partition.values():
                self._hand_back_all(checkpoint)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the queue on {self._stream.topic!r} of group {self._group!r} is closed")

    def _find_partitions(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._partitions_due_s:
            return
        self._partitions_due_s = now_s + _TOPIC_SOON_S
        try:
            partitions = self._stream.partitions()
        except UnknownTopicError:
            return
        resting, self._resting = self._resting, set()
        for partition in partitions:
            if partition not in self._by_partition or partition in resting:
                checkpoint = self._checkpoint(partition)
                try:
                    self._feed.add(partition, checkpoint.begin().next)
                    self._by_partition[partition] = checkpoint
                except OwnedError as error:
                    self._rest(partition, error)
        if partitions and not self._resting:
            self._partitions_due_s = now_s + _PARTITIONS_EVERY_S

    def _rest(self, partition: int, error: OwnedError) -> None:
        logger.warning("%s waits: %s", self._owner, error)
        self._resting.add(partition)
        self._feed.remove(partition)

    def _checkpoint(self, partition: int) -> ClaimCheckpoint:
        if partition in self._by_partition:
            return self._by_partition[partition]
        key = CheckpointKey(self._group, self._stream.topic, partition)
        stream, start = self._stream, self._start
        first = functools.partial(stream.locate, partition, start)
        return ClaimCheckpoint(self._store, key, self._owner, self._clock, self._random, first)

    def _new_number(self, records: int) -> int:
        """A number for a claim on `records` records. It is registered before the claim is made."""
        with self._lock:
            number = next(self._numbers)
            self._live[number] = records
        return number

    def _forget(self, number: int, records: int) -> None:
        """Note that `records` records of a claim are settled or lost."""
        with self._lock:
            self._live[number] = self._live.get(number, 0) - records
            if self._live[number] <= 0:
                del self._live[number]

    def _receive_again(self, limit: int) -> list[QueueDelivery]:
        """Receive records that wait to be delivered again."""
        now_s = self._clock.monotonic_s()
        is_due = now_s >= self._look_due_s
        if is_due:
            self._look_due_s = now_s + min(_LOOK_S, self._visibility_ms / 4000)
        shared: list[QueueDelivery] = []
        for partition, checkpoint in sorted(self._by_partition.items(), key=lambda _: self._random.random()):
            table = checkpoint.look() if is_due else checkpoint.seen()
            parts = list(table.waiting(functools.partial(self._is_over, checkpoint)))
            for part in parts:
                if len(shared) == limit:
                    return shared
                try:
                    shared += self._take_again(checkpoint, partition, part, limit - len(shared))
                except (StoreUnavailableError, OffsetOutOfRangeError, OwnedError) as error:
                    if not shared and not isinstance(error, OwnedError):
                        raise
                    logger.warning("%s could not claim waiting records of %s: %s", self._owner, checkpoint.key, error)
                    break
            if (end_s := checkpoint.watch.next_end_s(table.claims)) is not None:
                self._look_due_s = min(self._look_due_s, end_s)
        return shared

    def _is_over(self, checkpoint: ClaimCheckpoint, claim: Claim) -> bool:
        return checkpoint.watch.is_over(claim) or (claim.owner == checkpoint.owner and claim.number not in self._live)

    def _take_again(self, checkpoint: ClaimCheckpoint, partition: int, part: Claim, limit: int) -> list[QueueDelivery]:
        batch = self._stream.read(partition, part.first, limit, _REREAD_S)
        if batch.next == batch.start:
            logger.warning("%s at %d was not read within %g s; retrying", checkpoint.key, part.first, _REREAD_S)
            return []
        part = replace(part, end=min(part.end, batch.next))
        count = count_between(batch, part.first, part.end)
        number = self._new_number(count)

        def edit(table: ClaimTable) -> int | None:
            attempt = table.take_again(part, checkpoint.owner, number, self._visibility_ms)
            if attempt is not None:
                self._handed_out(checkpoint, table, count, (part.first, part.end), number)
            return attempt

        attempt = self._claiming(checkpoint, edit, number)
        if attempt is None or not count:
            self._live.pop(number, None)
            return []
        return deliveries_of(batch, part.first, part.end, attempt, number, self._clock.wall_ms())

    def _receive_new(self, limit: int, until_s: float) -> list[QueueDelivery] | None:
        """Receive records that were never delivered, as soon as there are any; None when it is time to check others.

        Empty when other members were faster: there may be more after what they took.
        """
        now_s = self._clock.monotonic_s()
        wait_s = max(0.0, min(until_s, self._look_due_s, self._partitions_due_s) - now_s)
        try:
            batches = self._feed.poll(limit, wait_s)
        except OffsetOutOfRangeError as error:
            next_ = self._by_partition[error.partition].look().next
            self._feed.add(error.partition, next_)
            if next_ == error.offset:
                raise
            return []
        if not batches:
            return None
        shared: list[QueueDelivery] = []
        failure: StoreUnavailableError | None = None
        for batch in batches:
            try:
                shared += self._take_new(batch)
            except StoreUnavailableError as error:
                self._feed.add(batch.partition, batch.start)
                failure = error
            except OwnedError as error:
                self._rest(batch.partition, error)
        if failure is not None and not shared:
            raise failure
        return shared

    def _take_new(self, batch: Batch) -> list[QueueDelivery]:
        checkpoint = self._by_partition[batch.partition]
        number = self._new_number(len(batch))

        def edit(table: ClaimTable) -> tuple[Run | None, Pointer]:
            run = table.take_new(batch.start, batch.next, checkpoint.owner, number, self._visibility_ms)
            if run is not None:
                self._handed_out(checkpoint, table, count_between(batch, *run), run, number)
            return run, table.next

        run, next_ = self._claiming(checkpoint, edit, number)
        if run is None:
            self._live.pop(number, None)
            if next_ != batch.next:
                self._feed.add(batch.partition, next_)
            return []
        taken = deliveries_of(batch, *run, 1, number, self._clock.wall_ms())
        self._live[number] = len(taken)
        return taken

    def _claiming(self, checkpoint: ClaimCheckpoint, edit: Callable[[ClaimTable], Answer], number: int) -> Answer:
        """Make a change that claims records. If its outcome is unknown, the claim counts as not made."""
        try:
            return checkpoint.change(edit)
        except BaseException:
            self._live.pop(number, None)
            raise

    def _handed_out(self, checkpoint: ClaimCheckpoint, table: ClaimTable, count: int, run: Run, number: int) -> None:
        table.processed += count
        if not count:  # no record is left there, for example after compaction
            table.finish(*run, checkpoint.owner, number)

    def _settle(
        self, checkpoint: ClaimCheckpoint, shared: Sequence[QueueDelivery], outcome: Outcome, delay_ms: int, error: str
    ) -> Sequence[QueueDelivery]:
        status = _STATUS.get(outcome)
        settled = sorted(shared, key=lambda each: each.first)

        def edit(table: ClaimTable) -> list[QueueDelivery]:
            late: list[QueueDelivery] = []
            together = outcome in (Outcome.DONE, Outcome.RELEASE)
            runs = list(adjacent_runs(settled)) if together else [[each] for each in settled]
            while runs:
                run = runs.pop()
                if self._settle_run(table, checkpoint, run, outcome, delay_ms, error):
                    if status is not None:
                        first = run[0]
                        checkpoint.add_history(first.first, run[-1].end, status, first.attempt, error, first.begun_ms)
                elif len(run) > 1:
                    runs += [[each] for each in run]
                else:
                    late += run
            return late

        try:
            late = checkpoint.change(edit)
        except OwnedError:
            late = list(shared)
        except StoreUnavailableError:
            for each in shared:
                each.unsure = True
            raise
        for number, count in collections.Counter(each.number for each in shared).items():
            self._forget(number, count)
        return late

    def _settle_run(
        self,
        table: ClaimTable,
        checkpoint: ClaimCheckpoint,
        run: Sequence[QueueDelivery],
        outcome: Outcome,
        delay_ms: int,
        error: str,
    ) -> bool:
        """Settle adjacent deliveries of one claim. False, and no change, when the claim is no longer valid."""
        place = (run[0].first, run[-1].end, checkpoint.owner, run[0].number)
        if outcome in (Outcome.RETRY, Outcome.RELEASE):
            number = self._random.getrandbits(48)
            uncounted = outcome is Outcome.RELEASE
            if not table.release(*place, after_ms=delay_ms, as_number=number, uncounted=uncounted):
                return False
            if not uncounted:
                table.failed(run[0].record.offset, error, self._clock.wall_ms())
            return True
        if not table.finish(*place):
            return all(each.unsure and table.is_finished(each.first) for each in run)
        table.delivered += len(run) if outcome is Outcome.DONE else 0
        return True

    def _hand_back_all(self, checkpoint: ClaimCheckpoint) -> None:
        try:
            checkpoint.change(lambda table: table.release_all(checkpoint.owner))
            checkpoint.close()
        except (StoreUnavailableError, OwnedError) as error:
            logger.warning("%s could not release its records: %s. Others get them later", self._owner, error)


def _by_partition(deliveries: Sequence[Delivery]) -> dict[int, list[QueueDelivery]]:
    found: dict[int, list[QueueDelivery]] = {}
    for delivery in map(ours, deliveries):
        found.setdefault(delivery.record.partition, []).append(delivery)
    return found


_STATUS: Final = {Outcome.DONE: Status.SUCCEEDED, Outcome.RETRY: Status.FAILED, Outcome.REJECT: Status.EXHAUSTED}
