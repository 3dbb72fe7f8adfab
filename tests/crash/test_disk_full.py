"""A disk that is full: what does not fit is refused, what was acknowledged stays, and when space returns all goes on.

The data folder lies on a file system of a few megabytes of its own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kio.schema.errors import ErrorCode

import penstock
from tests.broker.plain_requests import PRODUCE, create_topic, produce_fields, produced
from tests.clients import confluent, wire
from tests.clients.waiting import eventually
from tests.consuming.eventually import wait_until
from tests.crash.at_rest import read_partition
from tests.crash.killing import wait_for_flow
from tests.crash.load import IDEMPOTENT, KeyedProducer
from tests.crash.promises import check_dense, check_exactly_once
from tests.servers import Penstock

SIZE_BYTES: Final = 4 << 20
VALUE: Final = b"x" * 20_000
GROUP: Final = "group"


@dataclass(frozen=True, slots=True)
class SmallDisk:
    folder: Path

    @property
    def filler(self) -> Path:
        return self.folder / "filler"

    def fill(self, leave_bytes: int = 0) -> None:
        """Let others use up what is left, but for so much."""
        status = os.statvfs(self.folder)
        with self.filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            for _ in range(max(0, status.f_bavail - leave_bytes // status.f_frsize)):
                file.write(b"\0" * status.f_frsize)

    def free(self) -> None:
        """They have cleaned up."""
        self.filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except FileNotFoundError:
        pytest.skip("a small file system cannot be mounted: there is no mount command")
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted: that takes root")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", str(folder)], timeout=10, check=True)


@pytest.fixture
def server(disk: SmallDisk) -> Iterator[Penstock]:
    with Penstock(disk.folder, "--config", "group.initial.rebalance.delay.ms=0") as running:
        yield running
        assert running.process.is_alive(), running.process.last_words()


def send(connection: wire.Connection, topic: str, value: bytes, acks: int = -1) -> tuple[ErrorCode, int]:
    return produced(connection.call(*PRODUCE, **produce_fields(topic, [value], acks)))


def fill_up(connection: wire.Connection, topic: str, acks: int = -1) -> dict[int, bytes]:
    """Produce until it is refused. Answers what was acknowledged."""
    acknowledged: dict[int, bytes] = {}
    for number in range(2 * SIZE_BYTES // len(VALUE)):
        value = b"%d:" % number + VALUE
        code, offset = send(connection, topic, value, acks)
        if code is not ErrorCode.none:
            assert code is ErrorCode.kafka_storage_error
            return acknowledged
        acknowledged[offset] = value
    raise AssertionError("the disk did not get full")


@pytest.mark.parametrize("acks", [1, -1])
def test_what_does_not_fit_is_refused_and_all_goes_on_when_there_is_space(
    server: Penstock, disk: SmallDisk, acks: int
) -> None:
    topic, other = create_topic(server), create_topic(server)
    disk.fill(leave_bytes=SIZE_BYTES // 2)
    with wire.Connection(server) as connection:
        assert send(connection, other, b"before") == (ErrorCode.none, 0)
        acknowledged = fill_up(connection, topic, acks)
        assert len(acknowledged) > 10
        for _ in range(3):
            assert send(connection, topic, VALUE, acks)[0] is ErrorCode.kafka_storage_error
        assert read_partition(connection, topic, 0) == acknowledged
        disk.free()
        for _ in range(3):
            code, offset = send(connection, topic, b"after", acks)
            assert (code, offset) == (ErrorCode.none, len(acknowledged)), "an offset was skipped, or space was not used"
            acknowledged[offset] = b"after"
        assert read_partition(connection, topic, 0) == acknowledged
    server.kill()
    server.start()
    with wire.Connection(server) as connection:
        assert read_partition(connection, topic, 0) == acknowledged
        assert read_partition(connection, other, 0) == {0: b"before"}


def test_idempotent_producers_come_through_a_full_disk_without_loss_or_repetition(
    server: Penstock, disk: SmallDisk
) -> None:
    topic = confluent.create_topic(server, 2, {"internal.segment.bytes": "30000"})
    producers = [KeyedProducer(server, topic, f"producer-{number}", IDEMPOTENT, per_second=500) for number in range(2)]
    for producer in producers:
        producer.start()
    for _ in range(3):
        wait_for_flow(producers, 50)
        disk.fill()
        eventually("producing has stopped", lambda: has_stopped(producers))
        disk.free()
    wait_for_flow(producers, 50)
    for producer in producers:
        producer.finish()
    stored = confluent.read_to_end(server, topic, range(2))
    check_dense(stored)
    for producer in producers:
        check_exactly_once(producer, stored)


def has_stopped(producers: list[KeyedProducer]) -> bool:
    """Whether nothing was acknowledged for a while, though there is something to send."""
    before = [producer.progress for producer in producers]
    producers[0].finishing.wait(0.3)
    return [producer.progress for producer in producers] == before


def test_commits_are_refused_on_a_full_disk_and_taken_again_when_there_is_space(
    server: Penstock, disk: SmallDisk
) -> None:
    topic = create_topic(server)
    with wire.Connection(server) as connection:
        for number in range(10):
            send(connection, topic, b"%d" % number)
    with confluent.consumer(server, GROUP) as reader:
        reader.subscribe([topic])
        assert len(confluent.poll_until(reader, 5)) == 5
        commit(reader, topic, 3)
        disk.fill()
        with pytest.raises(KafkaException) as refused:
            commit_again_and_again(reader, topic, 4)
        assert confluent.code_of(refused.value) in RETRIABLE
        assert committed(server, topic) in (3, 4)
        disk.free()
        commit(reader, topic, 5)
        assert committed(server, topic) == 5
    server.kill()
    server.start()
    assert committed(server, topic) == 5


RETRIABLE: Final = {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError._TIMED_OUT}


def commit(reader: Any, topic: str, offset: int) -> None:
    (done,) = reader.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    if done.error is not None:
        raise KafkaException(done.error)


def commit_again_and_again(reader: Any, topic: str, offset: int) -> None:
    """Each takes some space, until there is none."""
    for _ in range(1000):
        commit(reader, topic, offset)


def committed(server: Penstock, topic: str) -> int:
    with confluent.consumer(server, GROUP) as asking:
        return asking.committed([TopicPartition(topic, 0)], timeout=confluent.TIMEOUT_S)[0].offset


def test_topics_are_refused_on_a_full_disk_and_can_be_deleted_to_make_space(server: Penstock, disk: SmallDisk) -> None:
    topic = create_topic(server)
    with wire.Connection(server) as connection:
        acknowledged = fill_up(connection, topic)
        disk.fill()
        new = {"name": "new", "num_partitions": 1, "replication_factor": 1}
        (refused,) = connection.call("create_topics", 7, topics=[new], timeout=10_000).topics
        assert refused.error_code is ErrorCode.kafka_storage_error
        assert read_partition(connection, topic, 0) == acknowledged
        (deleted,) = connection.call("delete_topics", 6, topics=[{"name": topic}], timeout=10_000).responses
        assert deleted.error_code is ErrorCode.none
        eventually("there is space for a topic", lambda: is_created(connection, new))
        eventually("there is space for records", lambda: send(connection, "new", VALUE) == (ErrorCode.none, 0))


def is_created(connection: wire.Connection, new: dict[str, Any]) -> bool:
    (created,) = connection.call("create_topics", 7, topics=[new], timeout=10_000).topics
    return bool(created.error_code is ErrorCode.none)


def test_a_broker_killed_on_a_full_disk_starts_there_again_and_serves_what_it_has(
    server: Penstock, disk: SmallDisk
) -> None:
    topic = create_topic(server)
    with wire.Connection(server) as connection:
        acknowledged = fill_up(connection, topic)
    disk.fill()
    server.kill()
    server.start()
    with wire.Connection(server) as connection:
        assert read_partition(connection, topic, 0) == acknowledged
        assert send(connection, topic, VALUE)[0] is ErrorCode.kafka_storage_error
        disk.free()
        assert send(connection, topic, b"after") == (ErrorCode.none, len(acknowledged))
        disk.fill()
        assert server.terminate() == 0
    server.start()
    with wire.Connection(server) as connection:
        assert read_partition(connection, topic, 0) == {**acknowledged, len(acknowledged): b"after"}


def test_what_has_expired_makes_space_on_a_full_disk(server: Penstock, disk: SmallDisk) -> None:
    topic = create_topic(server, retention_ms="-1", retention_bytes="1000000", internal_segment_bytes="200000")
    with wire.Connection(server) as connection:
        acknowledged = fill_up(connection, topic)
    disk.fill()
    server.kill()
    server.arguments = (*server.arguments, "--config", "log.retention.check.interval.ms=50")
    server.start()
    with wire.Connection(server) as connection:
        eventually("there is space", lambda: send(connection, topic, VALUE) == (ErrorCode.none, len(acknowledged)))
        (start,) = {partition.offset for partition in list_offsets(connection, topic)}
        assert 0 < start < len(acknowledged)
        expected = {offset: value for offset, value in acknowledged.items() if offset >= start}
        assert read_partition(connection, topic, 0, start) == {**expected, len(acknowledged): VALUE}


def list_offsets(connection: wire.Connection, topic: str) -> Any:
    wanted = {"name": topic, "partitions": [{"partition_index": 0, "timestamp": -2}]}
    return connection.call("list_offsets", 6, replica_id=-1, topics=[wanted]).topics[0].partitions


def test_deleting_records_makes_space_on_a_full_disk_or_is_refused(server: Penstock, disk: SmallDisk) -> None:
    topic = create_topic(server, internal_segment_bytes="200000")
    with wire.Connection(server) as connection:
        acknowledged = fill_up(connection, topic)
        disk.fill()
        assert delete_records(connection, topic, 1) is ErrorCode.kafka_storage_error, "no whole segment goes with it"
        assert read_partition(connection, topic, 0) == acknowledged, "what was refused has been done"
        assert delete_records(connection, topic, len(acknowledged) // 2) is ErrorCode.none
        assert send(connection, topic, b"after") == (ErrorCode.none, len(acknowledged))
    server.kill()
    server.start()
    with wire.Connection(server) as connection:
        (start,) = {partition.offset for partition in list_offsets(connection, topic)}
        assert start == len(acknowledged) // 2


def delete_records(connection: wire.Connection, topic: str, offset: int) -> ErrorCode:
    part = {"partition_index": 0, "offset": offset}
    topics = [{"name": topic, "partitions": [part]}]
    answer = connection.call("delete_records", 2, topics=topics, timeout=10_000)
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


def test_a_client_is_told_within_seconds_that_the_disk_is_full_and_goes_on_when_it_is_not(
    server: Penstock, disk: SmallDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = create_topic(server)
    with (
        penstock.connect(f"kafka://{server.bootstrap}") as stream,
        penstock.Producer(stream) as producer,
        penstock.Producer(stream, buffer=f"spool:{tmp_path / 'spool'}") as spooled,
    ):
        receipts = [stream.send(topic, b"before")]
        receipts.append(spooled.send(topic, b"before"))
        for receipt in receipts:
            receipt.result(30)
        disk.fill()
        receipts += [each.send(topic, VALUE) for each in (stream, producer, spooled)]
        wait_until(lambda: len(_stalls(caplog)) >= 3, 15)
        assert all("is full" in told and "of 4,194,304 bytes left" in told for told in _stalls(caplog)[:3])
        disk.free()
        for receipt in receipts:
            receipt.result(60)


def _stalls(caplog: pytest.LogCaptureFixture) -> list[str]:
    name = "penstock.streams.kafka.producing.stalls"
    return [record.getMessage() for record in caplog.records if record.name == name]


def test_produce_says_within_seconds_that_the_disk_is_full(server: Penstock, disk: SmallDisk) -> None:
    topic = create_topic(server)
    disk.fill()
    command = [sys.executable, "-m", "penstock.cli", "produce", topic, "--url", f"kafka://{server.bootstrap}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("x" * 20_000 + "\n")
        process.stdin.close()
        began_s = time.monotonic()
        told = process.stderr.readline()
        assert time.monotonic() - began_s < 20
        assert "is full" in told
        disk.free()
        assert process.wait(60) == 0
