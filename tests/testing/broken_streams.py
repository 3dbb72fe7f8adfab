"""Streams with one defect each, on top of the one in memory, which has none."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from penstock.abc import Feature, Features
from penstock.errors import OffsetOutOfRangeError, UnknownTopicError
from penstock.model import Batch, NewRecord, Pointer, Position, PositionKind, Receipt, Record
from penstock.streams.memory import MemoryStream
from penstock.streams.memory.streams import MemoryTopicStream


class BrokenStreams(MemoryStream):
    """A memory whose streams are of another class."""

    kind: ClassVar[type[MemoryTopicStream]]

    @property
    def features(self) -> Features:
        return self.kind("any", self._topics).features

    def open_topic(self, topic: str) -> MemoryTopicStream:
        return self.kind(topic, self._topics)


def with_streams_of(kind: type[MemoryTopicStream]) -> type[BrokenStreams]:
    return type("Broken", (BrokenStreams,), {"kind": kind})


class HidesTopics(MemoryStream):
    def topics(self) -> list[str]:
        return []


class CreatesTwice(MemoryStream):
    def create_topic(self, topic: str, partitions: int | None = None, config: Mapping[str, str] | None = None) -> None:
        if topic not in self.topics():
            super().create_topic(topic, partitions)


class CreatesWithoutPartitions(MemoryStream):
    def create_topic(self, topic: str, partitions: int | None = None, config: Mapping[str, str] | None = None) -> None:
        super().create_topic(topic, partitions or 1)


def _changed(batch: Batch, records: Sequence[Record], following: Pointer | None = None) -> Batch:
    return Batch(batch.topic, batch.partition, batch.start, batch.next if following is None else following, records)


class TurnsAppendsAround(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return list(reversed(super().append(list(reversed(records)))))


class ForgetsWhatWasRead(MemoryTopicStream):
    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        batch = super().read(partition, start, limit, wait_s)
        topic = self._topics.find(self.topic)
        with topic.changed:
            stored = topic.partition(partition)
            gone = [stored.pointers.index(pointer) for pointer in batch.pointers()]
            for index in reversed(gone):
                del stored.records[index], stored.pointers[index], stored.latest_ms[index]
        return batch


class LeavesGaps(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        doubled = [record for record in records for _ in range(2)]
        receipts = super().append(doubled)
        topic = self._topics.find(self.topic)
        with topic.changed:
            stored = topic.partition(0)
            for index in reversed(range(1, len(stored.records), 2)):
                del stored.records[index], stored.pointers[index], stored.latest_ms[index]
        return receipts[::2]


class IgnoresTheLimit(MemoryTopicStream):
    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        return super().read(partition, start, 10_000, wait_s)


class SkipsARecord(MemoryTopicStream):
    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        batch = super().read(partition, start, limit, wait_s)
        return _changed(batch, batch.records, batch.next + 1) if len(batch) == limit else batch


class RepeatsARecord(MemoryTopicStream):
    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        batch = super().read(partition, start, limit, wait_s)
        return _changed(batch, batch.records, batch.next - 1) if len(batch) > 1 else batch


class StartsElsewhere(MemoryTopicStream):
    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        batch = super().read(partition, start, limit, wait_s)
        return Batch(batch.topic, batch.partition, 0, batch.next, batch.records)


class DoesNotWait(MemoryTopicStream):
    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        return super().read(partition, start, limit, 0.0)


class WaitsTooLong(MemoryTopicStream):
    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        if start == self.span(partition)[1]:
            threading.Event().wait(min(wait_s, 3.0))
        return super().read(partition, start, limit, 0.0)


class LosesNone(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return super().append([replace(record, value=record.value or b"") for record in records])


class LosesEmptyKeys(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return super().append([replace(record, key=record.key or None) for record in records])


class KeepsOneHeaderOfAName(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return super().append([replace(record, headers=tuple(dict(record.headers).items())) for record in records])


class StampsEverythingTheSame(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return super().append([replace(record, timestamp_ms=1_000) for record in records])


class ScattersKeys(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        count = len(self.partitions())
        return super().append([replace(record, partition=random.randrange(count)) for record in records])


class PutsAllKeysInOnePartition(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return super().append([replace(record, partition=0) for record in records])


class StoresTwice(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        receipts = super().append(records)
        if len(receipts) == 1 and receipts[0].result().offset % 100 == 99:
            super().append(records)
        return receipts


class DropsUnderPressure(MemoryTopicStream):
    """Loses what is appended while another thread appends."""

    busy = threading.Lock()

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        if not self.busy.acquire(blocking=False):
            receipts = [Receipt(self.topic) for _ in records]
            for receipt in receipts:
                receipt.settle(0, 0)
            return receipts
        try:
            threading.Event().wait(0.001)  # long enough for another thread to come in between
            return super().append(records)
        finally:
            self.busy.release()


class LiesAboutPlaces(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        lies = []
        for receipt in super().append(records):
            lie = Receipt(self.topic)
            lie.settle(receipt.result().partition, receipt.result().offset + 1)
            lies.append(lie)
        return lies


class ForgetsAReceipt(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return super().append(records)[1:]


class NeverSettlesTheLast(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        receipts = [*super().append(records)]
        return [*receipts[:-1], Receipt(self.topic)] if len(receipts) > 1 else receipts


class AcceptsAnyPartition(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        last = len(self.partitions()) - 1
        return super().append([replace(record, partition=min(record.partition or 0, last)) for record in records])


class NeverCloses(MemoryTopicStream):
    def close(self) -> None:
        return


class LatestIsTheLastRecord(MemoryTopicStream):
    def locate(self, partition: int, position: Position) -> Pointer:
        return super().locate(partition, position) - (position.kind is PositionKind.LATEST)


class EarliestIsTheSecondRecord(MemoryTopicStream):
    def locate(self, partition: int, position: Position) -> Pointer:
        return super().locate(partition, position) + (position.kind is PositionKind.EARLIEST)


class FindsTheLastOfATime(MemoryTopicStream):
    def locate(self, partition: int, position: Position) -> Pointer:
        found = super().locate(partition, position)
        if position.kind is not PositionKind.TIME:
            return found
        records = self.read(partition, self.span(partition)[0], 1000, 0.0)
        same = [record.offset for record in records if record.timestamp_ms == position.time_ms]
        return max(same, default=found)


class RoundsPointers(MemoryTopicStream):
    def locate(self, partition: int, position: Position) -> Pointer:
        found = super().locate(partition, position)
        return min(found, self.span(partition)[1] - 1) if position.kind is PositionKind.POINTER else found


class AcceptsTimesWithoutHavingThem(MemoryTopicStream):
    @property
    def features(self) -> Features:
        return super().features - {Feature.TIMES}


class SpanEndsAtTheLastRecord(MemoryTopicStream):
    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        first, end = super().span(partition)
        return first, max(first, end - 1)


class KnowsEveryPartition(MemoryTopicStream):
    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        try:
            return super().read(partition, start, limit, wait_s)
        except UnknownTopicError:
            return Batch(self.topic, partition, start, start)


class SkipsWhatExpired(MemoryTopicStream):
    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        try:
            return super().read(partition, start, limit, wait_s)
        except OffsetOutOfRangeError as error:
            batch = super().read(partition, error.start, limit, wait_s)
            return Batch(batch.topic, batch.partition, start, batch.next, batch.records)


class SaysItHasGroups(MemoryTopicStream):
    @property
    def features(self) -> Features:
        return super().features | {Feature.GROUPS}


class HasOneCursorForAll(MemoryTopicStream):
    """Keeps where it reads in one place, for all threads."""

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        self.cursor = start
        threading.Event().wait(0.002)  # long enough for another thread to come in between
        batch = super().read(partition, self.cursor, limit, wait_s)
        return Batch(batch.topic, partition, start, max(start, batch.next), batch.records)


class TakesAThousandAtMost(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        receipts = [*super().append(records[:1000])]
        return receipts + [receipts[-1]] * (len(records) - 1000)


class KnowsEveryTopic(MemoryTopicStream):
    def partitions(self) -> Sequence[int]:
        try:
            return super().partitions()
        except UnknownTopicError:
            return ()


class MixesPartitionsUp(MemoryTopicStream):
    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        batch = super().read(0, min(start, self.span(0)[1]), limit, 0.0)
        records = [replace(record, partition=partition) for record in batch]
        return Batch(batch.topic, partition, start, batch.next, records)


class ClosesOnce(MemoryTopicStream):
    def close(self) -> None:
        self._check_open()
        super().close()


class GivesAReceiptForNothing(MemoryTopicStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return super().append(records) or [Receipt(self.topic)]


class HasARecordFromTheStart(MemoryTopicStream):
    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        first, end = super().span(partition)
        return first, max(end, 1)
