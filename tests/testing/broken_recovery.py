"""Streams and queues in memory, behind a server and a network that can fail, with one defect each.

The world is a pretended one: `WORLD` says what is broken now, and the backends look at it before each call.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from penstock.abc import Delivery, Outcome
from penstock.errors import BrokerUnavailableError
from penstock.model import Batch, NewRecord, Pointer, Receipt
from penstock.queues.memory import MemoryDelivery
from penstock.streams.memory.streams import MemoryTopicStream
from tests.testing.broken_queues import ShortQueue


class World:
    """`conformance.outages.Outage` and its `TcpProxy` in one."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.is_down = self.is_cut = False
        self.delay_s = 0.0
        self.kills = self.cuts = self.freezes = self.connections = 0
        self.flows = threading.Event()
        self.flows.set()

    @property
    def proxy(self) -> Any:
        return self

    def kill(self) -> None:
        self.is_down = True
        self.kills += 1

    def restart(self) -> None:
        self.is_down = False

    def cut(self) -> None:
        self.is_cut = True
        self.cuts += 1

    def freeze(self) -> None:
        self.freezes += 1
        self.flows.clear()

    def strand(self) -> None:
        self.flows.set()

    def heal(self) -> None:
        self.is_cut = False
        self.delay_s = 0.0
        self.flows.set()

    def check(self) -> None:
        if self.is_down or self.is_cut or not self.flows.is_set():
            raise BrokerUnavailableError("the server cannot be reached")


WORLD: Final = World()


class Recovers(MemoryTopicStream):
    """Without a defect."""

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        WORLD.check()
        return super().read(partition, start, limit, wait_s)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        WORLD.check()
        return super().append(records)


class Loses(Recovers):
    """Acknowledges what is lost."""

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        if not self.is_losing_now():
            return super().append(records)
        receipts = [Receipt(self.topic) for _ in records]
        for receipt in receipts:
            receipt.settle(0, 0, None)
        return receipts

    def is_losing_now(self) -> bool:
        raise NotImplementedError


class LosesWhenKilled(Loses):
    def is_losing_now(self) -> bool:
        return WORLD.kills > 0


class LosesWhenCut(Loses):
    def is_losing_now(self) -> bool:
        return WORLD.cuts > 0


class LosesWhenFrozen(Loses):
    def is_losing_now(self) -> bool:
        return WORLD.freezes > 0


class HangsWhenAppending(Recovers):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        WORLD.flows.wait(3)
        return super().append(records)


class StaysBroken(Recovers):
    """Does not come back by itself."""

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        if WORLD.kills or WORLD.cuts:
            raise BrokerUnavailableError("the connection is lost for ever")
        return super().read(partition, start, limit, wait_s)


class NeedsAFastNetwork(Recovers):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        receipts = super().append(records)
        return [*receipts, *super().append(records)][: len(receipts)] if WORLD.delay_s else receipts


class Hangs(Recovers):
    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        WORLD.flows.wait(60)
        return super().read(partition, start, limit, wait_s)


class QueueRecovers(ShortQueue):
    """Without a defect."""

    def receive(self, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        WORLD.check()
        return super().receive(limit, min(wait_s, 0.1))

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        WORLD.check()
        super().settle(delivery, outcome, delay_s)

    def send(self, records: Sequence[NewRecord]) -> None:
        WORLD.check()
        super().send(records)


class QueueStorms(QueueRecovers):
    """Connects again for each attempt, many times."""

    def receive(self, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        WORLD.connections += 25 * (WORLD.kills + WORLD.cuts)
        return super().receive(limit, wait_s)


class QueueForgets(QueueRecovers):
    """Loses what it holds when its server is killed or its connections are cut."""

    def receive(self, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        deliveries = super().receive(limit, wait_s)
        if WORLD.kills or WORLD.cuts:
            for delivery in deliveries:
                super().settle(delivery, Outcome.DONE)
            return []
        return deliveries


class QueueStoresLater(QueueRecovers):
    """Stores what was sent when somebody receives: the kill of a server that somebody sends to loses the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._unstored: list[NewRecord] = []
        self._kills = 0

    def send(self, records: Sequence[NewRecord]) -> None:
        WORLD.check()
        self._lose_at_kills()
        self._unstored += records

    def receive(self, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        WORLD.check()
        self._lose_at_kills()
        stored, self._unstored = self._unstored, []
        super().send(stored)
        return super().receive(limit, wait_s)

    def _lose_at_kills(self) -> None:
        if self._kills != WORLD.kills:
            self._kills = WORLD.kills
            self._unstored = []


class QueueNeedsAFastNetwork(QueueRecovers):
    def send(self, records: Sequence[NewRecord]) -> None:
        for _ in range(2 if WORLD.delay_s else 1):
            super().send(records)


class QueueHangs(QueueRecovers):
    def receive(self, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        WORLD.flows.wait(60)
        return super().receive(limit, wait_s)


class QueueHangsWhenSending(QueueRecovers):
    def send(self, records: Sequence[NewRecord]) -> None:
        WORLD.flows.wait(60)
        super().send(records)


class QueueHangsWhenSettling(QueueRecovers):
    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        WORLD.flows.wait(60)
        super().settle(delivery, outcome, delay_s)


class QueueLosesWhenFrozen(QueueRecovers):
    """Says that a record was sent when nobody has answered."""

    def send(self, records: Sequence[NewRecord]) -> None:
        if WORLD.flows.is_set():
            super().send(records)
