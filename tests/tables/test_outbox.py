"""An event is delivered if and only if the rows that it belongs to were committed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm
from django.conf import settings

import penstock as ps
from penstock.errors import ConfigError, UnknownTopicError, UrlError
from penstock.streams.memory import MemoryStream
from penstock.tables import Inbox, Outbox
from tests.postgres import shared_postgres

DATABASES = ("postgresql", "sqlite")
orders = ps.Topic("orders", dict, key=lambda order: order["customer"])


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'shop.db'}" if request.param == "sqlite" else shared_postgres().fresh_database()


@contextlib.contextmanager
def connected(url: str) -> Iterator[Any]:
    """A connection in autocommit, with a table for rows."""
    is_sqlite = url.startswith("sqlite:")
    connection: Any
    connection = sqlite3.connect(url.removeprefix("sqlite:")) if is_sqlite else psycopg.connect(url, autocommit=True)
    with contextlib.closing(connection):
        connection.execute("CREATE TABLE IF NOT EXISTS row (number integer)")
        yield connection


@pytest.fixture
def stream() -> Iterator[MemoryStream]:
    found = MemoryStream(partitions=1)
    yield found
    found.close()


def relayed(outbox: Outbox, stream: MemoryStream, **options: Any) -> list[int]:
    """The numbers of all events in the stream, after the relay has emptied the outbox."""
    outbox.relay(stream, **options).run(once=True)
    topic = stream.open_topic("orders")
    try:
        records = topic.read(0, 0, 1000, 0).records
    except UnknownTopicError:
        return []
    return [(orders.decode(record.value) or {})["number"] for record in records]


def order(number: int) -> dict[str, Any]:
    return {"number": number, "customer": "ann"}


def numbers(connection: Any) -> list[int]:
    return [number for (number,) in connection.execute("SELECT number FROM row ORDER BY number").fetchall()]


class OnPurpose(Exception):
    pass


def test_rows_and_events_commit_together_or_not_at_all(url: str, stream: MemoryStream) -> None:
    outbox = Outbox(url)
    with connected(url) as connection:
        for number in range(4):
            with contextlib.suppress(OnPurpose), outbox.transaction(connection) as tx:
                connection.execute(f"INSERT INTO row VALUES ({number})")
                tx.send(orders, order(number))
                if number % 2:
                    raise OnPurpose
        assert numbers(connection) == [0, 2]
    assert relayed(outbox, stream) == [0, 2]
    assert relayed(outbox, stream) == [0, 2], "the second relay found nothing"
    record = stream.open_topic("orders").read(0, 0, 1, 0).records[0]
    assert record.key == b"ann"


def test_a_block_inside_a_transaction_is_a_part_of_it(url: str, stream: MemoryStream) -> None:
    outbox = Outbox(url)
    with connected(url) as connection:
        connection.execute("BEGIN")
        with outbox.transaction(connection) as tx:
            tx.send(orders, order(1))
        with contextlib.suppress(OnPurpose), outbox.transaction(connection) as tx:
            tx.send(orders, order(2))
            raise OnPurpose
        if url.startswith("postgresql"):  # a relay of SQLite would wait for the transaction
            assert relayed(outbox, stream) == []
        connection.execute("COMMIT")
        connection.execute("BEGIN")
        with outbox.transaction(connection) as tx:
            tx.send(orders, order(3))
        connection.execute("ROLLBACK")
    assert relayed(outbox, stream) == [1]


def test_delivered_rows_can_be_kept(url: str, stream: MemoryStream) -> None:
    outbox = Outbox(url)
    with connected(url) as connection:
        with outbox.transaction(connection) as tx:
            tx.send(orders, order(1))
        assert relayed(outbox, stream, keep=True) == [1]
        assert relayed(outbox, stream, keep=True) == [1]
        kept = connection.execute("SELECT topic, delivered_ms IS NOT NULL FROM penstock_outbox").fetchall()
        assert [(topic, bool(is_marked)) for topic, is_marked in kept] == [("orders", True)]
        with outbox.transaction(connection) as tx:
            tx.send(orders, order(2))
        assert relayed(outbox, stream) == [1, 2]


def test_a_batch_ends_at_its_number_of_rows_and_keeps_the_order(url: str, stream: MemoryStream) -> None:
    outbox = Outbox(url)
    with connected(url) as connection, outbox.transaction(connection) as tx:
        for number in range(25):
            tx.send(orders, order(number))
    assert relayed(outbox, stream, batch_rows=7) == list(range(25))


HEADERS = (("trace", b"\x00\xff"), ("größe", b"2"), ("trace", None))


@pytest.mark.parametrize("kind", ["memory", "log"])
def test_events_have_their_headers(kind: str, url: str, stream: MemoryStream, tmp_path: Path) -> None:
    """In a transaction of the stream, and where the stream has none."""
    outbox = Outbox(url)
    with connected(url) as connection, outbox.transaction(connection) as tx:
        for number, headers in enumerate([HEADERS, None, {"a": "b"}, ()]):
            tx.send(orders, order(number), headers=headers)
        with pytest.raises(ConfigError, match="must be text"):
            tx.send(orders, order(4), headers={1: "b"})  # type: ignore[arg-type]
    with contextlib.ExitStack() as closing:
        into: Any = stream if kind == "memory" else closing.enter_context(ps.connect(f"log:{tmp_path / 'log'}"))
        outbox.relay(into).run(once=True)
        records = into.open_topic("orders").read(0, 0, 1000, 0).records
    assert [each.headers for each in records] == [HEADERS, (), (("a", b"b"),), ()]
    assert [(orders.decode(each.value) or {})["number"] for each in records] == [0, 1, 2, 3]


FIRST_VERSION = """CREATE TABLE penstock_outbox (
    id {identity}, topic text NOT NULL, key {binary}, value {binary}, partition integer NOT NULL, partitions integer,
    sent_us bigint NOT NULL, delivered_ms bigint);
