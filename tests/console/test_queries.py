"""Queries of the console's pages: they only read, and are limited."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import penstock
from penstock.console import queries
from penstock.console.service import Service
from penstock.console.web.pages.query import columns_of, rows_of
from penstock.errors import ConfigError, QueryError, QueryStoppedError
from penstock.serde import AvroSerde, MsgpackSerde
from penstock.serde.registry.client import SchemaRegistry
from tests.clients.names import fresh
from tests.querying.orders import Order
from tests.querying.test_queries import ENDLESS
from tests.serde.registry_server import registry_server
from tests.servers import Penstock


def test_a_query_returns_its_rows_as_text(service: Service, stream: penstock.Connection, topic: str) -> None:
    for number in range(3):
        stream.send(topic, {"n": number}, "k", partition=1)
    stream.flush(30)
    answer = service.open_query().run(
        f'select "offset", value->>\'n\' as "<b>n", null as nothing, \'nan\'::float as odd from "{topic}" order by 1'
    )
    assert answer.rows[1] == ("1", "1", None, "null")
    assert [column.label for column in columns_of(answer)] == ["offset", "<b>n", "nothing", "odd"]
    assert rows_of(answer)[1]["c0"] == 1.0
    assert rows_of(answer)[1]["c3"] is None


def test_rows_and_cells_are_limited(service: Service) -> None:
    answer = service.open_query().run("select repeat('x', 5000) from range(5000)")
    assert (len(answer.rows), answer.is_cut) == (queries.MOST_ROWS, True)
    assert len(answer.rows[0][0] or "") < 2 * queries.LONGEST_CELL


def test_a_query_knows_the_types_that_the_console_was_started_with(
    server: Penstock, stream: penstock.Connection, tmp_path: Path
) -> None:
    typed, registered = fresh(), fresh()
    with registry_server() as running:
        address = running.url
        avro = AvroSerde(Order, registry=SchemaRegistry(address))
        stream.send(penstock.Topic(registered, Order, serde=avro), Order("ann", 7)).result(30)
        packed = penstock.Topic(typed, Order, serde=MsgpackSerde(Order))
        stream.send(packed, Order("bob", 8)).result(30)
        with Service(
            f"kafka://{server.bootstrap}", state=tmp_path, every_s=60.0, registry=address, types=[packed]
        ) as service:
            for topic, expected in ((registered, ("ann", "7")), (typed, ("bob", "8"))):
                assert service.open_query().run(f'select customer, cents from "{topic}"').rows == [expected]


def test_a_query_changes_nothing(service: Service, topic: str) -> None:
    with pytest.raises(QueryError, match="INSERT is not allowed"):
        service.open_query().run(f'insert into "{topic}" values (1)')


def test_a_closed_page_ends_its_query_and_others_wait_for_a_place(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "TIMEOUT_S", 60.0)
    pages = [service.open_query() for _ in range(queries.AT_ONCE)]
    ended: list[Exception] = []

    def ask(page: queries.Query) -> None:
        try:
            page.run(ENDLESS)
        except QueryStoppedError as error:
            ended.append(error)

    asking = [threading.Thread(target=ask, args=[page]) for page in pages]
    for thread in asking:
        thread.start()
    while not all(page.is_running for page in pages):
        threading.Event().wait(0.01)
    with pytest.raises(ConfigError, match="queries are running already"):
        service.open_query().run("select 1")
    for page in pages:
        page.close()
    while any(thread.is_alive() for thread in asking):
        for page in pages:
            page.cancel()  # again, for one that had not begun
        asking[0].join(0.05)
    assert len(ended) == queries.AT_ONCE
    assert service.open_query().run("select 1").rows == [("1",)]


def test_queries_use_the_cache_that_the_console_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    url, topic = f"log:{tmp_path}/data", fresh()
    with penstock.connect(url) as stream:
        stream.create_topic(topic, 1, config={"segment.bytes": str(1 << 20)})
        for number in range(2_000):
            stream.send(topic, {"n": number}, headers={"filler": b"x" * 1_000})
        stream.flush(30)
        with Service(url, every_s=60.0, sql_cache_bytes=1 << 30) as service:
            answer = service.open_query().run(f'select sum(n)::bigint from "{topic}"')
    assert answer.rows == [(str(sum(range(2_000))),)]
    assert answer.records_cached > 500
    assert list((tmp_path / "cache" / "sql").iterdir())
