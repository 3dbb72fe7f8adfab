"""Queues of AMQP 1.0 brokers by `amqp1:` URLs: Artemis, which is killed and cut off, Qpid, RabbitMQ and ActiveMQ."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from penstock.queues import open_queue
from penstock.queues.amqp1 import Amqp1Queue
from penstock.testing import TcpProxy, conformance
from tests import real_parts, system_table
from tests.systems import artemis_server, qpid_server
from tests.systems.artemis_server import Artemis
from tests.systems.qpid_server import Qpid
from tests.systems.rabbitmq_server import RabbitMq

pytestmark = [pytest.mark.system("AMQP 1.0"), pytest.mark.xdist_group("amqp1")]

ARTEMIS = "PENSTOCK_TEST_ARTEMIS"
QPID = "PENSTOCK_TEST_QPID"
RABBITMQ = "PENSTOCK_TEST_RABBITMQ_AMQP1"
WAIT_S = 30.0


class Outage:
    def __init__(self, server: Artemis | Qpid, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self.kill = server.kill
        self.restart = server.restart


_running: dict[str, Outage] = {}


def artemis_outage() -> Outage:
    return _running[ARTEMIS]


@pytest.fixture(scope="module")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artemis]:
    real_parts.proton()
    with Artemis(tmp_path_factory.mktemp("artemis")) as server, TcpProxy(server.port) as proxy:
        user = f"{artemis_server.USER}:{quote(artemis_server.PASSWORD, safe='')}"
        os.environ[ARTEMIS] = f"amqp1://{user}@{proxy.address}"
        _running[ARTEMIS] = Outage(server, proxy)
        queue = open_amqp1(artemis_url("first", "retries=broker"))
        system_table.met("AMQP 1.0", f"{queue.product} and others", queue.features)
        queue.close()
        yield server
        del os.environ[ARTEMIS], _running[ARTEMIS]


@pytest.fixture(scope="module")
def qpid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qpid]:
    real_parts.proton()
    with Qpid(tmp_path_factory.mktemp("qpid")) as server:
        os.environ[QPID] = f"amqp1://{qpid_server.USER}:{qpid_server.PASSWORD}@127.0.0.1:{server.port}"
        yield server
        del os.environ[QPID]


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    real_parts.proton()
    with RabbitMq(tmp_path_factory.mktemp("rabbitmq")) as server:
        os.environ[RABBITMQ] = f"amqp1://guest:guest@{server.address}"
        yield server
        del os.environ[RABBITMQ]


def artemis_url(name: str, parameters: str = "") -> str:
    return f"{os.environ[ARTEMIS]}/{name}?heartbeat_s=2&{parameters}"


def open_amqp1(url: str) -> Amqp1Queue:
    queue = open_queue(url)
    assert isinstance(queue, Amqp1Queue)
    return queue


def new_queue(parameters: str = "") -> Amqp1Queue:
    return open_amqp1(artemis_url(f"q-{uuid.uuid4().hex[:8]}", parameters))


def open_on_artemis(folder: Path) -> Amqp1Queue:
    """The folder's name is the queue's, and the environment says where the server is: child processes find it, too."""
    return open_amqp1(artemis_url(folder.name))


def open_with_broker_retries(folder: Path) -> Amqp1Queue:
    return open_amqp1(artemis_url(f"{folder.name}-retried", "retries=broker&prefetch=20"))


def open_on_qpid(folder: Path) -> Amqp1Queue:
    return open_amqp1(f"{os.environ[QPID]}/delaying?retries=broker&prefetch=5")


def open_on_rabbitmq(folder: Path) -> Amqp1Queue:
    return open_amqp1(f"{os.environ[RABBITMQ]}/{folder.name}")


@pytest.mark.usefixtures("artemis")
class TestArtemis(conformance.queue(open_on_artemis, outage=artemis_outage)):  # type: ignore[misc]
    pass


@pytest.mark.usefixtures("artemis")
class TestArtemisWithItsOwnRetries(conformance.queue(open_with_broker_retries)):  # type: ignore[misc]
    pass


@pytest.mark.usefixtures("qpid")
class TestQpid(conformance.queue(open_on_qpid)):  # type: ignore[misc]
    pass


@pytest.mark.usefixtures("rabbitmq")
class TestRabbitMq(conformance.queue(open_on_rabbitmq)):  # type: ignore[misc]
    pass
