"""Apache Pulsar on a real Pulsar, broker and bookie in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.systems.pulsar_server import LISTENER, PulsarServer, version

pytestmark = [pytest.mark.system("Apache Pulsar"), pytest.mark.xdist_group("pulsar")]

URL = "PENSTOCK_TEST_PULSAR"


class Outage:
    """A Pulsar and the proxy in front of its broker."""

    def __init__(self, server: PulsarServer, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self._server = server

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        self._server.start()


_running: list[Outage] = []


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PulsarServer, TcpProxy]]:
    server = PulsarServer(tmp_path_factory.mktemp("pulsar"))
    with TcpProxy(server.port) as proxy:
        server.advertise(proxy.port)
        with server:
            url = f"pulsar://{proxy.address}?admin_url={server.admin_url}&listener_name={LISTENER}"
            with penstock.connect(url) as stream:
                system_table.met("Apache Pulsar", f"Pulsar {version()} standalone, journal synced", stream.features)
            _running.append(Outage(server, proxy))
            os.environ[URL] = url
            yield server, proxy
            del os.environ[URL]
            _running.clear()


@pytest.fixture(scope="module", autouse=True)
def url(proxied: tuple[PulsarServer, TcpProxy]) -> str:
    return os.environ[URL]


def open_pulsar() -> Any:
    return penstock.connect(f"{os.environ[URL]}&timeout_s=5")


TestConformance = conformance.stream(open_pulsar, outage=lambda: _running[0])
