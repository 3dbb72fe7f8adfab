"""Streams in memory whose acknowledgements a test holds back, or turns into failures."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from penstock.abc import Features
from penstock.errors import DeliveryError
from penstock.model import Batch, NewRecord, Pointer, Position, Receipt
from penstock.streams.memory import MemoryStream

Verdict = Callable[[NewRecord], DeliveryError | None]


class HeldStreams:
    """Appends wait while it is shut. What `fail_next` was given befalls the next batches, one after the other."""

    def __init__(self, features: Features | None = None) -> None:
        self._memory = MemoryStream()
        self._features = self._memory.features if features is None else features
        self.url = "held:"
        self.gate = threading.Event()
        self.gate.set()
        self.verdicts: deque[Verdict] = deque()
        self.batches: list[list[NewRecord]] = []
        self.stored: list[NewRecord] = []

    @property
    def features(self) -> Features:
        return self._features

    def shut(self) -> None:
        self.gate.clear()

    def release(self) -> None:
        self.gate.set()

    def open_topic(self, topic: str) -> HeldStream:
        return HeldStream(self, topic)

    def topics(self) -> Sequence[str]:
        return sorted({record.topic for record in self.stored})

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        self._memory.create_topic(topic, partitions)

    def close(self) -> None:
        self.release()

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.stored]


class HeldStream:
    def __init__(self, streams: HeldStreams, topic: str) -> None:
        self._streams = streams
        self.topic = topic

    @property
    def features(self) -> Features:
        return self._streams.features

    def partitions(self) -> Sequence[int]:
        return range(3)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        streams = self._streams
        streams.gate.wait(30)
        streams.batches.append(list(records))
        verdict = streams.verdicts.popleft() if streams.verdicts else None
        receipts = []
        for record in records:
            receipt = Receipt(self.topic)
            error = verdict(record) if verdict is not None else None
            if error is None:
                streams.stored.append(record)
            receipt.settle(record.partition or 0, len(streams.stored) - 1, error)
            receipts.append(receipt)
        return receipts

    def locate(self, partition: int, position: Position) -> Pointer:
        raise AssertionError("a producer does not read")

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        raise AssertionError("a producer does not read")

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        raise AssertionError("a producer does not read")

    def close(self) -> None: ...


def passing(_: NewRecord) -> DeliveryError:
    return DeliveryError("the stream is busy", retriable=True)


def refusing(*values: bytes) -> Verdict:
    """Refuse these for good."""

    def verdict(record: NewRecord) -> DeliveryError | None:
        return DeliveryError("the stream does not want it") if record.value in values else None

    return verdict
