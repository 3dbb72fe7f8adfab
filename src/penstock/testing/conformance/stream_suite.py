"""What the cases of a stream share: topics, records to append, and reading with an eye on every batch."""

from __future__ import annotations

import itertools
import unittest
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

from penstock.abc import Feature, Stream, Streams
from penstock.model import Batch, NewRecord, Place, Pointer, Position, Receipt, Record
from penstock.testing.conformance.suite import Suite

SETTLE_S: Final = 60.0
"""How long a receipt, or something in another thread, may take."""
WAIT_S: Final = 10.0
"""How long a read waits for a record that is there."""
BRIEF_S: Final = 0.2
"""How long a read waits for a record that does not come."""

Expire = Callable[[Any, str, int, Pointer], None]
"""`expire(streams, topic, partition, before)`: remove the records before this pointer, as retention would."""


class StreamSuite(Suite[Streams]):
    """The base of all cases for streams."""

    expire: ClassVar[Any] = None

    def new_stream(self, partitions: int = 1, streams: Streams | None = None) -> Stream:
        """A topic that nobody has used."""
        streams = streams or self.open()
        topic = self.fresh_name()
        streams.create_topic(topic, partitions)
        return self.opened(streams, topic)

    def opened(self, streams: Streams, topic: str) -> Stream:
        stream = streams.stream(topic)
        self.addCleanup(stream.close)
        return stream

    def put(self, stream: Stream, values: Iterable[bytes | None], partition: int = 0) -> list[Place]:
        """Append the values, in one call, and wait until they are stored."""
        chosen = partition if Feature.CHOSEN_PARTITION in self.features else None
        return places(stream.append([NewRecord(stream.topic, value, partition=chosen) for value in values]))

    def everything(self, stream: Stream, partition: int = 0, limit: int = 100) -> list[Record]:
        """All records of a partition, from the first pointer of its span to its end."""
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

    def everything_everywhere(self, stream: Stream) -> list[Record]:
        return [record for partition in stream.partitions() for record in self.everything(stream, partition)]

    def read(
        self, stream: Stream, start: Pointer, limit: int = 100, wait_s: float | None = None, partition: int = 0
    ) -> Batch:
        batch = stream.read(partition, start, limit, WAIT_S if wait_s is None else wait_s)
        check_batch(batch, stream.topic, partition, limit)
        assert batch.start == start, f"a read at {start} gave a batch that says it starts at {batch.start}"
        return batch

    def expire_before(self, streams: Streams, topic: str, partition: int, before: Pointer) -> None:
        if self.expire is None:
            raise unittest.SkipTest("nobody said how records expire: give conformance.stream(..., expire=...)")
        self.expire(streams, topic, partition, before)

    def start_of(self, stream: Stream, partition: int = 0) -> Pointer:
        return stream.locate(partition, Position.EARLIEST)


def check_batch(batch: Batch, topic: str, partition: int, limit: int) -> None:
    """What is true of every batch."""
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


def places(receipts: Sequence[Receipt]) -> list[Place]:
    """Where the records stand, once all are stored. A refused one raises."""
    return [receipt.result(SETTLE_S) for receipt in receipts]


def ordered_record(stream: Stream, value: bytes, key: bytes) -> NewRecord:
    """A record whose order the stream keeps: it has a key, or else the only partition is chosen."""
    if Feature.KEYS in stream.features:
        return NewRecord(stream.topic, value, key)
    return NewRecord(stream.topic, value, partition=0 if Feature.CHOSEN_PARTITION in stream.features else None)


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Values that show which is which."""
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
