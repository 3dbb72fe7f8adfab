"""A queue in the consumer's loop: deliveries are received, and settled where a stream saves a checkpoint."""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.abc import BatchSettling, Clock, Delivery, Extending, Feature, GroupListener, Outcome, Queue
from penstock.consuming.counts import Counts
from penstock.consuming.loop.assigned_partition import AssignedPartition
from penstock.consuming.loop.tracker import Tracker
from penstock.errors import BrokerUnavailableError, ConfigError, StaleDeliveryError, StoreUnavailableError, StreamError
from penstock.model import Batch, Checkpoint, CheckpointKey, Failing, Lease, Pointer, Record, due_ms
from penstock.model.retry import Retry

logger = logging.getLogger(__name__)

UNAVAILABLE: Final = (StreamError, BrokerUnavailableError, StoreUnavailableError)
_STOP_S: Final = 5.0
"""How long to wait for the last extension when a consumer stops."""
_AGAIN: Final = Retry(attempts=None, first_delay_s=0.1, max_delay_s=5.0)
"""The pauses between attempts to settle."""
_SETTLED_WITHIN_S: Final = 60.0
"""How long settling is tried again before it is left to the queue to deliver the records again."""


class DeliveryBatch(Batch):
    """Records of a queue. Their pointers count what this consumer has received; `offset` is the queue's own."""

    __slots__ = ()

    def __init__(self, name: str, start: Pointer, records: Sequence[Record]) -> None:
        super().__init__(name, 0, start, start + len(records), records)

    def pointer(self, index: int) -> Pointer:
        return self.start + index

    def pointers(self) -> Sequence[Pointer]:
        return range(self.start, self.next)


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a delivery that was not handled is to be settled."""

    delivery: Delivery
    outcome: Outcome
    delay_s: float
    reason: str

    @property
    def kind(self) -> tuple[Outcome, float, str]:
        return self.outcome, self.delay_s, self.reason


class DeliveryTracker(Tracker):
    """The deliveries that a consumer holds, and those that it has finished and not yet settled."""

    def __init__(self, key: CheckpointKey, *, owner: str, handler: str, clock: Clock, is_counted: bool) -> None:
        super().__init__(key, Checkpoint(0, 0), owner=owner, handler=handler, clock=clock)
        self._is_counted = is_counted
        self.held: dict[Pointer, Delivery] = {}
        self.done: list[Delivery] = []
        self.settlements: list[Settlement] = []

    def add(self, deliveries: Sequence[Delivery]) -> DeliveryBatch:
        """Number new deliveries. Earlier deliveries of a record are failed attempts, where the queue counts those."""
        batch = DeliveryBatch(self.key.topic, self.position, [delivery.record for delivery in deliveries])
        now_ms = self._clock.wall_ms()
        for pointer, delivery in zip(batch.pointers(), deliveries, strict=True):
            self.held[pointer] = delivery
            if delivery.attempt > 1 and self._is_counted:
                self._failing[pointer] = Failing(pointer, delivery.attempt - 1, "", now_ms, now_ms)
        return batch

    def succeeded(self, first: Pointer, end: Pointer, count: int, begun_ms: int) -> None:
        self.delivered += count
        self._finish(first, end)

    def gave_up(self, pointer: Pointer, first: Pointer, end: Pointer, error: str) -> None:
        self._settle(pointer, Outcome.REJECT, 0.0, error)
        super().gave_up(pointer, first, end, error)

    def redeliver(self, pointer: Pointer, delay_s: float, reason: str) -> None:
        """Return a failed record to the queue, which delivers it again after a delay."""
        self._settle(pointer, Outcome.RETRY, delay_s, reason)
        self._failing.pop(pointer, None)
        self._finish(pointer, pointer + 1)

    def saved(self) -> None:
        super().saved()
        self.is_urgent = False

    def _settle(self, pointer: Pointer, outcome: Outcome, delay_s: float, reason: str) -> None:
        self.settlements.append(Settlement(self.held.pop(pointer), outcome, delay_s, reason))
        self.is_urgent = True

    def _finish(self, first: Pointer, end: Pointer) -> None:
        super()._finish(first, end)
        for pointer in range(first, end):
            delivery = self.held.pop(pointer, None)
            if delivery is not None:
                self.done.append(delivery)

    def _add_history(self, *entry: object) -> None:
        """Nothing to do: a queue has no history."""


class DeliverySettler:
    """Settles what is finished, and extends what is not. It stands where a stream has `CheckpointSaver` and
    `Ownership`."""

    def __init__(self, queue: Queue, group: str, member: str, handler: str, clock: Clock, counts: Counts) -> None:
        self._queue = queue
        self._clock = clock
        self._counts = counts
        self._lock = threading.Lock()
        """Extending may change a delivery that is about to be settled."""
        self._stopping = threading.Event()
        self._extender: threading.Thread | None = None
        is_counted = Feature.DELIVERY_COUNT in queue.features
        self.tracker = DeliveryTracker(
            CheckpointKey(group, queue.name, 0), owner=member, handler=handler, clock=clock, is_counted=is_counted
        )
        lease = Lease(group, self.tracker.key.lease_name, member, 0, 0)
        self.assigned = AssignedPartition(self.tracker.key, lease, self.tracker, clock, {}, suspects_end=0)
        """The deliveries, as the one partition of the loop."""
        self.problem = ""
        """Why nothing can be settled at the moment."""
        self._unsettled: list[Settlement] = []
        """Could not be settled, and will be tried again."""
        self._failures = 0
        """Attempts to settle that failed in a row."""
        self._failing_since_s = self._again_s = 0.0
        self._random = random.Random()
        self.stale = 0
        """Deliveries that were handled too late: their records are delivered again."""

    def take(self, partition: int, lease: Lease | None) -> AssignedPartition:
        """Begin to hold deliveries."""
        if self._queue.features >= {Feature.REDELIVERY, Feature.DELAYED_REDELIVERY, Feature.DELIVERY_COUNT}:
            self.assigned.redeliver = self.tracker.redeliver
        if isinstance(self._queue, Extending):
            name = f"penstock-extend-{self._queue.name}"
            self._extender = threading.Thread(target=self._extend, args=(self._queue,), name=name, daemon=True)
            self._extender.start()
        return self.assigned

    def is_claimed(self, assigned: AssignedPartition) -> bool:
        return False

    def restart_at(self, assigned: AssignedPartition, pointer: Pointer) -> AssignedPartition:
        raise ConfigError(f"queue {self._queue.name!r} has no pointers: seek works on streams")

    def ends(self) -> dict[int, Pointer]:
        return {}

    def is_finished_by_others(self, partition: int) -> bool:
        return True

    def release(self, assigned: AssignedPartition) -> None:
        """Return everything that is not finished to the queue, for others to take at once."""
        self._stopping.set()
        if self._extender is not None:
            self._extender.join(_STOP_S)
        held, self.tracker.held = list(self.tracker.held.values()), {}
        self._unsettled = []
        self._settle(held, Outcome.RELEASE, 0.0, "", last=True)

    def save(self, assigned: AssignedPartition, *, last: bool = False) -> None:
        """Settle what is finished. While the queue is unavailable, it is tried again; in the end, and when `last`, the
        queue delivers those records again."""
        tracker = self.tracker
        if self._unsettled and not last and self._clock.monotonic_s() < self._again_s:
            return
        with tracker.lock:
            done, tracker.done = tracker.done, []
            settlements, tracker.settlements = tracker.settlements, []
            tracker.saved()
        settlements += self._unsettled
        self._unsettled = []
        assigned.saved_s = began_s = self._clock.monotonic_s()
        self._settle(done, Outcome.DONE, 0.0, "", last=last)
        settlements.sort(key=lambda each: each.kind)
        for kind, each in itertools.groupby(settlements, key=lambda each: each.kind):
            self._settle([settlement.delivery for settlement in each], *kind, last=last)
        if not self._unsettled:
            self._failures = 0
        if done or settlements:
            self._counts.saving.add(self._clock.monotonic_s() - began_s)

    @property
    def unsettled(self) -> int:
        """How many deliveries wait for a queue that could not settle them."""
        return len(self._unsettled) + len(self.tracker.done) if self._unsettled else 0

    def postpone(self, delivery: Delivery, delay_s: float) -> None:
        """Return a record that is not due."""
        self._settle([delivery], Outcome.RELEASE, delay_s, "")

    def _settle(
        self, deliveries: list[Delivery], outcome: Outcome, delay_s: float, reason: str, *, last: bool = False
    ) -> None:
        """What cannot be settled is kept for the next attempt, unless it is the last one."""
        if not deliveries:
            return
        if self._unsettled:  # the queue is unavailable: do not wait for each part of them
            self._unsettled += [Settlement(delivery, outcome, delay_s, reason) for delivery in deliveries]
            return
        try:
            with self._lock:
                late = self._settle_all(deliveries, outcome, delay_s, reason)
        except UNAVAILABLE as error:
            if last or not self._is_tried_again(error):
                self.problem = f"queue {self._queue.name!r}: records cannot be settled and are delivered again: {error}"
                logger.warning("%s", self.problem)
                return
            self._unsettled = [Settlement(delivery, outcome, delay_s, reason) for delivery in deliveries]
            self.tracker.dirty = True
            self.problem = f"queue {self._queue.name!r}: records cannot be settled; trying again: {error}"
            if self._failures == 1:
                logger.warning("%s", self.problem)
            return
        self.problem = ""
        if late:
            self.stale += late
            logger.warning("queue %r: %d records were settled too late and are delivered again", self._queue.name, late)

    def _is_tried_again(self, error: Exception) -> bool:
        """Count a failure, and say when the next attempt is due, if there is one."""
        now_s = self._clock.monotonic_s()
        self._failures += 1
        if self._failures == 1:
            self._failing_since_s = now_s
        if now_s - self._failing_since_s >= _SETTLED_WITHIN_S or not getattr(error, "retriable", True):
            self._failures = 0
            return False
        self._again_s = now_s + _AGAIN.backoff_s(self._failures, self._random)
        return True

    def _settle_all(self, deliveries: list[Delivery], outcome: Outcome, delay_s: float, reason: str) -> int:
        """How many were too late. Those that an error leaves unsettled stay in the list."""
        if isinstance(self._queue, BatchSettling):
            return len(self._queue.settle_all(deliveries, outcome, delay_s, reason))
        late = settled = 0
        try:
            for delivery in deliveries:
                try:
                    self._queue.settle(delivery, outcome, delay_s)
                except StaleDeliveryError:
                    late += 1
                settled += 1
        finally:
            del deliveries[:settled]
        return late

    def _extend(self, queue: Extending) -> None:
        """Restart the visibility timeout of what is held, until stopped."""
        tracker = self.tracker
        while not self._stopping.wait(queue.visibility_timeout_s / 3):
            with self._lock:
                settlements = [each.delivery for each in (*tracker.settlements, *self._unsettled)]
                held = [*tracker.held.values(), *tracker.done, *settlements]
                try:
                    late = queue.extend(held) if held else ()
                except Exception as error:  # whatever it is, what is held must be extended next time
                    logger.warning("queue %r: deliveries could not be extended: %r", self._queue.name, error)
                    continue
            if late:
                logger.warning(
                    "queue %r: %d deliveries expired before they could be extended; others get their records",
                    self._queue.name,
                    len(late),
                )


_IDLE_WAIT_S: Final = 0.5
"""How long to wait for a record while nothing is in flight, and so how long `stop` may take."""
_EMPTY_S: Final = 0.1
"""How long an empty queue is left alone by polls that do not wait."""
_POSTPONED_S: Final = 30.0
"""The longest time for which a delayed record is returned to the queue."""


class QueueFeed:
    """`abc.GroupFeed` of a queue: one partition, number 0. At most `most` records are held and not handled."""

    def __init__(
        self, queue: Queue, settler: DeliverySettler, listener: GroupListener, most: int, clock: Clock
    ) -> None:
        self._queue = queue
        self._settler = settler
        self._listener = listener
        self._most = most
        self._clock = clock
        self._can_delay = Feature.DELAYED_REDELIVERY in queue.features
        self._begun = False
        self._paused = False
        self._empty_until_s = 0.0
        self._woken = threading.Event()

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        if not self._begun:
            self._begun = True
            self._listener.assigned({0: None})
        assigned = self._settler.assigned
        room = min(limit, self._most - (assigned.in_flight - assigned.delayed) - self._settler.unsettled)
        now_s = self._clock.monotonic_s()
        if room <= 0 or self._paused or (wait_s <= 0 and now_s < self._empty_until_s):
            self._woken.wait(wait_s)
            self._woken.clear()
            return ()
        if wait_s > 0 and not assigned.in_flight:
            wait_s = max(wait_s, _IDLE_WAIT_S)
        deliveries = [each for each in self._queue.receive(room, wait_s) if not self._is_postponed(each)]
        if not deliveries:
            self._empty_until_s = self._clock.monotonic_s() + _EMPTY_S
            return ()
        return [self._settler.tracker.add(deliveries)]

    def _is_postponed(self, delivery: Delivery) -> bool:
        """Return a record that is not due to the queue, if the queue can wait with it."""
        at_ms = due_ms(delivery.record.headers) if self._can_delay and delivery.record.headers else None
        wait_s = 0.0 if at_ms is None else (at_ms - self._clock.wall_ms()) / 1000
        if wait_s <= 0:
            return False
        self._settler.postpone(delivery, min(wait_s, _POSTPONED_S))
        return True

    def pause(self, partition: int) -> None:
        self._paused = True

    def resume(self, partition: int) -> None:
        self._paused = False

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        if self._begun:
            self._listener.revoked([0])

    def add(self, partition: int, start: Pointer) -> None:
        """Nothing to do: a queue has one partition."""

    def remove(self, partition: int) -> None:
        """Nothing to do: a queue has one partition."""

    def seek(self, partition: int, start: Pointer) -> None:
        """Nothing to do: a queue has no pointers."""

    def commit(self, pointers: Mapping[int, Pointer], wait: bool) -> None:
        """Nothing to do: settling is the progress of a queue."""
