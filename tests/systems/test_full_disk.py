"""Servers and files whose disk is full: the error says so, nothing acknowledged is lost, and it goes on once there is
room again, without a restart of the client."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psycopg
import pytest

import penstock
from penstock.abc import Outcome
from penstock.errors import BrokerUnavailableError, DeliveryError
from penstock.model import NewRecord
from penstock.queues import open_queue
from tests.consuming.eventually import wait_until
from tests.postgres import PostgresServer, user_who_may
from tests.redis_server import RedisServer
from tests.seeds import seed_of
from tests.systems.activemq_server import PASSWORD, USER, ActiveMq
from tests.systems.nats_server import NatsServer
from tests.systems.rabbitmq_server import RabbitMq

VALUE: Final = bytes(10_000)
MOST: Final = 2_000
"""Records that no disk of these tests has room for."""
WAIT_S: Final = 60.0


class SmallDisk:
    """A real file system of a few megabytes, with a file that can be removed to make room."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"
        self._ballast.write_bytes(bytes(1_000_000))

    def make_room(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    """Not below `tmp_path`, which other users may not enter: PostgreSQL does not run as root."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    with tempfile.TemporaryDirectory(prefix="penstock-disk-") as folder:
        yield from mounted_disk(Path(folder))


def mounted_disk(folder: Path) -> Iterator[SmallDisk]:
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=30)


def check_full(url: str, message: str, make_room: Callable[[], object]) -> None:
    """Fill a topic until a record is refused, and go on with the same connection when there is room."""
    topic = f"full-{uuid.uuid4().hex[:8]}"
    with penstock.connect(url) as stream:
        stream.create_topic(topic)
        opened = stream.open_topic(topic)
        stored: list[bytes] = []
        noise = random.Random(seed_of())  # so that no server compresses it
        refused: DeliveryError | None = None
        for number in range(MOST):
            value = b'{"number":%d,"rest":"%s"}' % (number, noise.randbytes(5_000).hex().encode())
            try:
                opened.append([NewRecord(topic, value)])[0].result(WAIT_S)
            except DeliveryError as error:
                refused = error
                break
            stored.append(value)
        assert refused is not None, f"{MOST} records were stored"
        assert refused.retriable
        assert stored, "the disk was full from the beginning"
        with pytest.raises(DeliveryError, match=message):
            raise refused
        make_room()

        def is_stored() -> bool:
            try:
                opened.append([NewRecord(topic, b'"after"')])[0].result(WAIT_S)
            except DeliveryError:
                return False
            return True

        wait_until(is_stored, WAIT_S)
        found = [record.value for record in stream.read(topic, timeout_s=WAIT_S)]
        opened.close()
    assert found[: len(stored)] == stored, "what was acknowledged is there"
    assert found[-1] == b'"after"'


@pytest.mark.system("SQLite")
def test_sqlite(disk: SmallDisk) -> None:
    check_full(f"sqlite:{disk.folder}/events.db", "database or disk is full; check the disk", disk.make_room)


@pytest.mark.system("Files")
def test_files(disk: SmallDisk) -> None:
    check_full(f"file:{disk.folder}/", r"No space left on device.* Make room", disk.make_room)


@pytest.mark.system("PostgreSQL")
@pytest.mark.xdist_group("postgres tables")
def test_postgresql(disk: SmallDisk) -> None:
    place = disk.folder / "tables"
    place.mkdir(mode=0o700)
    shutil.chown(place, user_who_may())
    disk.folder.chmod(0o755)
    with PostgresServer() as server:
        with psycopg.connect(server.url, autocommit=True) as database:
            database.execute(f"CREATE TABLESPACE small LOCATION '{place}'".encode())
            database.execute("CREATE SCHEMA here")
        url = f"{server.url}?options=-csearch_path%3Dhere%20-cdefault_tablespace%3Dsmall"
        check_full(url, "Check free disk space", disk.make_room)


@pytest.mark.system("Redis Streams")
@pytest.mark.xdist_group("redis streams")
def test_redis_whose_append_only_file_cannot_be_written(disk: SmallDisk, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", "--appendfsync", "everysec", "--dir", str(disk.folder)) as server:
        check_full(f"{server.url}?delivery_timeout_s=3", r"MISCONF.*No space left on device", disk.make_room)


@pytest.mark.system("NATS JetStream")
@pytest.mark.xdist_group("nats")
def test_nats(tmp_path: Path) -> None:
    with NatsServer(tmp_path, limits="max_file_store: 1MB") as server:

        def make_room() -> None:
            with penstock.connect(server.url) as stream:
                stream.delete_topic("ballast")

        with penstock.connect(server.url) as stream:
            stream.create_topic("ballast")
            for _ in range(20):
                stream.send("ballast", VALUE)
            stream.flush(WAIT_S)
        check_full(f"{server.url}?delivery_timeout_s=2", r"Make room on the server's disk", make_room)


@pytest.mark.system("RabbitMQ")
@pytest.mark.xdist_group("rabbitmq")
def test_rabbitmq_with_an_alarm_takes_no_messages_and_delivers_those_it_has(tmp_path: Path) -> None:
    with RabbitMq(tmp_path / "rabbitmq") as server:
        url = f"amqp://{server.address}/jobs?send_timeout_s=3&heartbeat_s=2"
        with closing(open_queue(url)) as queue, closing(open_queue(url)) as receiver:
            queue.send([NewRecord("jobs", b"before")])
            server.control("set_disk_free_limit", "900000GB")
            for _ in range(2):
                with pytest.raises(BrokerUnavailableError, match=r"no messages now: low on disk\. Free disk space"):
                    queue.send([NewRecord("jobs", b"under way")])
            [delivery] = receiver.receive(1, WAIT_S)
            assert delivery.record.value == b"before"
            receiver.settle(delivery, Outcome.DONE)
            server.control("set_disk_free_limit", "100MB")

            def is_sent() -> bool:
                try:
                    queue.send([NewRecord("jobs", b"after")])
                except BrokerUnavailableError:
                    return False
                return True

            wait_until(is_sent, WAIT_S)
            values: set[bytes | None] = set()
            while b"after" not in values:
                deliveries = receiver.receive(10, WAIT_S)
                assert deliveries, f"{values} came, and then nothing"
                values.update(each.record.value for each in deliveries)
                for each in deliveries:
                    receiver.settle(each, Outcome.DONE)
    assert values <= {b"under way", b"after"}


@pytest.mark.system("RabbitMQ streams")
@pytest.mark.xdist_group("rabbitmq-stream")
def test_rabbitmq_streams_with_an_alarm(tmp_path: Path) -> None:
    """The server then reads nothing from any of its clients, and does not say so."""
    with RabbitMq(tmp_path / "rabbitmq", 4) as server:
        url = f"rabbitmq-stream://127.0.0.1:{server.stream_port}?delivery_timeout_s=3&timeout_s=2"
        with penstock.connect(url) as stream:
            stream.create_topic("orders")
            opened = stream.open_topic("orders")
            opened.append([NewRecord("orders", b"before")])[0].result(WAIT_S)
            server.control("set_disk_free_limit", "900000GB")
            receipts = (opened.append([NewRecord("orders", b"under way")])[0] for _ in range(50))
            with pytest.raises(DeliveryError, match="no alarm for disk or memory") as refused:
                [receipt.result(WAIT_S) for receipt in receipts]  # it may read some more before it stops
            assert refused.value.retriable
            server.control("set_disk_free_limit", "100MB")

            def is_stored() -> bool:
                try:
                    opened.append([NewRecord("orders", b"after")])[0].result(WAIT_S)
                except DeliveryError:
                    return False
                return True

            wait_until(is_stored, WAIT_S)
            found = [record.value for record in stream.read("orders", timeout_s=WAIT_S)]
            opened.close()
    assert found[0] == b"before"
    assert b"after" in found


@pytest.mark.system("ActiveMQ")
@pytest.mark.xdist_group("activemq")
def test_activemq_whose_store_is_full_and_that_then_keeps_senders_waiting(tmp_path: Path) -> None:
    with ActiveMq(tmp_path / "activemq", store="9 mb") as server:
        login = f"{USER}:{quote(PASSWORD, safe='')}"
        url = f"stomp://{login}@{server.address}/jobs?send_timeout_s=4&heartbeat_s=2"
        with closing(open_queue(url)) as queue:
            stored: list[bytes] = []
            refused: BrokerUnavailableError | None = None
            for number in range(MOST // 10):
                value = b"%d:" % number + bytes(100_000)
                try:
                    queue.send([NewRecord("jobs", value)])
                except BrokerUnavailableError as error:
                    refused = error
                    break
                stored.append(value)
            assert "A broker whose store is full does not answer" in str(refused)
        received: list[bytes | None] = []
        with closing(open_queue(url)) as receiver:
            while not set(stored) <= set(received):
                deliveries = receiver.receive(100, WAIT_S)
                assert deliveries, f"{len(received)} of {len(stored)} records came, and then none"
                received += [each.record.value for each in deliveries]
                for each in deliveries:
                    receiver.settle(each, Outcome.DONE)
        with closing(open_queue(url)) as queue:

            def is_sent() -> bool:
                try:
                    queue.send([NewRecord("jobs", b"after")])
                except BrokerUnavailableError:
                    return False
                return True

            wait_until(is_sent, WAIT_S)
