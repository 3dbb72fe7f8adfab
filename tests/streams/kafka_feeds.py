"""Feeds as tests use them: filled topics, and polling until something has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from confluent_kafka import Producer

import penstock
from penstock.abc import Feed
from penstock.model import Batch, Lease, NewRecord, Pointer
from penstock.streams.kafka.stream import kafka_of
from tests.clients.names import fresh

TIMEOUT_S: Final = 30.0


def filled_topic(connection: penstock.Connection, counts: Sequence[int] = (10,), **config: str) -> str:
    """A new topic with so many records in each of its partitions; their values are their offsets."""
    topic = fresh()
    connection.create_topic(topic, len(counts), {name.replace("_", "."): value for name, value in config.items()})
    for partition, count in enumerate(counts):
        fill(connection, topic, range(count), partition)
    return topic


def fill(connection: penstock.Connection, topic: str, numbers: Iterable[int], partition: int = 0) -> None:
    values = [NewRecord(topic, str(number).encode(), partition=partition) for number in numbers]
    receipts = connection.open_topic(topic).append(values)
    kafka_of(connection).settle_sent()
    assert all(receipt.done and receipt.error is None for receipt in receipts)


def commit_transaction(
    connection: penstock.Connection, topic: str, values: Iterable[bytes], partition: int = 0
) -> None:
    """Records of a transaction, followed by the marker that commits it."""
    producer = Producer({"bootstrap.servers": connection.bootstrap, "transactional.id": fresh("txn")})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition)
    producer.commit_transaction(TIMEOUT_S)


class Collected:
    """What a feed has given out, checked on arrival: each batch starts where the one before it ended."""

    def __init__(self, feed: Feed, limit: int = 1000) -> None:
        self.feed = feed
        self.limit = limit
        self.values: dict[int, list[bytes | None]] = {}
        self.next: dict[int, Pointer] = {}
        self.polls = 0

    def step(self, wait_s: float = 0.05) -> Sequence[Batch]:
        batches = self.feed.poll(self.limit, wait_s)
        self.polls += 1
        assert sum(map(len, batches)) <= self.limit
        for batch in batches:
            assert batch.start == self.next.get(batch.partition, batch.start), f"{batch} does not follow on"
            assert all(batch.start <= pointer < batch.next for pointer in batch.pointers())
            assert batch.next > batch.start
            self.next[batch.partition] = batch.next
            self.values.setdefault(batch.partition, []).extend(batch.values())
        return batches

    def step_until(self, what: str, condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, f"{what}: not within {timeout_s:g} s; at {self.next}"
            self.step()

    def numbers(self, partition: int = 0) -> list[int]:
        return [int(value or b"-1") for value in self.values.get(partition, [])]

    def count(self) -> int:
        return sum(map(len, self.values.values()))


class Share:
    """A group's listener that begins where the group has got to, and remembers what it was told."""

    def __init__(self, progress: Mapping[int, Pointer] | None = None) -> None:
        self.progress: dict[int, Pointer] = dict(progress or {})
        self.owned: set[int] = set()
        self.told: list[tuple[str, tuple[int, ...]]] = []

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        assert not self.owned & partitions.keys(), "it was ours already"
        assert set(partitions.values()) <= {None}
        self.owned |= partitions.keys()
        self.told.append(("assigned", tuple(partitions)))
        return {partition: self.progress.get(partition, 0) for partition in partitions}

    def revoked(self, partitions: Sequence[int]) -> None:
        self.told.append(("revoked", tuple(partitions)))
        self._give_back(partitions)

    def lost(self, partitions: Sequence[int]) -> None:
        self.told.append(("lost", tuple(partitions)))
        self._give_back(partitions)

    def _give_back(self, partitions: Sequence[int]) -> None:
        assert self.owned >= set(partitions), "it was not ours"
        self.owned -= set(partitions)
