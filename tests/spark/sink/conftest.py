"""What the tests of targets share: one broker, topics of their own, and queries that were never run by Spark."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from penstock import Connection
from penstock.spark.sink.refused_rows import RefusedRows
from penstock.spark.sink.target import Delivery, QueryIdentity, Target
from tests.postgres import PostgresServer, shared_postgres
from tests.servers import Penstock
from tests.spark.sink.databases import Rows

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


@pytest.fixture(scope="session")
def postgres_server() -> PostgresServer:
    return shared_postgres()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'results.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.fresh_database()


@pytest.fixture
def rows(database: str) -> Iterator[Rows]:
    """Asks the database, as somebody else would."""
    connection: Any
    if database.startswith("sqlite:"):
        connection = sqlite3.connect(database.removeprefix("sqlite:"), isolation_level=None)
    else:
        connection = psycopg.connect(database, autocommit=True)

    def ask(statement: str) -> list[tuple[Any, ...]]:
        cursor = connection.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []

    yield ask
    connection.close()


@pytest.fixture
def open_target(identity: QueryIdentity) -> Iterator[Callable[..., Delivery]]:
    opened: list[Delivery] = []

    def open_one(target: Target, mode: Any = "append", refused: RefusedRows | None = None) -> Delivery:
        opened.append(target.open(replace(identity, mode=mode, refused=refused)))
        return opened[-1]

    yield open_one
    for delivery in opened:
        delivery.close()
