"""A broker and a service over it that all tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.console import letters, link
from penstock.console.messages import pages as messages
from penstock.console.service import Service
from penstock.console.views import Person
from tests.clients.names import fresh
from tests.servers import Penstock

SELDOM_S = 3_600.0
"""Services of tests look when they are told to."""


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """A machine that is busy with other tests must not look like a broker that is away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "ANSWER_S", 60.0)
        patch.setattr(link, "_REACHED_S", 60.0)
        patch.setattr(letters, "FIRST_READ_S", 60.0)
        patch.setattr(messages, "SCAN_S", 60.0)
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    settings = ("group.initial.rebalance.delay.ms=0", "message.max.bytes=20000000")
    arguments = [word for setting in settings for word in ("--config", setting)]
    with Penstock(tmp_path_factory.mktemp("console"), *arguments) as running:
        yield running


@pytest.fixture(scope="session")
def stream(server: Penstock) -> Iterator[penstock.Connection]:
    with penstock.connect(f"kafka://{server.bootstrap}") as connection:
        yield connection


@pytest.fixture(scope="session")
def service(server: Penstock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(f"kafka://{server.bootstrap}", state=tmp_path_factory.mktemp("state"), every_s=SELDOM_S) as shared:
        yield shared


@pytest.fixture
def ann() -> Person:
    return Person("ann", "127.0.0.1")


@pytest.fixture
def topic(stream: penstock.Connection) -> str:
    """A topic of three partitions."""
    name = fresh()
    stream.create_topic(name, 3)
    return name
