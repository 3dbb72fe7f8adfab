"""confluent-kafka as the tests use it: settings that make it quick, and reading a topic to its end."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType

from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import Server

TIMEOUT_S: Final = 20.0

QUICK: Final[Mapping[str, Any]] = {
    # Errors come to the test as errors; in the log they would only be the noise of a server that has been stopped.
    "log_level": 0,
    "retry.backoff.ms": 20,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "broker.address.family": "v4",
}
QUICK_CONSUMER: Final[Mapping[str, Any]] = {
    **QUICK,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 100,
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 200,
}
READER: Final[Mapping[str, Any]] = {"enable.partition.eof": True, "fetch.wait.max.ms": 10}

Headers = list[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class Received:
    """A record as a consumer got it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_type: int
    timestamp_ms: int


def producer(server: Server, settings: Mapping[str, Any] | None = None) -> Producer:
    return Producer({"bootstrap.servers": server.bootstrap, **QUICK, "linger.ms": 1, **(settings or {})})


def consumer(server: Server, group: str | None = None, settings: Mapping[str, Any] | None = None) -> Consumer:
    own = {"bootstrap.servers": server.bootstrap, "group.id": group or fresh("group")}
    return Consumer({**own, **QUICK_CONSUMER, **(settings or {})})


def admin(server: Server) -> AdminClient:
    """The one admin client of a server: it must live until its futures have their results."""
    return _admin_of(server.bootstrap)


@functools.cache
def _admin_of(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, **QUICK})


def create_topic(server: Server, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
    """A new topic of a fresh name."""
    name = fresh()
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(settings or {}))
    admin(server).create_topics([new])[name].result(TIMEOUT_S)
    return name


def produce(
    server: Server, topic: str, values: Iterable[bytes], settings: Mapping[str, Any] | None = None, partition: int = 0
) -> list[int]:
    """Send the values, in order, and answer their offsets once all are acknowledged."""
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        offset = message.offset()
        assert offset is not None
        offsets.append(offset)

    sender = producer(server, settings)
    for value in values:
        sender.produce(topic, value, partition=partition, on_delivery=delivered)
    assert sender.flush(TIMEOUT_S) == 0, "not all records were acknowledged in time"
    return offsets


def delivery_error(sender: Producer, topic: str, value: bytes | None, key: bytes | None = None) -> KafkaError | None:
    """Send one record to partition 0 and answer with the error it met, None if it was acknowledged."""
    errors: list[KafkaError | None] = []
    sender.produce(topic, value, key, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert sender.flush(TIMEOUT_S) == 0, "the record was neither acknowledged nor refused in time"
    return errors[0]


def read_to_end(
    server: Server,
    topic: str,
    partitions: Iterable[int] = (0,),
    settings: Mapping[str, Any] | None = None,
    start: int = 0,
) -> list[Received]:
    """Everything in the partitions from `start`, or from what is left behind it, to their present end, in order.

    A number, not "the beginning", which librdkafka looks up half a second later.
    """
    waiting_for = set(partitions)
    received: list[Received] = []
    with consumer(server, settings={**READER, **(settings or {})}) as reader:
        reader.assign([TopicPartition(topic, partition, start) for partition in waiting_for])
        deadline = time.monotonic() + TIMEOUT_S
        while waiting_for:
            assert time.monotonic() < deadline, f"no end of {topic} {waiting_for} in time; got {len(received)} records"
            for message in reader.consume(1000, timeout=0.02):
                error = message.error()
                if error is None:
                    received.append(received_from(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting_for.discard(message.partition() or 0)
                else:
                    raise KafkaException(error)
    return sorted(received, key=lambda record: (record.partition, record.offset))


def received_from(message: Message) -> Received:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    headers: Any = message.headers()
    timestamp_type, timestamp_ms = message.timestamp()
    return Received(
        partition, offset, message.key(), message.value(), list(headers or []), timestamp_type, timestamp_ms
    )


def values_of(records: Iterable[Received]) -> list[bytes | None]:
    return [record.value for record in records]


def poll_until(reader: Consumer, count: int, timeout_s: float = TIMEOUT_S) -> list[Received]:
    """The next `count` records of a consumer that has been subscribed or assigned."""
    received: list[Received] = []
    deadline = time.monotonic() + timeout_s
    while len(received) < count:
        assert time.monotonic() < deadline, f"got {len(received)} of {count} records in time: {received}"
        message = reader.poll(0.1)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        received.append(received_from(message))
    return received


def error_of(future: Future[Any]) -> int:
    """The code with which a request of the admin client was refused."""
    error = future.exception(TIMEOUT_S)
    assert isinstance(error, KafkaException), f"it was not refused but answered {error or future.result()!r}"
    return code_of(error)


def code_of(error: KafkaException) -> int:
    reason = error.args[0]
    assert isinstance(reason, KafkaError)
    return reason.code()


def list_offset(
    server: Server, topic: str, spec: OffsetSpec, partition: int = 0, isolation: IsolationLevel | None = None
) -> int:
    place = TopicPartition(topic, partition)
    kept = {} if isolation is None else {"isolation_level": isolation}
    offset: int = admin(server).list_offsets({place: spec}, **kept)[place].result(TIMEOUT_S).offset
    return offset


def eventually_listed(server: Server, topic: str) -> None:
    """Return once the topic exists."""
    lister = admin(server)
    eventually(f"topic {topic} exists", lambda: topic in lister.list_topics(timeout=TIMEOUT_S).topics)


def grow_topic(server: Server, topic: str, partitions: int) -> None:
    admin(server).create_partitions([NewPartitions(topic, partitions)])[topic].result(TIMEOUT_S)


def delete_records(server: Server, topic: str, before: int, partition: int = 0) -> None:
    """Forget everything before the offset."""
    place = TopicPartition(topic, partition, before)
    assert admin(server).delete_records([place])[place].result(TIMEOUT_S).low_watermark == before


def described(server: Server, topic: str) -> tuple[str, int, dict[str, str]]:
    """A topic's id, the number of its partitions and the settings of its own."""
    description = admin(server).describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = admin(server).describe_configs([resource])[resource].result(TIMEOUT_S)
    own = {name: entry.value for name, entry in entries.items() if not entry.is_default}
    return str(description.topic_id), len(description.partitions), own
