"""What the tests of targets share: one broker, topics of their own, and queries that were never run by Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Connection
from penstock.spark.sink.target import QueryIdentity
from tests.servers import Penstock

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def sink_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("sink-broker")) as running:
        yield running


@pytest.fixture(scope="session")
def sink_connection(sink_server: Penstock) -> Iterator[Connection]:
    with penstock.connect(f"kafka://{sink_server.bootstrap}") as connection:
        yield connection


@pytest.fixture
def url(sink_server: Penstock) -> str:
    return f"kafka://{sink_server.bootstrap}"


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"results-{next(_numbers)}"


@pytest.fixture
def identity(tmp_path: Path) -> QueryIdentity:
    """A query of this test."""
    number = next(_numbers)
    return QueryIdentity("shop", "spend", f"query-{number}/topic", str(tmp_path / "staging"))
