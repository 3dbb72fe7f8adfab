"""RabbitMQ streams on a real RabbitMQ 4."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

import penstock
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.systems.rabbitmq_server import RabbitMq

pytestmark = [pytest.mark.system("RabbitMQ streams"), pytest.mark.xdist_group("rabbitmq-stream")]

URL = "PENSTOCK_TEST_RABBITMQ_STREAM"
MANAGEMENT = "PENSTOCK_TEST_RABBITMQ_MANAGEMENT"
SERVES_MANAGEMENT = "management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management_port}\n"


class Outage:
    """A RabbitMQ and the proxy in front of it."""

    def __init__(self, server: RabbitMq, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self._server = server

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        self._server.restart()


_running: list[Outage] = []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    folder = tmp_path_factory.mktemp("rabbitmq")
    with RabbitMq(folder, 4, plugins=["rabbitmq_management"], settings=SERVES_MANAGEMENT) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: RabbitMq) -> Iterator[TcpProxy]:
    with TcpProxy(server.stream_port) as proxy:
        with penstock.connect(f"rabbitmq-stream://{proxy.address}") as stream:
            system_table.met("RabbitMQ streams", f"RabbitMQ {server.version}, one node", stream.features)
        _running.append(Outage(server, proxy))
        yield proxy
        _running.pop()


def connect(url: str, **settings: object) -> penstock.Connection:
    return penstock.connect(f"{url}?{urlencode(settings)}")


def open_rabbitmq() -> penstock.Connection:
    """Found by the environment, so that child processes find it, too."""
    return connect(os.environ[URL], timeout_s=2.0, management=os.environ[MANAGEMENT])


def outage() -> Outage:
    return _running[-1]


class TestRabbitMqStreams(conformance.stream(open_rabbitmq, outage=outage)):  # type: ignore[misc]
    @pytest.fixture(autouse=True)
    def _server(self, server: RabbitMq, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(URL, f"rabbitmq-stream://{proxy.address}")
        monkeypatch.setenv(MANAGEMENT, f"http://127.0.0.1:{server.management_port}")
