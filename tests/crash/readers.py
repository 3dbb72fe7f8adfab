"""A consumer group that writes down what it got and what it committed."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaException, TopicPartition

from tests.clients import confluent
from tests.crash.load import PATIENT, Worker
from tests.servers import Server

NOTHING: Final = -1001
"""What librdkafka calls the offset of a partition for which nothing was committed."""


class GroupLedger:
    """What the members of a group got, tried to commit and were told is committed. Shared by their threads."""

    def __init__(self, server: Server, topic: str, partitions: int, group: str) -> None:
        self.server = server
        self.topic = topic
        self.partitions = partitions
        self.group = group
        self.delivered: defaultdict[int, dict[int, bytes | None]] = defaultdict(dict)
        self._attempted: defaultdict[int, set[int]] = defaultdict(set)
        self._acknowledged: dict[int, int] = {}
        self._lock = threading.Lock()

    def deliver(self, record: confluent.Received) -> None:
        with self._lock:
            earlier = self.delivered[record.partition].setdefault(record.offset, record.value)
        assert earlier == record.value, (
            f"{record.partition}@{record.offset} was {earlier!r} and is {record.value!r} now"
        )

    def attempt(self, positions: Mapping[int, int]) -> None:
        with self._lock:
            for partition, offset in positions.items():
                self._attempted[partition].add(offset)

    def acknowledge(self, partition: int, offset: int) -> None:
        with self._lock:
            self._acknowledged[partition] = max(offset, self._acknowledged.get(partition, 0))

    def committed(self) -> dict[int, int]:
        """What the broker says is committed; partitions without are left out."""
        places = [TopicPartition(self.topic, number) for number in range(self.partitions)]
        with confluent.consumer(self.server, self.group) as asking:
            found = asking.committed(places, timeout=confluent.TIMEOUT_S)
        for place in found:
            assert place.error is None
        return {place.partition: place.offset for place in found if place.offset != NOTHING}

    def check_committed(self) -> None:
        """What is committed has never gone back behind what was acknowledged, and is something that was delivered."""
        with self._lock:
            acknowledged = dict(self._acknowledged)
        committed = self.committed()
        for partition, offset in acknowledged.items():
            assert committed.get(partition, -1) >= offset, (
                f"partition {partition} went back to {committed.get(partition)}"
            )
        with self._lock:
            for partition, offset in committed.items():
                assert offset in self._attempted[partition], f"nobody committed {offset} of partition {partition}"
                missing = set(range(offset)) - set(self.delivered[partition])
                assert not missing, (
                    f"{sorted(missing)[:10]} of partition {partition} are committed, but nobody got them"
                )


class GroupReader(Worker):
    """One member: reads, and commits what it has read."""

    def __init__(self, ledger: GroupLedger, name: str) -> None:
        super().__init__(name)
        self._ledger = ledger

    def work(self) -> None:
        with confluent.consumer(self._ledger.server, self._ledger.group, PATIENT) as consumer:
            consumer.subscribe([self._ledger.topic])
            while not self.finishing.is_set():
                positions: dict[int, int] = {}
                for message in consumer.consume(500, timeout=0.05):
                    if message.error() is None:
                        record = confluent.received_from(message)
                        self._ledger.deliver(record)
                        positions[record.partition] = record.offset + 1
                if positions:
                    self._ledger.attempt(positions)
                    places = [TopicPartition(self._ledger.topic, *place) for place in positions.items()]
                    try:
                        done = consumer.commit(offsets=places, asynchronous=False)
                    except KafkaException:
                        continue  # the broker is gone, or the partition somebody else's now: it will be read again
                    for place in done or ():
                        if place.error is None:
                            self._ledger.acknowledge(place.partition, place.offset)
                            self.progress += 1
