"""What tests of appliers share: a broker, a topic and, one after the other, each database that can be written."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.streams import Connection, connect
from tests.postgres import shared_postgres
from tests.servers import Penstock

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with (
        Penstock(tmp_path_factory.mktemp("broker")) as server,
        connect(f"kafka://{server.bootstrap}") as connection,
    ):
        yield connection


@pytest.fixture
def topic(stream: Connection) -> str:
    name = f"changes-{next(_numbers)}"
    stream.create_topic(name, 1)
    return name


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'copy.db'}" if request.param == "sqlite" else shared_postgres().fresh_database()
