"""A client that makes, changes, fills and removes topics, and knows at any time what each of them may be.

It speaks the protocol itself, so that it knows exactly what was answered. A request whose answer never came may have
been carried out or not: then the topic may be what it was or what it was to become, but nothing in between.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tests.clients import wire
from tests.clients.batches import batch, values_in
from tests.clients.waiting import eventually
from tests.crash.load import Worker
from tests.servers import Server

LONGEST_NAME: Final = "x" * 249
NAMES: Final = ("plain", "with.dots", "with-dashes", "0", "x" * 100, LONGEST_NAME)
RETENTION: Final = "retention.ms"
TOPIC_RESOURCE: Final = 2
SET: Final = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """What a topic is. Topics of one name that were made one after the other have different generations."""

    generation: int
    partitions: int
    retention_ms: int


class TopicChurn(Worker):
    def __init__(self, server: Server, seed: int) -> None:
        super().__init__("topic-churn")
        self._server = server
        self._rng = random.Random(seed)
        self._generation = 0
        self._possible: dict[str, tuple[Shape | None, ...]] = dict.fromkeys(NAMES, (None,))
        self._acknowledged: defaultdict[int, dict[tuple[int, int], bytes]] = defaultdict(dict)
        self._sent: defaultdict[int, set[bytes]] = defaultdict(set)
        self.reconnects = 0

    def work(self) -> None:
        while not self.finishing.is_set():
            connection = eventually("the broker can be reached", self._connect)
            assert connection is not None
            self.reconnects += 1
            with connection:
                try:
                    self.check_all(connection)
                    while not self.finishing.is_set():
                        self._step(connection, self._rng.choice(NAMES))
                        self.progress += 1
                except (wire.ConnectionClosed, ConnectionError):
                    continue

    def _connect(self) -> wire.Connection | None:
        try:
            return wire.Connection(self._server)
        except ConnectionError:
            return None

    def _step(self, connection: wire.Connection, name: str) -> None:
        (shape,) = self._possible[name]
        if shape is None:
            self._create(connection, name)
            return
        match self._rng.randrange(8):
            case 0:
                self._delete(connection, name, shape)
            case 1:
                self._grow(connection, name, shape)
            case 2:
                self._alter(connection, name, shape)
            case _:
                self._produce(connection, name, shape)

    def _create(self, connection: wire.Connection, name: str) -> None:
        self._generation += 1
        shape = Shape(self._generation, self._rng.randint(1, 4), self._rng.randint(10**9, 10**10))
        configs = [{"name": RETENTION, "value": str(shape.retention_ms)}]
        new = {"name": name, "num_partitions": shape.partitions, "replication_factor": 1, "configs": configs}
        self._possible[name] = (None, shape)
        answer = connection.call("create_topics", 7, topics=[new], timeout=10_000)
        self._settle(name, shape, answer.topics[0].error_code)

    def _delete(self, connection: wire.Connection, name: str, shape: Shape) -> None:
        self._possible[name] = (shape, None)
        answer = connection.call("delete_topics", 6, topics=[{"name": name}], timeout=10_000)
        self._settle(name, None, answer.responses[0].error_code)

    def _grow(self, connection: wire.Connection, name: str, shape: Shape) -> None:
        grown = replace(shape, partitions=shape.partitions + 1)
        self._possible[name] = (shape, grown)
        wanted = {"name": name, "count": grown.partitions, "assignments": None}
        answer = connection.call("create_partitions", 3, topics=[wanted], timeout=10_000)
        self._settle(name, grown, answer.results[0].error_code)

    def _alter(self, connection: wire.Connection, name: str, shape: Shape) -> None:
        altered = replace(shape, retention_ms=self._rng.randint(10**9, 10**10))
        self._possible[name] = (shape, altered)
        config = {"name": RETENTION, "config_operation": SET, "value": str(altered.retention_ms)}
        wanted = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": [config]}
        answer = connection.call("incremental_alter_configs", 1, resources=[wanted])
        self._settle(name, altered, answer.responses[0].error_code)

    def _settle(self, name: str, shape: Shape | None, code: ErrorCode) -> None:
        assert code is ErrorCode.none, f"{name}: {code.name} instead of {self._possible[name]}"
        self._possible[name] = (shape,)

    def _produce(self, connection: wire.Connection, name: str, shape: Shape) -> None:
        partition = self._rng.randrange(shape.partitions)
        value = b"generation %d, %d" % (shape.generation, self._rng.getrandbits(64))
        self._sent[shape.generation].add(value)
        topic = {"name": name, "partition_data": [{"index": partition, "records": batch([value])}]}
        answer = connection.call("produce", 9, acks=-1, timeout=10_000, topic_data=[topic])
        (stored,) = answer.responses[0].partition_responses
        assert stored.error_code is ErrorCode.none
        self._acknowledged[shape.generation][partition, stored.base_offset] = value

    def check_all(self, connection: wire.Connection) -> None:
        """Every topic is whole: what it must be, or one of the two things that it may be."""
        found = {topic.name: topic for topic in connection.call("metadata", 12, topics=None).topics}
        for name, possible in self._possible.items():
            topic = found.get(name)
            if topic is None:
                assert None in possible, f"{name} is gone; it was {possible}"
                self._possible[name] = (None,)
                continue
            retention_ms = self._retention(connection, name)
            seen = [
                shape
                for shape in possible
                if shape is not None and (shape.partitions, shape.retention_ms) == (len(topic.partitions), retention_ms)
            ]
            assert seen, f"{name} has {len(topic.partitions)} partitions and {retention_ms}; it may be {possible}"
            self._possible[name] = (seen[0],)
            self._check_records(connection, name, seen[0])

    def _retention(self, connection: wire.Connection, name: str) -> int:
        wanted = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": [RETENTION]}
        answer = connection.call("describe_configs", 4, resources=[wanted])
        return int(answer.results[0].configs[0].value)

    def _check_records(self, connection: wire.Connection, name: str, shape: Shape) -> None:
        found: dict[tuple[int, int], bytes] = {}
        for partition in range(shape.partitions):
            answer = connection.call("fetch", 12, **_everything(name, partition))
            (read,) = answer.responses[0].partitions
            assert read.error_code is ErrorCode.none
            found |= {(partition, offset): value for offset, value in values_in(read.records)}
        lost = self._acknowledged[shape.generation].items() - found.items()
        assert not lost, f"{name}: acknowledged records are lost: {lost}"
        strange = set(found.values()) - self._sent[shape.generation]
        assert not strange, f"{name}: records of an earlier topic have come back: {strange}"


def _everything(topic: str, partition: int) -> Mapping[str, Any]:
    part = {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 10 << 20}
    return {"replica_id": -1, "min_bytes": 0, "max_bytes": 10 << 20, "topics": [{"topic": topic, "partitions": [part]}]}
