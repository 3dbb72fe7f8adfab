"""Kafka's protocol, spoken to the embedded log and to Apache Kafka, keeps the promises of a stream.

Both servers are behind a proxy whose address they advertise, so every connection of a client can be broken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import penstock
from penstock import __version__
from penstock.streams.kafka.settings import LONGEST_BACKOFF_S
from penstock.testing import TcpProxy, conformance
from tests import real_parts, system_table
from tests.servers import ApacheKafka, Penstock

BOOTSTRAP = "PENSTOCK_CONFORMANCE_BOOTSTRAP"


def open_kafka(delivery_timeout_s: float = 120.0) -> penstock.Connection:
    """Found by the environment, so that child processes find it, too."""
    return penstock.connect(f"kafka://{os.environ[BOOTSTRAP]}", linger_ms=1, delivery_timeout_s=delivery_timeout_s)


def delete_records(connection: penstock.Connection, topic: str, partition: int, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": connection.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        future.result(30)


class Outage:
    """A server and the proxy in front of it."""

    def __init__(self, server: Penstock | ApacheKafka, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self._server = server

    def kill(self) -> None:
        self._server.process.kill()

    def restart(self) -> None:
        self._server.start()


_running: list[Outage] = []
"""The server of the class that is tested now."""


def outage() -> Outage:
    return _running[-1]


@pytest.fixture(scope="class")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpProxy]:
    with (
        TcpProxy(0) as proxy,
        Penstock(tmp_path_factory.mktemp("log"), "--advertise", proxy.address) as server,
    ):
        proxy.server = ("127.0.0.1", server.port)
        yield from run("Embedded log", f"penstock serve {__version__}", Outage(server, proxy))


@pytest.fixture(scope="class")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpProxy]:
    with TcpProxy(0) as proxy:
        advertised = {"advertised.listeners": f"PLAINTEXT://{proxy.address}"}
        with ApacheKafka(tmp_path_factory.mktemp("kafka"), advertised) as server:
            proxy.server = ("127.0.0.1", server.port)
            yield from run("Apache Kafka", f"Apache Kafka {real_parts.kafka_version()}", Outage(server, proxy))


def run(system: str, server: str, behind: Outage) -> Iterator[TcpProxy]:
    """Make it the server of the class that is tested, and note it for the table of systems."""
    with penstock.connect(f"kafka://{behind.proxy.address}") as stream:
        system_table.met(system, server, stream.features)
    _running.append(behind)
    yield behind.proxy
    _running.pop()


def suite() -> Any:
    return conformance.stream(open_kafka, expire=delete_records, outage=outage, longest_backoff_s=LONGEST_BACKOFF_S)


@pytest.mark.system("Embedded log")
@pytest.mark.xdist_group("embedded log conformance")
class TestEmbeddedLog(suite()):  # type: ignore[misc]
    @pytest.fixture(autouse=True)
    def _broker(self, embedded: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(BOOTSTRAP, embedded.address)


@pytest.mark.system("Apache Kafka")
@pytest.mark.xdist_group("kafka conformance")
class TestApacheKafka(suite()):  # type: ignore[misc]
    @pytest.fixture(autouse=True)
    def _broker(self, apache: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(BOOTSTRAP, apache.address)
