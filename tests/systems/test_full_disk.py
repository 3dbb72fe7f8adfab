"""Servers and files whose disk is full: the error says so, nothing acknowledged is lost, and it goes on once there is
room again, without a restart of the client."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

import httpx2
import psycopg
import pytest

import penstock
from penstock.abc import Outcome
from penstock.errors import BrokerUnavailableError, DeliveryError
from penstock.gateway import Gateway
from penstock.model import NewRecord
from penstock.queues import open_queue
from tests.consuming.eventually import wait_until
from tests.postgres import PostgresServer, user_who_may
from tests.redis_server import RedisServer
from tests.seeds import seed_of
from tests.servers import ApacheKafka, free_ports
from tests.streams.embedded import stop_broker
from tests.systems import artemis_server
from tests.systems.activemq_server import PASSWORD, USER, ActiveMq
from tests.systems.artemis_server import Artemis
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

    def leave(self, size_bytes: int) -> None:
        """Let the file use up what is free, but for so much."""
        status = os.statvfs(self.folder)
        with self._ballast.open("ab") as file:
            file.write(bytes(max(0, status.f_bavail * status.f_frsize - size_bytes)))

    def make_room(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    """Not below `tmp_path`, which other users may not enter: PostgreSQL does not run as root."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    with tempfile.TemporaryDirectory(prefix="penstock-disk-") as folder:
        yield from mounted_disk(Path(folder))


@pytest.fixture
def larger_disk() -> Iterator[SmallDisk]:
    """For servers whose own files take tens of megabytes."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    with tempfile.TemporaryDirectory(prefix="penstock-disk-") as folder:
        yield from mounted_disk(Path(folder), "100m")


def mounted_disk(folder: Path, size: str = "4m") -> Iterator[SmallDisk]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
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


@pytest.mark.system("Apache Kafka")
@pytest.mark.xdist_group("kafka")
def test_apache_kafka_which_ends_and_is_started_again(larger_disk: SmallDisk) -> None:
    with ApacheKafka(larger_disk.folder / "kafka") as server:

        def make_room() -> None:
            larger_disk.make_room()
            server.stop()
            server.start()

        larger_disk.leave(3_000_000)
        check_full(
            f"kafka://{server.bootstrap}?delivery.timeout.ms=8000",
            "check that the brokers run and can be reached",
            make_room,
        )


@pytest.mark.system("AMQP 1.0, Artemis")
@pytest.mark.xdist_group("artemis")
def test_artemis_gives_senders_no_credit_and_delivers_what_it_has(larger_disk: SmallDisk) -> None:
    with Artemis(larger_disk.folder / "artemis") as server:
        login = f"{artemis_server.USER}:{quote(artemis_server.PASSWORD, safe='')}"
        url = f"amqp1://{login}@127.0.0.1:{server.port}/jobs?send_timeout_s=4&heartbeat_s=2"
        stored: list[bytes] = []
        with closing(open_queue(url)) as queue:
            queue.send([NewRecord("jobs", b"before")])
            larger_disk.leave(800_000)  # less than a hundredth, from which on Artemis takes nothing
            refused: BrokerUnavailableError | None = None
            until_s = time.monotonic() + WAIT_S
            while refused is None and time.monotonic() < until_s:
                value = b"%d" % len(stored)
                try:
                    queue.send([NewRecord("jobs", value)])
                except BrokerUnavailableError as error:
                    refused = error
                else:
                    stored.append(value)
            assert "A broker whose store is full does not answer: check its disk" in str(refused)
            larger_disk.make_room()

            def is_sent() -> bool:
                try:
                    queue.send([NewRecord("jobs", b"after")])
                except BrokerUnavailableError:
                    return False
                return True

            wait_until(is_sent, WAIT_S)
        received: set[bytes | None] = set()
        with closing(open_queue(url)) as receiver:
            while not {b"before", b"after", *stored} <= received:
                deliveries = receiver.receive(100, WAIT_S)
                assert deliveries, f"{len(received)} of {len(stored)} records came, and then none"
                received.update(each.record.value for each in deliveries)
                for each in deliveries:
                    receiver.settle(each, Outcome.DONE)


@pytest.mark.system("HTTP")
@pytest.mark.xdist_group("http-gateway")
def test_the_inbox_of_a_gateway_refuses_what_it_cannot_keep(
    disk: SmallDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = free_ports(1)
    url, sink = f"http://127.0.0.1:{port}/hooks", f"sqlite:{tmp_path}/sink.db"
    gateway = Gateway(url, f"{sink}#hooks", inbox=f"log:{disk.folder}/inbox")
    running = threading.Thread(target=gateway.run)
    running.start()
    accepted: list[bytes] = []

    def post(number: int) -> int:
        body = b"%d:" % number + VALUE
        try:
            status = int(httpx2.post(url, content=body, timeout=WAIT_S).status_code)
        except httpx2.TransportError:
            return 0
        if status < 300:
            accepted.append(body)
        return status

    try:
        wait_until(lambda: post(0) in range(200, 300), WAIT_S)
        refused = next((status for status in map(post, range(1, MOST)) if status >= 300), None)
        assert refused == 503, f"{refused}: a sender tries again after 503"
        assert len(accepted) > 10
        assert re.search(r"of channel hooks were refused: .*\binbox\b", caplog.text), caplog.text
        disk.make_room()
        wait_until(lambda: post(MOST) in range(200, 300), WAIT_S)
        wait_until(lambda: gateway.progress().waiting == 0, WAIT_S)
    finally:
        gateway.stop()
        running.join(WAIT_S)
        stop_broker(disk.folder / "inbox")
    with penstock.connect(sink) as stream:
        carried = {record.value for record in stream.read("hooks")}
    assert set(accepted) <= carried, "what was acknowledged is there"
