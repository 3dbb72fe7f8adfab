"""Queues by `stomp:` URLs on brokers whose first language is another one: Artemis, and RabbitMQ with its plugin."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from penstock.abc import Feature, Outcome
from penstock.errors import ConfigError
from penstock.model import NewRecord
from penstock.queues import open_queue
from penstock.queues.reconnecting import LONGEST_BACKOFF_S
from penstock.queues.stomp import StompQueue
from penstock.queues.stomp.queue import RABBITMQ_FRAME_BYTES
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.servers import free_ports
from tests.systems import artemis_server
from tests.systems.artemis_server import Artemis
from tests.systems.oversize import check_refused
from tests.systems.rabbitmq_server import RabbitMq

pytestmark = [pytest.mark.xdist_group("stomp-brokers")]

ADDRESS = "PENSTOCK_TEST_STOMP_{}"
WAIT_S = 60.0
LARGEST_BYTES = 1_000_000
ARTEMIS_USER = f"{artemis_server.USER}:{quote(artemis_server.PASSWORD, safe='')}"


class Outage:
    def __init__(self, server: Artemis | RabbitMq, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self.kill = server.kill
        self.restart = server.restart


_running: dict[str, Outage] = {}


def artemis_outage() -> Outage:
    return _running["artemis"]


def rabbitmq_outage() -> Outage:
    return _running["rabbitmq"]


@pytest.fixture(scope="module")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artemis]:
    with (
        Artemis(tmp_path_factory.mktemp("artemis"), protocols="AMQP,STOMP") as server,
        TcpProxy(server.port) as proxy,
    ):
        os.environ[ADDRESS.format("ARTEMIS")] = proxy.address
        _running["artemis"] = Outage(server, proxy)
        queue = on_artemis("first")
        system_table.met("STOMP on Artemis", f"Artemis {server.version}, STOMP 1.2", queue.features)
        queue.close()
        yield server


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    [port] = free_ports(1)
    settings = f"stomp.listeners.tcp.1 = 127.0.0.1:{port}\nmax_message_size = {LARGEST_BYTES}\n"
    folder = tmp_path_factory.mktemp("rabbitmq")
    with RabbitMq(folder, plugins=("rabbitmq_stomp",), settings=settings) as server, TcpProxy(port) as proxy:
        os.environ[ADDRESS.format("RABBITMQ")] = proxy.address
        _running["rabbitmq"] = Outage(server, proxy)
        queue = on_rabbitmq("first")
        system_table.met("STOMP on RabbitMQ", f"RabbitMQ {server.version}, STOMP 1.2", queue.features)
        queue.close()
        yield server


def on_artemis(name: str, parameters: str = "dead_letters=DLQ") -> StompQueue:
    place = os.environ[ADDRESS.format("ARTEMIS")]
    queue = open_queue(
        f"stomp://{ARTEMIS_USER}@{place}/{name}?destination={{queue}}&heartbeat_s=1&connect_timeout_s=5&{parameters}"
    )
    assert isinstance(queue, StompQueue)
    return queue


def on_rabbitmq(name: str, parameters: str = "") -> StompQueue:
    place = os.environ[ADDRESS.format("RABBITMQ")]
    queue = open_queue(f"stomp://guest:guest@{place}/{name}?vhost=/&heartbeat_s=1&connect_timeout_s=5&{parameters}")
    assert isinstance(queue, StompQueue)
    return queue


def open_artemis(folder: Path) -> StompQueue:
    """The folder's name is the queue's, and the environment says where the server is: child processes find it, too."""
    return on_artemis(folder.name)


def open_rabbitmq(folder: Path) -> StompQueue:
    return on_rabbitmq(folder.name)


@pytest.mark.system("STOMP on Artemis")
@pytest.mark.usefixtures("artemis")
class TestArtemis(conformance.queue(open_artemis, outage=artemis_outage, longest_backoff_s=LONGEST_BACKOFF_S)):  # type: ignore[misc]
    pass


@pytest.mark.system("STOMP on RabbitMQ")
@pytest.mark.usefixtures("rabbitmq")
class TestRabbitMq(conformance.queue(open_rabbitmq, outage=rabbitmq_outage, longest_backoff_s=LONGEST_BACKOFF_S)):  # type: ignore[misc]
    pass


@pytest.mark.system("STOMP on Artemis")
@pytest.mark.usefixtures("artemis")
def test_artemis_keeps_rejected_records_only_where_the_url_says() -> None:
    queue = on_artemis(f"q-{uuid.uuid4().hex[:8]}", "send_delay_s=0.1")
    assert Feature.DEAD_LETTERS not in queue.features, "Artemis takes a NACK for an acknowledgement"
    queue.send([NewRecord("queue", b"gone")])
    [delivery] = queue.receive(1, WAIT_S)
    assert delivery.record.headers == ()
    queue.settle(delivery, Outcome.REJECT)
    queue.close()
    name = f"letters-{uuid.uuid4().hex[:8]}"
    queue = on_artemis(f"q-{uuid.uuid4().hex[:8]}", f"dead_letters={name}")
    assert Feature.DEAD_LETTERS in queue.features
    queue.send([NewRecord("queue", b"kept", b"key")])
    [delivery] = queue.receive(1, WAIT_S)
    assert not queue.settle_all([delivery], Outcome.REJECT, reason="old")
    letters = on_artemis(name)
    [dead] = letters.receive(1, WAIT_S)
    assert (dead.record.key, dead.record.value) == (b"key", b"kept")
    assert dead.record.headers == (("penstock-reason", b"old"),)
    letters.settle(dead, Outcome.DONE)
    for each in (queue, letters):
        each.close()


@pytest.mark.system("STOMP on RabbitMQ")
@pytest.mark.usefixtures("rabbitmq")
def test_rabbitmq_gives_a_retried_record_to_others_and_cannot_delay() -> None:
    first = on_rabbitmq(f"q-{uuid.uuid4().hex[:8]}", "prefetch=1")
    second = on_rabbitmq(first.name, "prefetch=1")
    first.send([NewRecord("queue", b"1", headers=(("n", b"1"),))])
    [delivery] = first.receive(1, WAIT_S)
    assert delivery.record.headers == (("n", b"1"),)
    second.receive(1, 0.0)
    first.settle(delivery, Outcome.RETRY)
    again = [*second.receive(1, 1.0), *first.receive(1, 1.0)]
    assert [(each.record.value, each.attempt) for each in again] == [(b"1", 2)]
    with pytest.raises(ConfigError, match=r"RabbitMQ/[\d.]+ that cannot delay messages: omit send_delay_s"):
        on_rabbitmq("q", "send_delay_s=1")
    for each in (first, second):
        each.close()


@pytest.mark.usefixtures("artemis")
@pytest.mark.system("STOMP on Artemis")
def test_a_record_whose_headers_are_over_the_limit_of_artemis_is_refused_and_the_queue_goes_on() -> None:
    with contextlib.closing(on_artemis(f"q-{uuid.uuid4().hex[:8]}")) as queue:
        check_refused(
            queue, NewRecord("queue", b"", headers=(("h", b"v" * 300_000),)), "keep large headers in the value"
        )


@pytest.mark.usefixtures("rabbitmq")
@pytest.mark.system("STOMP on RabbitMQ")
def test_a_record_over_the_limit_of_rabbitmq_is_refused_and_the_queue_goes_on() -> None:
    with contextlib.closing(on_rabbitmq(f"q-{uuid.uuid4().hex[:8]}")) as queue:
        check_refused(queue, NewRecord("queue", b"x" * (LARGEST_BYTES + 1)), f"configured max size {LARGEST_BYTES}")


@pytest.mark.system("STOMP on RabbitMQ")
def test_a_record_over_the_frames_of_rabbitmq_4_is_refused_and_the_queue_goes_on(tmp_path: Path) -> None:
    """It would close the connection without a word, again and again."""
    [port] = free_ports(1)
    settings = f"stomp.listeners.tcp.1 = 127.0.0.1:{port}\n"
    where = f"stomp://guest:guest@127.0.0.1:{port}/q?vhost=/"
    with RabbitMq(tmp_path / "rabbitmq", 4, plugins=("rabbitmq_stomp",), settings=settings) as server:
        assert server.version
        with contextlib.closing(open_queue(where)) as queue:
            fits = b"x" * (RABBITMQ_FRAME_BYTES - 400)
            queue.send([NewRecord("queue", fits)])
            [delivery] = queue.receive(1, WAIT_S)
            assert delivery.record.value == fits
            queue.settle(delivery, Outcome.DONE)
            check_refused(
                queue, NewRecord("queue", fits + bytes(400)), "raise stomp.max_frame_size .* max_frame_bytes here"
            )
        with contextlib.closing(open_queue(f"{where}&max_frame_bytes=600")) as queue:
            check_refused(queue, NewRecord("queue", b"x" * 1_000), "and a frame may have 600")
