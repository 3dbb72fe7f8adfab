"""A log of this machine that all tests of this folder query."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import penstock
from penstock.querying.database import TopicDatabase
from tests.querying.orders import ORDERS, Order

BEGIN_MS = 1_700_000_000_000


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"log:{tmp_path_factory.mktemp('querying') / 'data'}"


@pytest.fixture(scope="session")
def stream(url: str) -> Iterator[penstock.Connection]:
    with penstock.connect(url, exit_when_idle_s=5) as connection:
        for number in range(300):
            order = Order(f"c{number % 3}", number)
            headers = {"source": "web"} if number % 2 else None
            connection.send(
                ORDERS, order, f"k{number % 10}", headers=headers, timestamp=1_700_000_000_000 + number * 60_000
            )
        connection.flush(60)
        yield connection


@pytest.fixture(scope="session")
def database(stream: penstock.Connection, url: str) -> TopicDatabase:
    return TopicDatabase(stream, url, threads=1)


@pytest.fixture(scope="session")
def typed(stream: penstock.Connection, url: str) -> TopicDatabase:
    return TopicDatabase(stream, url, types=[ORDERS], threads=1)


@pytest.fixture(scope="session")
def everything(typed: TopicDatabase) -> pa.Table:
    return typed.query("from orders")
