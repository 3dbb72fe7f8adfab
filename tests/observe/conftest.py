"""A broker that the tests of this room share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from tests.servers import Penstock


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1500",
        "log.retention.check.interval.ms": "100",
    }
    quick = [word for name, value in settings.items() for word in ("--config", f"{name}={value}")]
    with Penstock(tmp_path_factory.mktemp("observe"), *quick) as running:
        yield running


@pytest.fixture(scope="session")
def stream(server: Penstock) -> Iterator[penstock.Connection]:
    with penstock.connect(f"kafka://{server.bootstrap}") as connection:
        yield connection
