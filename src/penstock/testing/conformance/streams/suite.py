"""What the cases of a stream share: topics, records to append, and reading with checks on every batch."""

from __future__ import annotations

import itertools
import unittest
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

from penstock.abc import Feature, Stream, TopicStream
from penstock.model import Batch, NewRecord, Pointer, Position, Receipt, Record, RecordMetadata
from penstock.testing.conformance.suite import Suite

SETTLE_S: Final = 60.0
"""How long a receipt, or an action in another thread, may take."""
WAIT_S: Final = 10.0
"""How long a read waits for an existing record."""
BRIEF_S: Final = 0.2
"""How long a read waits for a record that should not arrive."""

Expire = Callable[[Any, str, int, Pointer], None]
"""`expire(stream, topic, partition, before)`: remove the records before this pointer, as retention would."""


class StreamSuite(Suite[Stream]):
    expire: ClassVar[Any] = None

    def new_stream(self, partitions: int = 1, stream: Stream | None = None) -> TopicStream:
        stream = stream or self.open()
        topic = self.fresh_name()
        stream.create_topic(topic, partitions)
        return self.opened(stream, topic)

    def filled(self, count: int, partitions: int = 1) -> TopicStream:
        """A new topic with this many numbered records in each partition."""
        stream = self.new_stream(partitions)
        for partition in range(partitions):
            self.put(stream, numbered(count), partition)
        return stream

    def opened(self, stream: Stream, topic: str) -> TopicStream:
        opened = stream.open_topic(topic)
        self.addCleanup(opened.close)
        return opened

    def put(self, stream: TopicStream, values: Iterable[bytes | None], partition: int = 0) -> list[RecordMetadata]:
        """Append the values in one call, and wait until they are stored."""
        chosen = partition if Feature.CHOSEN_PARTITION in self.features else None
        return metadata_of(stream.append([NewRecord(stream.topic, value, partition=chosen) for value in values]))

    def everything(self, stream: TopicStream, partition: int = 0, limit: int = 100) -> list[Record]:
        start, end = stream.span(partition)
        records: list[Record] = []
        while start < end:  # ends: each batch must get further
            batch = self.read(stream, start, limit, partition=partition)
            assert batch.next > start, (
                f"read at {start} gave {batch!r} and no way on, though span says that there is something up to {end}"
            )
            records += batch
            start = batch.next
        return records

    def everything_everywhere(self, stream: TopicStream) -> list[Record]:
        return [record for partition in stream.partitions() for record in self.everything(stream, partition)]

    def read(
        self, stream: TopicStream, start: Pointer, limit: int = 100, wait_s: float | None = None, partition: int = 0
    ) -> Batch:
        batch = stream.read(partition, start, limit, WAIT_S if wait_s is None else wait_s)
        check_batch(batch, stream.topic, partition, limit)
        assert batch.start == start, f"a read at {start} gave a batch that says it starts at {batch.start}"
        return batch

    def expire_before(self, stream: Stream, topic: str, partition: int, before: Pointer) -> None:
        if self.expire is None:
            raise unittest.SkipTest("the suite cannot expire records: pass conformance.stream(..., expire=...)")
        self.expire(stream, topic, partition, before)

    def start_of(self, stream: TopicStream, partition: int = 0) -> Pointer:
        return stream.locate(partition, Position.EARLIEST)


def check_batch(batch: Batch, topic: str, partition: int, limit: int) -> None:
    assert (batch.topic, batch.partition) == (topic, partition), f"{batch!r} is not of {topic}-{partition}"
    assert len(batch) <= limit, f"{batch!r} has more than the {limit} records asked for"
    pointers = list(batch.pointers())
    assert pointers == [record.offset for record in batch], f"pointers() of {batch!r} are not those of its records"
    assert list(batch.values()) == [record.value for record in batch], f"values() of {batch!r} are not its records'"
    assert list(batch.keys()) == [record.key for record in batch], f"keys() of {batch!r} are not those of its records"
    edges = [batch.start - 1, *pointers, batch.next]
    assert all(left < right for left, right in itertools.pairwise(edges)), (
        f"{batch!r} holds {pointers}: they must ascend, from its start on, and end before its next"
    )
    strangers = {(record.topic, record.partition) for record in batch} - {(topic, partition)}
    assert not strangers, f"{batch!r} has records of {strangers}"


def metadata_of(receipts: Sequence[Receipt]) -> list[RecordMetadata]:
    """Where the records are, once all are stored. A refused one raises."""
    return [receipt.result(SETTLE_S) for receipt in receipts]


def ordered_record(stream: TopicStream, value: bytes, key: bytes) -> NewRecord:
    """A record whose order the stream keeps: it has a key, or else the only partition is chosen."""
    if Feature.KEYS in stream.features:
        return NewRecord(stream.topic, value, key)
    return NewRecord(stream.topic, value, partition=0 if Feature.CHOSEN_PARTITION in stream.features else None)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def check_values(records: Iterable[Record], expected: Sequence[bytes | None], what: str) -> None:
    found = [record.value for record in records]
    if found == list(expected):
        return
    missing = [value for value in expected if value not in found]
    raise AssertionError(
        f"{what}: {len(found)} records instead of {len(expected)}; {len(missing)} are missing, such as {missing[:3]!r};"
        f" the first are {found[:5]!r} instead of {list(expected[:5])!r}"
    )