CREATE INDEX penstock_outbox_waiting ON penstock_outbox (id) WHERE delivered_ms IS NULL;
CREATE TABLE penstock_outbox_schema (version INTEGER NOT NULL);
INSERT INTO penstock_outbox_schema VALUES (1);
INSERT INTO penstock_outbox (topic, key, value, partition, partitions, sent_us)
    VALUES ('orders', NULL, {value}, -1, NULL, 7);
"""
"""The tables as Penstock made them before events had headers, with one event."""


def make_first_version(connection: Any, url: str) -> None:
    value = b'{"number": 41}'.hex()
    if url.startswith("sqlite:"):
        kinds = {"identity": "INTEGER PRIMARY KEY AUTOINCREMENT", "binary": "blob", "value": f"x'{value}'"}
        connection.executescript(FIRST_VERSION.format(**kinds))
    else:
        identity = "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
        kinds = {"identity": identity, "binary": "bytea", "value": f"'\\x{value}'"}
        connection.execute(FIRST_VERSION.format(**kinds))


def test_an_outbox_without_headers_is_upgraded_and_its_events_are_delivered(url: str, stream: MemoryStream) -> None:
    with connected(url) as connection:
        make_first_version(connection, url)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            outbox, *_ = pool.map(Outbox, [url] * 4)
        assert connection.execute("SELECT version FROM penstock_outbox_schema").fetchall() == [(2,)]
        with outbox.transaction(connection) as tx:
            tx.send(orders, order(42), headers=HEADERS)
        # A program that was started before the upgrade still writes its rows without the column.
        connection.execute(
            "INSERT INTO penstock_outbox (topic, value, partition, sent_us) "
            f"SELECT topic, value, partition, {2 * 10**9} FROM penstock_outbox WHERE sent_us = 7"
        )
        connection.commit()
    assert relayed(outbox, stream) == [41, 42, 41]
    assert [each.headers for each in stream.open_topic("orders").read(0, 0, 9, 0).records] == [(), HEADERS, ()]


@pytest.mark.parametrize("version", [0, 3])
def test_an_outbox_of_an_unknown_version_is_refused(version: int, url: str) -> None:
    Outbox(url)
    with connected(url) as connection:
        connection.execute(f"UPDATE penstock_outbox_schema SET version = {version}")
        connection.commit()
        with pytest.raises(ConfigError, match=f"of version {version}; this program supports only version 2"):
            Outbox(url)


def sqlalchemy_url(url: str) -> str:
    return url.replace("sqlite:", "sqlite:///") if url.startswith("sqlite:") else url.replace("ql://", "ql+psycopg://")


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_events_commit_with_a_transaction_of_sqlalchemy(kind: str, url: str, stream: MemoryStream) -> None:
    outbox = Outbox(url)
    engine = sqlalchemy.create_engine(sqlalchemy_url(url))
    insert = sqlalchemy.text("INSERT INTO row VALUES (:number)")
    with connected(url) as connection:
        for number in range(4):
            opened: Any = sqlalchemy.orm.Session(engine) if kind == "session" else engine.connect()
            with contextlib.suppress(OnPurpose), opened, outbox.transaction(opened) as tx:
                opened.execute(insert, {"number": number})
                tx.send(orders, order(number))
                if number % 2:
                    raise OnPurpose
        with sqlalchemy.orm.Session(engine) as session:  # a session that has begun by itself commits by itself
            session.execute(insert, {"number": 10})
            with outbox.transaction(session) as tx:
                tx.send(orders, order(10))
            session.rollback()
            session.execute(insert, {"number": 11})
            with outbox.transaction(session) as tx:
                tx.send(orders, order(11))
            session.commit()
        assert numbers(connection) == [0, 2, 11]
    engine.dispose()
    assert relayed(outbox, stream) == [0, 2, 11]


@pytest.fixture
def django_connection(url: str) -> Iterator[Any]:
    """`django.db.connections["shop"]` of a database that is configured for this test."""
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    from django.db import connections

    if url.startswith("sqlite:"):
        given: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:")}
    else:
        parts = psycopg.conninfo.conninfo_to_dict(url)
        given = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts["dbname"],
            "USER": parts["user"],
            "HOST": parts["host"],
            "PORT": str(parts["port"]),
            "OPTIONS": {"options": parts["options"]},
        }
    connections.settings["shop"] = connections.configure_settings({"default": {}, "shop": given})["shop"]
    yield connections["shop"]
    connections["shop"].close()
    del connections["shop"], connections.settings["shop"]


def test_events_commit_with_the_atomic_blocks_of_django(url: str, django_connection: Any, stream: MemoryStream) -> None:
    from django.db import transaction

    outbox = Outbox(url)

    def insert(number: int) -> None:
        with django_connection.cursor() as cursor:
            cursor.execute("INSERT INTO row VALUES (%s)", [number])

    with connected(url) as connection:
        for number in range(4):
            with contextlib.suppress(OnPurpose), outbox.transaction(django_connection) as tx:
                insert(number)
                tx.send(orders, order(number))
                if number % 2:
                    raise OnPurpose
        for number in (10, 11):
            with contextlib.suppress(OnPurpose), transaction.atomic(using="shop"):
                insert(number)
                with outbox.transaction(django_connection) as tx:
                    tx.send(orders, order(number))
                if number % 2:
                    raise OnPurpose
        assert numbers(connection) == [0, 2, 10]
    assert relayed(outbox, stream) == [0, 2, 10]


def test_ids_that_a_restored_database_gives_again_are_delivered(url: str, stream: MemoryStream) -> None:
    outbox = Outbox(url)
    with connected(url) as connection:
        with outbox.transaction(connection) as tx:
            tx.send(orders, order(1))
        assert relayed(outbox, stream) == [1]
        if url.startswith("postgresql"):
            connection.execute("ALTER TABLE penstock_outbox ALTER COLUMN id RESTART")
        else:
            connection.execute("DELETE FROM sqlite_sequence")
            connection.commit()
        with outbox.transaction(connection) as tx:
            tx.send(orders, order(2))
    assert relayed(outbox, stream) == [1, 2]


def test_what_cannot_have_an_outbox_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(UrlError, match="cannot have an outbox"):
        Outbox("redis://localhost")
    with pytest.raises(UrlError, match="cannot have an inbox"):
        Inbox("redis://localhost", "billing")
    outbox = Outbox(url)
    with pytest.raises(ConfigError, match="not a connection that is known"), outbox.transaction(object()):
        raise AssertionError
    with pytest.raises(ConfigError, match="batch_rows=0"):
        outbox.relay("memory:", batch_rows=0)
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other,
        pytest.raises(ConfigError, match="sees no table penstock_outbox"),
        outbox.transaction(other) as tx,
    ):
        tx.send(orders, order(1))
    with connected(url) as connection:
        with outbox.transaction(connection) as tx:
            pass
        with pytest.raises(ConfigError, match="has ended"):
            tx.send(orders, order(1))


def test_an_effect_happens_once_for_each_event(url: str, stream: MemoryStream) -> None:
    inbox, other = Inbox(url, "billing"), Inbox(url, "shipping")
    with connected(url) as connection:
        for event in ("a", "b", "a", "a"):
            with inbox.transaction(connection, event) as is_new:
                if is_new:
                    connection.execute(f"INSERT INTO row VALUES ({ord(event)})")
        assert numbers(connection) == [97, 98]
        with contextlib.suppress(OnPurpose), inbox.transaction(connection, "c"):
            raise OnPurpose
        with inbox.transaction(connection, "c") as is_new:
            assert is_new, "its first transaction was rolled back"
        with other.transaction(connection, "a") as is_new:
            assert is_new, "each consumer handles every event"
        with pytest.raises(ConfigError, match="not in a transaction"):
            inbox.once(connection, "d")
        assert inbox.forget(connection, older_than_s=3600) == 0
        assert inbox.forget(connection, older_than_s=0) == 3


def test_a_consumer_that_repeats_records_has_each_effect_once(url: str, stream: MemoryStream) -> None:
    """A handler that is at-least-once, with its effects in a database that keeps no checkpoints."""
    outbox, inbox = Outbox(url), Inbox(url, "billing")
    with connected(url) as connection:
        with outbox.transaction(connection) as tx:
            for number in range(5):
                tx.send(orders, order(number))
        relayed(outbox, stream)
        for group in ("first", "again"):
            app = ps.App(stream, group=group)

            @app.handle("orders", end="latest")
            def handle(record: ps.Record) -> None:
                with connected(url) as own, inbox.transaction(own, record) as is_new:
                    if is_new:
                        own.execute(f"INSERT INTO row VALUES ({record.pointer})")

            app.run()
        assert numbers(connection) == [0, 1, 2, 3, 4]
