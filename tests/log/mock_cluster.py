"""Record batches exactly as librdkafka writes them, with no broker running: it brings an in-memory cluster of its own.

A producer writes with any setting; the stored bytes are then fetched over a plain socket, or foreign batches are put in
for a librdkafka consumer to read. A real broker can stand in the cluster's place.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

TIMEOUT_S = 30.0
_FETCH, _PRODUCE = 1, 0
_STORED_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as it is given to the producer."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 1_700_000_000_000


class Topic:
    """The first partition of one topic of a broker."""

    def __init__(self, host: str, port: int, name: str) -> None:
        self.name = name
        self._address = (host, port)
        self._bootstrap = f"{host}:{port}"

    def write(self, records: Iterable[Sent], **settings: str | int | float | bool) -> None:
        """Produce the records through librdkafka with these settings (dots written as underscores) and wait."""
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        named = {name.replace("_", "."): value for name, value in settings.items()}
        # `flush` does not wait for linger.ms: all records are in the queue by then, and batches are cut by size alone.
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 60_000, "log_level": 3, **named})
        for record in records:
            producer.produce(
                self.name,
                value=record.value,
                key=record.key,
                partition=0,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
                on_delivery=delivered,
            )
        left = producer.flush(TIMEOUT_S)
        assert left == 0, f"{left} records were not delivered in {TIMEOUT_S} s"
        assert not failures, f"librdkafka could not deliver: {failures[0]}"

    def stored(self, start: int = 0) -> bytes:
        """The record batches from this offset to the end of the partition, byte for byte."""
        pieces = []
        while piece := self._fetch(start):
            pieces.append(piece)
            for base, last in _offsets(piece):
                assert base >= start, f"the broker answered offset {base} when asked for {start}"
                start = last + 1
        return b"".join(pieces)

    def put(self, batch: bytes) -> None:
        """Append a batch that somebody else wrote."""
        topic = self.name.encode()
        body = struct.pack(">hhiih", -1, -1, 10_000, 1, len(topic)) + topic + struct.pack(">iii", 1, 0, len(batch))
        answer = self._ask(_PRODUCE, 3, body + batch)
        (code,) = struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 4 + 4)
        assert code == 0, f"the broker refused the batch with error {code}"

    def consume(self, count: int) -> list[Message]:
        """Read that many records from the beginning through a librdkafka consumer."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "reader", "log_level": 3})
        try:
            consumer.assign([TopicPartition(self.name, 0, 0)])
            messages = consumer.consume(count, timeout=TIMEOUT_S)
        finally:
            consumer.close()
        for message in messages:
            assert message.error() is None, message.error()
        return messages

    def _fetch(self, start: int) -> bytes:
        topic = self.name.encode()
        body = struct.pack(">iiiibih", -1, 10, 1, 50_000_000, 0, 1, len(topic)) + topic
        answer = self._ask(_FETCH, 4, body + struct.pack(">iiqi", 1, 0, start, 50_000_000))
        at = 4 + 4 + 2 + len(topic) + 4 + 4
        code, _, _, aborted = struct.unpack_from(">hqqi", answer, at)
        assert code == 0, f"the broker refused the fetch with error {code}"
        at += struct.calcsize(">hqqi") + max(aborted, 0) * 16
        (length,) = struct.unpack_from(">i", answer, at)
        return answer[at + 4 : at + 4 + max(length, 0)]

    def _ask(self, api: int, version: int, body: bytes) -> bytes:
        request = struct.pack(">hhih", api, version, 1, 4) + b"test" + body
        with socket.create_connection(self._address, TIMEOUT_S) as connection, connection.makefile("rb") as stream:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (length,) = struct.unpack(">i", stream.read(4))
            answer = stream.read(length)
        assert len(answer) == length, f"the broker closed the connection after {len(answer)} of {length} bytes"
        return answer[4:]


class MockCluster(Topic):
    """One broker, one topic, one partition, in this process. It forgets its oldest records past some 5 MB."""

    def __init__(self, name: str = "records") -> None:
        self._owner = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 3})
        broker = next(iter(self._owner.list_topics(name, timeout=TIMEOUT_S).brokers.values()))
        super().__init__(broker.host, broker.port, name)

    def __enter__(self) -> MockCluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        del self._owner


def segment(records: Iterable[Sent], **settings: str | int | float | bool) -> bytes:
    """All the records as one run of batches by librdkafka, of any size: written in rounds the cluster can hold."""
    with MockCluster() as cluster:
        return in_rounds(cluster, records, **settings)


def in_rounds(topic: Topic, records: Iterable[Sent], **settings: str | int | float | bool) -> bytes:
    """Write the records to an empty topic and fetch what is stored, a few megabytes at a time."""
    pieces: list[bytes] = []
    start = 0
    for round_of_records in _rounds(records):
        topic.write(round_of_records, **settings)
        pieces.append(topic.stored(start))
        start += len(round_of_records)
    return b"".join(pieces)


def _rounds(records: Iterable[Sent]) -> Iterator[list[Sent]]:
    gathered: list[Sent] = []
    size_bytes = 0
    for record in records:
        gathered.append(record)
        size_bytes += 20 + len(record.key or b"") + len(record.value or b"")
        if size_bytes > _STORED_AT_ONCE:
            yield gathered
            gathered, size_bytes = [], 0
    if gathered:
        yield gathered


def _offsets(batches: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(batches):
        base, length = struct.unpack_from(">qi", batches, at)
        (last_delta,) = struct.unpack_from(">i", batches, at + 23)
        yield base, base + last_delta
        at += 12 + length
