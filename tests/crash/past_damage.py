"""Reading partitions that may be damaged with unmodified clients: what they get, and where they are told of damage."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from kafka.errors import CorruptRecordError

from tests.clients import confluent
from tests.servers import Server

TIMEOUT_S: Final = 40.0
TOLD: Final = KafkaError.INVALID_MSG


@dataclass(slots=True)
class Seen:
    """What a reader saw of one partition."""

    records: dict[int, bytes | None] = field(default_factory=dict)
    errors: set[int] = field(default_factory=set)
    """Offsets at which it was told of damage."""


def read_with_confluent(server: Server, topic: str, partitions: Iterable[int]) -> dict[int, Seen]:
    """Everything, as confluent-kafka gives it without verifying checksums itself, stepping over what it is refused."""
    seen: defaultdict[int, Seen] = defaultdict(Seen)
    waiting_for = set(partitions)
    settings = {**confluent.READER, "fetch.error.backoff.ms": 5, "check.crcs": False}
    with confluent.consumer(server, settings=settings) as reader:
        reader.assign([TopicPartition(topic, partition, 0) for partition in waiting_for])
        deadline = time.monotonic() + TIMEOUT_S
        while waiting_for:
            assert time.monotonic() < deadline, f"no end of {topic} {sorted(waiting_for)} in time"
            for message in reader.consume(1000, timeout=0.02):
                partition, offset, error = message.partition(), message.offset(), message.error()
                assert partition is not None
                assert offset is not None
                if error is None:
                    seen[partition].records[offset] = message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting_for.discard(partition)
                else:
                    assert error.code() == TOLD, f"{topic}-{partition}@{offset}: {error}"
                    if offset not in seen[partition].errors:
                        seen[partition].errors.add(offset)
                        reader.seek(TopicPartition(topic, partition, offset + 1))
    return seen


def read_with_kafka_python(server: Server, topic: str, partition: int, end: int) -> Seen:
    """The same with kafka-python, one partition up to an offset."""
    seen = Seen()
    place = PythonPartition(topic, partition)
    reader = KafkaConsumer(
        bootstrap_servers=server.bootstrap,
        enable_auto_commit=False,
        fetch_max_wait_ms=10,
        retry_backoff_ms=5,
        check_crcs=True,
    )
    try:
        reader.assign([place])
        reader.seek(place, 0)
        deadline = time.monotonic() + TIMEOUT_S
        while reader.position(place) < end:
            at = reader.position(place)
            assert time.monotonic() < deadline, f"kafka-python got stuck at {at} of {end}"
            try:
                for message in reader.poll(timeout_ms=100).get(place, ()):
                    seen.records[message.offset] = message.value
            except CorruptRecordError:
                seen.errors.add(at)
                reader.seek(place, at + 1)
    finally:
        reader.close()
    return seen
