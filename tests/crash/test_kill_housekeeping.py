"""kill -9 while the broker compacts, expires, deletes records on request, and begins new segments all the time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from tests.clients import confluent, wire
from tests.clients.waiting import eventually
from tests.crash.killing import kill_again_and_again
from tests.crash.load import IDEMPOTENT, KeyedProducer, Worker
from tests.crash.promises import check_dense, check_order_of_keys
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock, Server

KILLS = 4
SOAK_KILLS = 60
EARLIEST = -2
BUSY = {"log.cleaner.backoff.ms": "30", "log.retention.check.interval.ms": "30"}
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "200",
}
SHORT = {"internal.segment.bytes": "20000", "retention.bytes": "100000"}
LONG = {"internal.segment.bytes": "20000"}


class ForgettingProducer(KeyedProducer):
    """Some of its records delete their key."""

    def value(self, number: int) -> bytes | None:
        return None if number % 23 == 0 else super().value(number)


class Deleter(Worker):
    """Has records deleted, a few more each time."""

    def __init__(self, server: Server, topic: str, seed: int) -> None:
        super().__init__("deleter")
        self._server = server
        self._topic = topic
        self._rng = random.Random(seed)
        self.attempted = {0}
        self.acknowledged = 0

    def work(self) -> None:
        while not self.finishing.wait(0.01):
            try:
                with wire.Connection(self._server) as connection:
                    while not self.finishing.wait(0.01):
                        self._delete_more(connection)
            except (wire.ConnectionClosed, ConnectionError):
                continue

    def _delete_more(self, connection: wire.Connection) -> None:
        offset = max(self.attempted) + self._rng.randint(1, 30)
        part = {"partition_index": 0, "offset": offset}
        self.attempted.add(offset)
        answer = connection.call(
            "delete_records", 2, topics=[{"name": self._topic, "partitions": [part]}], timeout=10_000
        )
        (result,) = answer.topics[0].partitions
        if result.error_code is ErrorCode.offset_out_of_range:
            self.attempted.discard(offset)  # not written yet
            return
        assert result.error_code is ErrorCode.none
        assert result.low_watermark == offset
        self.acknowledged = offset
        self.progress += 1


class Starts:
    """Where partitions start: an offset that never goes back."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._latest: dict[str, int] = {}

    def check(self, topic: str) -> int:
        answer = wire.call(self._server, "list_offsets", 6, replica_id=-1, topics=[_earliest(topic)])
        start: int = answer.topics[0].partitions[0].offset
        assert start >= self._latest.get(topic, 0), f"{topic} began at {self._latest[topic]} and begins at {start} now"
        self._latest[topic] = start
        return start


def _earliest(topic: str) -> dict[str, Any]:
    return {"name": topic, "partitions": [{"partition_index": 0, "timestamp": EARLIEST}]}


def test_compaction_retention_and_deletion_lose_nothing_that_is_to_be_kept(tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    arguments = [word for setting in BUSY.items() for word in ("--config", "=".join(setting))]
    with Penstock(tmp_path, *arguments) as server:
        compacted, expiring, deleted = [confluent.create_topic(server, 1, kind) for kind in (COMPACTED, SHORT, LONG)]
        keeper = ForgettingProducer(server, compacted, "keeper", IDEMPOTENT, keys=40)
        expired = KeyedProducer(server, expiring, "expired", IDEMPOTENT)
        rest = KeyedProducer(server, deleted, "rest", IDEMPOTENT)
        deleter = Deleter(server, deleted, rng.getrandbits(32))
        starts = Starts(server)
        workers = [keeper, expired, rest, deleter]

        def check_starts() -> None:
            acknowledged = deleter.acknowledged
            assert starts.check(deleted) >= acknowledged, "deleted records have come back"
            starts.check(expiring)
            assert starts.check(compacted) == 0

        for worker in workers:
            worker.start()
        kill_again_and_again(server, rng, workers, times(KILLS, SOAK_KILLS), restarted=check_starts)
        eventually("retention has done something", lambda: starts.check(expiring) > 0)
        for worker in workers:
            worker.finish()
        server.kill()
        server.start()
        check_starts()
        check_kept(expired, server, expiring, starts.check(expiring))
        start = starts.check(deleted)
        assert start in deleter.attempted
        check_kept(rest, server, deleted, start)
        check_last_of_each_key(keeper, server, compacted)


def check_kept(producer: KeyedProducer, server: Server, topic: str, start: int) -> None:
    """From the start on, every record is there, and what it was acknowledged as."""
    stored = confluent.read_to_end(server, topic, start=start)
    check_dense(stored, {0: start})
    assert not producer.refused
    expected = {offset: producer.value(number) for number, (_, offset) in producer.acknowledged.items()}
    assert None not in expected, "the broker forgot where a record is that it had taken before"
    end = len(producer.acknowledged)
    assert {record.offset: record.value for record in stored} == {at: expected[at] for at in range(start, end)}


def check_last_of_each_key(producer: KeyedProducer, server: Server, topic: str) -> None:
    """Of each key the last record is there, unless it deletes the key; in order, and never one that was not sent."""
    assert not producer.refused
    stored = confluent.read_to_end(server, topic)
    by_offset = {offset: number for number, (_, offset) in producer.acknowledged.items()}
    numbers = [by_offset[record.offset] for record in stored]
    for number, record in zip(numbers, stored, strict=True):
        assert (record.key, record.value) == (producer.key(number), producer.value(number))
    check_order_of_keys(producer, numbers)
    assert len(stored) < producer.sent // 2, "compaction never did anything"
    kept = set(numbers)
    last = {producer.key(number): number for number in range(producer.sent)}
    lost = [number for number in last.values() if producer.value(number) is not None and number not in kept]
    assert not lost, f"the last records of their keys are lost: {lost}"
