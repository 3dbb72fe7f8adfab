"""Queues with one defect each, on top of the one in memory, which has none."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.abc import Delivery, Feature, Features, Outcome
from penstock.errors import StaleDeliveryError
from penstock.model import NewRecord
from penstock.queues import MemoryQueue
from penstock.queues.memory import MemoryDelivery

VISIBILITY_S: Final = 0.5


class ShortQueue(MemoryQueue):
    def __init__(self, visibility_timeout_s: float = VISIBILITY_S) -> None:
        super().__init__(visibility_timeout_s)


class NeverForgets(ShortQueue):
    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        super().settle(delivery, Outcome.RETRY if outcome is Outcome.DONE else outcome, VISIBILITY_S)


class CountsWhatIsHeld(ShortQueue):
    def waiting(self) -> int:
        return len(self)


class LastInFirstOut(ShortQueue):
    def send(self, records: Sequence[NewRecord]) -> None:
        super().send(list(reversed(records)))


class ChangesValues(ShortQueue):
    def send(self, records: Sequence[NewRecord]) -> None:
        super().send([replace(record, value=(record.value or b"").rstrip(b"\xff")) for record in records])


class LosesKeys(ShortQueue):
    def send(self, records: Sequence[NewRecord]) -> None:
        super().send([replace(record, key=record.key or None) for record in records])


class LosesHeaders(ShortQueue):
    def send(self, records: Sequence[NewRecord]) -> None:
        super().send([replace(record, headers=()) for record in records])


class WaitsTooLong(ShortQueue):
    def receive(self, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        if wait_s > 1:
            threading.Event().wait(min(wait_s, 3.0))
        return super().receive(limit, 0.0)


class DoesNotWait(ShortQueue):
    def receive(self, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        return super().receive(limit, 0.0)


class HandsOutTwice(ShortQueue):
    """Does not hide from others what somebody has."""

    def __init__(self) -> None:
        super().__init__(visibility_timeout_s=1e-6)


class HandsToSeveral(ShortQueue):
    """Now and then hands out what was just settled by somebody else."""

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        super().settle(delivery, outcome, delay_s)
        if delivery.record.offset == 77 and delivery.attempt == 1:
            super().send([NewRecord("queue", delivery.record.value)])


class IgnoresTheLimit(ShortQueue):
    def receive(self, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        return super().receive(limit + 1, wait_s)


class DoesNotRetry(ShortQueue):
    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        super().settle(delivery, Outcome.DONE if outcome is Outcome.RETRY else outcome)


class CountsFromTwo(ShortQueue):
    def receive(self, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        deliveries = super().receive(limit, wait_s)
        return [replace(delivery, attempt=delivery.attempt + 1) for delivery in deliveries]


class IgnoresTheDelay(ShortQueue):
    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        super().settle(delivery, outcome, 0.2 if delay_s else 0.0)


class AcceptsDelaysWithoutHavingThem(ShortQueue):
    @property
    def features(self) -> Features:
        return super().features - {Feature.DELAYED_REDELIVERY}


class RetriesWhatIsRejected(ShortQueue):
    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        super().settle(delivery, Outcome.RETRY if outcome is Outcome.REJECT else outcome, delay_s)


class AcceptsWhatIsStale(ShortQueue):
    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        try:
            super().settle(delivery, outcome, delay_s)
        except StaleDeliveryError:
            return


class NeverTakesBack(ShortQueue):
    def __init__(self) -> None:
        super().__init__(visibility_timeout_s=1000.0)


class TakesBackTooSoon(ShortQueue):
    def __init__(self) -> None:
        super().__init__(visibility_timeout_s=VISIBILITY_S / 4)


class NeverCloses(ShortQueue):
    def close(self) -> None:
        return


class ForgetsWhatIsReleased(ShortQueue):
    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        super().settle(delivery, Outcome.DONE if outcome is Outcome.RELEASE else outcome, delay_s)


class CountsWhatIsReleased(ShortQueue):
    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        super().settle(delivery, Outcome.RETRY if outcome is Outcome.RELEASE else outcome, delay_s)


class DoesNotCount(ShortQueue):
    def receive(self, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        return [replace(delivery, attempt=1) for delivery in super().receive(limit, wait_s)]


class HasOneOffset(ShortQueue):
    def receive(self, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        deliveries = super().receive(limit, wait_s)
        for delivery in deliveries:
            self.offsets[delivery.number] = delivery.record.offset
        return [replace(each, record=replace(each.record, offset=0)) for each in deliveries]

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        assert isinstance(delivery, MemoryDelivery)
        record = replace(delivery.record, offset=self.offsets[delivery.number])
        super().settle(replace(delivery, record=record), outcome, delay_s)

    def __init__(self) -> None:
        super().__init__()
        self.offsets: dict[int, int] = {}


class HasNoName(ShortQueue):
    @property
    def name(self) -> str:
        return ""


class DoesNotExtend(ShortQueue):
    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        return []


class SettlesAllButTheLast(ShortQueue):
    def settle_all(
        self, deliveries: Sequence[Delivery], outcome: Outcome, delay_s: float = 0.0, reason: str = ""
    ) -> Sequence[Delivery]:
        late = []
        for delivery in deliveries[:-1]:
            try:
                self.settle(delivery, outcome, delay_s)
            except StaleDeliveryError:
                late.append(delivery)
        return late
