"""Existing tables of PostgreSQL as topics: no row is missed, in whichever order transactions commit."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from penstock.abc import NamesPointers, TopicStream
from penstock.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicError
from penstock.model import NewRecord, Position
from penstock.streams.sql.existing_postgres import Horizon
from tests import system_table
from tests.postgres import PostgresServer
from tests.seeds import seed_of
from tests.systems.killed_app import FAILS_ALWAYS, run_and_kill

pytestmark = [pytest.mark.system("PostgreSQL outbox"), pytest.mark.xdist_group("postgres tables")]

WRITERS = 6
TRANSACTIONS = 40


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer({"max_prepared_transactions": "5"}) as server:
        with penstock.connect(f"{server.url}?id_column=id&key_column=a&timestamp_column=b") as stream:
            system_table.met("PostgreSQL outbox", "PostgreSQL, existing tables", stream.features)
        yield server


@pytest.fixture
def url(server: PostgresServer) -> str:
    """A place with one empty table."""
    url = server.fresh_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE outbox (id bigserial PRIMARY KEY, number integer, at timestamptz)")
        connection.execute("CREATE TABLE other (number integer)")
    return url


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def outbox(url: str, stack: ExitStack) -> TopicStream:
    stream = stack.enter_context(penstock.connect(f"{url}&id_column=id&value_columns=number&poll_interval_s=0.01"))
    topic = stream.open_topic("outbox")
    stack.callback(topic.close)
    return topic


def opened(url: str, stack: ExitStack) -> psycopg.Connection[Any]:
    """A connection that begins a transaction with its first statement."""
    return stack.enter_context(psycopg.connect(url))


def insert(connection: psycopg.Connection[Any], number: int) -> int:
    [found] = connection.execute("INSERT INTO outbox (number) VALUES (%s) RETURNING id", (number,)).fetchall()
    return int(found[0])


def numbers(topic: TopicStream, start: int = 1) -> list[int]:
    return [json.loads(record.value or b"")["number"] for record in topic.read(0, start, 100, 0.0)]


def test_a_row_of_an_open_transaction_is_not_passed(url: str, outbox: TopicStream, stack: ExitStack) -> None:
    slow, quick = opened(url, stack), opened(url, stack)
    insert(quick, 0)
    quick.commit()
    assert numbers(outbox) == [0]
    assert insert(slow, 1) == 2
    assert insert(quick, 2) == 3
    quick.commit()
    for _ in range(3):
        batch = outbox.read(0, 1, 100, 0.0)
        assert [record.offset for record in batch] == [1], "row 2 may still come, so row 3 must wait"
        assert batch.next == 2
    assert outbox.span(0) == (1, 2)
    slow.commit()
    assert numbers(outbox) == [0, 1, 2]


def test_a_waiting_reader_gets_the_rows_when_the_open_transaction_ends(
    url: str, outbox: TopicStream, stack: ExitStack
) -> None:
    slow, quick = opened(url, stack), opened(url, stack)
    insert(slow, 1)
    insert(quick, 2)
    quick.commit()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(outbox.read, 0, 1, 100, 30.0)
        slow.commit()
        assert [record.offset for record in waiting.result(30)] == [1, 2]


def test_rows_that_are_rolled_back_are_passed(url: str, outbox: TopicStream, stack: ExitStack) -> None:
    slow, quick = opened(url, stack), opened(url, stack)
    insert(slow, 1)
    insert(quick, 2)
    quick.commit()
    assert numbers(outbox) == []
    slow.rollback()
    assert numbers(outbox) == [2]


def test_a_transaction_that_goes_on_after_a_savepoint_is_not_passed(
    url: str, outbox: TopicStream, stack: ExitStack
) -> None:
    slow, quick = opened(url, stack), opened(url, stack)
    slow.execute("SELECT 1")
    with slow.transaction():
        insert(slow, 1)
    insert(quick, 2)
    quick.commit()
    assert numbers(outbox) == []
    slow.commit()
    assert numbers(outbox) == [1, 2]


def test_a_prepared_transaction_is_not_passed(url: str, outbox: TopicStream, stack: ExitStack) -> None:
    slow, quick = opened(url, stack), opened(url, stack)
    insert(slow, 1)
    slow.execute("PREPARE TRANSACTION 'held'")
    insert(quick, 2)
    quick.commit()
    assert numbers(outbox) == []
    slow.commit()
    slow.autocommit = True
    slow.execute("COMMIT PREPARED 'held'")
    assert numbers(outbox) == [1, 2]


def test_an_id_that_is_given_before_its_transaction_has_a_number_is_not_passed(
    url: str, outbox: TopicStream, stack: ExitStack
) -> None:
    """The INSERT has drawn id 1 and waits, before anything is written. Transaction ids would not show it."""
    slow, quick, keeper = (opened(url, stack) for _ in range(3))
    quick.execute(
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_lock_shared(7); RETURN NEW; END $$"
    )
    quick.execute(
        "CREATE TRIGGER slowly BEFORE INSERT ON outbox FOR EACH ROW WHEN (NEW.number = 1) EXECUTE FUNCTION slowly()"
    )
    quick.commit()
    keeper.execute("SELECT pg_advisory_lock(7)")
    slow.execute("SET lock_timeout = '20s'")
    with ThreadPoolExecutor(1) as pool:
        inserting = pool.submit(insert, slow, 1)
        waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 7"
        while not quick.execute(waits).fetchall():
            quick.commit()
        assert insert(quick, 2) == 2
        quick.commit()
        assert numbers(outbox) == []
        keeper.execute("SELECT pg_advisory_unlock(7)")
        assert inserting.result(30) == 1
    assert numbers(outbox) == []
    slow.commit()
    assert numbers(outbox) == [1, 2]


def test_transactions_on_other_tables_hold_nothing_up(url: str, outbox: TopicStream, stack: ExitStack) -> None:
    idle, quick = opened(url, stack), opened(url, stack)
    idle.execute("INSERT INTO other VALUES (1)")
    idle.execute("SELECT * FROM outbox")
    insert(quick, 1)
    quick.commit()
    assert numbers(outbox) == [1]


def test_writers_that_overlap_forever_do_not_stop_the_reader(url: str, outbox: TopicStream, stack: ExitStack) -> None:
    """There is never a moment without an open transaction."""
    writers = [opened(url, stack), opened(url, stack)]
    insert(writers[0], 0)
    for number in range(1, 10):
        insert(writers[number % 2], number)
        writers[(number - 1) % 2].commit()
        found = numbers(outbox)
        assert found == list(range(len(found)))
        assert len(found) >= number - 2, "a reader falls behind by the transactions that are open, and no more"


def test_a_horizon_waits_for_those_who_were_there_and_not_for_later_ones() -> None:
    horizon = Horizon()
    horizon.judge(5, frozenset({"a", "b"}))
    assert horizon.end == 1
    horizon.judge(9, frozenset({"b", "c"}))
    assert horizon.end == 1
    horizon.judge(12, frozenset({"c"}))
    assert horizon.end == 6
    horizon.judge(None, frozenset())
    assert horizon.end == 13


def test_rows_in_partitions_of_a_table_are_not_passed(url: str, outbox: TopicStream, stack: ExitStack) -> None:
    slow, quick = opened(url, stack), opened(url, stack)
    quick.execute("CREATE TABLE parted (id bigserial, number integer) PARTITION BY LIST (number)")
    quick.execute("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1)")
    quick.execute("CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2)")
    quick.commit()
    stream = stack.enter_context(penstock.connect(f"{url}&id_column=id&value_columns=number"))
    parted = stream.open_topic("parted")
    slow.execute("INSERT INTO parted_1 (number) VALUES (1)")
    quick.execute("INSERT INTO parted (number) VALUES (2)")
    quick.commit()
    assert numbers(parted) == []
    slow.commit()
    assert numbers(parted) == [1, 2]


def test_no_row_is_missed_with_many_writers_and_rollbacks(url: str, outbox: TopicStream) -> None:
    check_with_many_writers(url, outbox, "id", "id")


def check_with_many_writers(url: str, outbox: TopicStream, order: str, pointer: str) -> None:
    rng = random.Random(seed_of())
    seeds = [rng.randrange(1 << 30) for _ in range(WRITERS)]
    done = threading.Event()
    with ThreadPoolExecutor(WRITERS + 2) as pool:
        readers = [pool.submit(follow, outbox, done, limit) for limit in (3, 100)]
        try:
            for writer in [pool.submit(write, url, seed) for seed in seeds]:
                writer.result(120)
        finally:
            done.set()
        found = [reader.result(60) for reader in readers]
    with psycopg.connect(url) as connection:
        rows = [int(at) for (at,) in connection.execute(f"SELECT {pointer} FROM outbox ORDER BY {order}".encode())]
    assert len(rows) > WRITERS * TRANSACTIONS / 2
    for each in found:
        assert each == rows, f"missed: {sorted(set(rows) - set(each))[:10]}"


def write(url: str, seed: int) -> None:
    rng = random.Random(seed)
    with psycopg.connect(url) as connection:
        for _ in range(TRANSACTIONS):
            for _ in range(rng.randint(1, 3)):
                insert(connection, rng.randrange(1000))
                connection.execute("SELECT pg_sleep(%s)", (rng.choice((0, 0, 0.002, 0.01)),))
            if rng.random() < 0.3:
                connection.rollback()
            else:
                connection.commit()


def follow(topic: TopicStream, done: threading.Event, limit: int) -> list[int]:
    """Read until the writers are done, and then to the end."""
    found: list[int] = []
    start, deadline_s = 1, time.monotonic() + 120
    while time.monotonic() < deadline_s:
        was_done = done.is_set()
        batch = topic.read(0, start, limit, 0.05)
        found += [record.offset for record in batch]
        start = batch.next
        if was_done and not batch:
            return found
    raise AssertionError("the reader did not come to an end")


def test_rows_come_as_json_objects_with_key_and_timestamp(url: str, stack: ExitStack) -> None:
    database = opened(url, stack)
    database.execute(
        "CREATE TABLE events (seq integer GENERATED ALWAYS AS IDENTITY, "
        "who text, at timestamptz, body jsonb, raw bytea)"
    )
    database.execute(
        "INSERT INTO events (who, at, body, raw) VALUES "
        "('ann', '2026-01-02 03:04:05.678+00', '{\"a\": [1, null]}', '\\x00ff'), (NULL, NULL, NULL, NULL)"
    )
    database.commit()
    columns = "id_column=seq&key_column=who&timestamp_column=at"
    whole = stack.enter_context(penstock.connect(f"{url}&{columns}"))
    first, second = whole.read("events")
    assert (first.key, first.timestamp_ms, first.offset) == (b"ann", 1767323045678, 1)
    assert json.loads(first.value or b"") == {
        "seq": 1,
        "who": "ann",
        "at": "2026-01-02T03:04:05.678+00:00",
        "body": {"a": [1, None]},
        "raw": "\\x00ff",
    }
    assert (second.key, second.timestamp_ms) == (None, None)
    assert whole.topics() == ["events"]
    some = stack.enter_context(penstock.connect(f"{url}&{columns}&value_columns=who,%20body"))
    assert json.loads(next(iter(some.read("events"))).value or b"") == {"who": "ann", "body": {"a": [1, None]}}
    for column, value in (("body", b'{"a": [1, null]}'), ("raw", b"\x00\xff")):
        payload = stack.enter_context(penstock.connect(f"{url}&{columns}&payload_column={column}"))
        assert [record.value for record in payload.read("events")] == [value, None]
    topic = whole.open_topic("events")
    assert topic.locate(0, Position.at_time(1767323045678)) == 1
    assert topic.locate(0, Position.at_time(1767323045679)) == 3


def test_deleted_rows_are_an_error_or_skipped_as_the_url_says(url: str, outbox: TopicStream, stack: ExitStack) -> None:
    database = opened(url, stack)
    for number in range(5):
        insert(database, number)
    database.execute("DELETE FROM outbox WHERE id <= 3")
    database.commit()
    with pytest.raises(OffsetOutOfRangeError, match=r"outbox-0: offset 2 was deleted .* holds 4 to 6"):
        outbox.read(0, 2, 10, 0.0)
    skipping = stack.enter_context(penstock.connect(f"{url}&id_column=id&deleted_rows=skip")).open_topic("outbox")
    assert [record.offset for record in skipping.read(0, 2, 10, 0.0)] == [4, 5]
    database.execute("DELETE FROM outbox")
    database.commit()
    assert not outbox.read(0, 6, 10, 0.0), "a table that was emptied has no more rows, and no error"


def test_a_table_whose_ids_start_again_is_an_error(url: str, outbox: TopicStream, stack: ExitStack) -> None:
    database = opened(url, stack)
    insert(database, 1)
    database.execute("TRUNCATE outbox RESTART IDENTITY")
    insert(database, 2)
    database.commit()
    with pytest.raises(OffsetOutOfRangeError):
        outbox.read(0, 50, 10, 0.0)


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_table_that_begins_again_is_not_trusted_for_what_was_there(
    url: str, outbox: TopicStream, stack: ExitStack, is_created_again: bool
) -> None:
    slow, quick = opened(url, stack), opened(url, stack)
    for number in range(5):
        insert(quick, number)
    quick.commit()
    assert len(numbers(outbox)) == 5
    if is_created_again:
        quick.execute("DROP TABLE outbox")
        quick.execute("CREATE TABLE outbox (id bigserial PRIMARY KEY, number integer)")
    else:
        quick.execute("TRUNCATE outbox RESTART IDENTITY")
    quick.commit()
    insert(slow, 1)
    insert(quick, 2)
    quick.commit()
    assert numbers(outbox) == []
    slow.commit()
    assert numbers(outbox) == [1, 2]


def test_tables_that_cannot_be_read_safely_are_refused(url: str, stack: ExitStack) -> None:
    database = opened(url, stack)
    database.execute("CREATE SEQUENCE hoarded CACHE 50")
    database.execute("CREATE TABLE cached (id bigint DEFAULT nextval('hoarded'), name text)")
    database.execute("CREATE TABLE assigned (id bigint, name text)")
    database.execute("CREATE TABLE texts (id text)")
    database.execute("CREATE VIEW seen AS SELECT * FROM outbox")
    database.commit()
    stream = stack.enter_context(penstock.connect(f"{url}&id_column=id"))
    for table, message in (
        ("cached", r"sequence hoarded of table 'cached' has CACHE 50 .* ALTER SEQUENCE hoarded CACHE 1"),
        ("assigned", r"takes its values from no sequence, .* trust_ids=true"),
        ("texts", r"must be an integer column"),
        ("seen", r"is not a table: views"),
        ("other", r"has no column 'id'; it has number"),
    ):
        with pytest.raises(ConfigError, match=message):
            stream.open_topic(table).read(0, 1, 1, 0.0)
    with pytest.raises(UnknownTopicError, match=r"has no table 'missing': write SCHEMA\.TABLE"):
        stream.open_topic("missing").partitions()
    trusting = stack.enter_context(penstock.connect(f"{url}&id_column=id&trust_ids=true"))
    assert trusting.open_topic("assigned").span(0) == (1, 1)


def test_existing_tables_are_read_only(url: str, outbox: TopicStream, stack: ExitStack) -> None:
    with pytest.raises(ConfigError, match="is read only: insert rows with SQL"):
        outbox.append([NewRecord("outbox", b"1")])
    stream = stack.enter_context(penstock.connect(f"{url}&id_column=id"))
    with pytest.raises(ConfigError, match="nothing is written"):
        stream.create_topic("more")
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'penstock%'"
    assert opened(url, stack).execute(tables).fetchall() == [(0,)]


@pytest.fixture
def by_transaction(url: str, stack: ExitStack) -> penstock.Connection:
    with psycopg.connect(url) as database:
        database.execute("ALTER TABLE outbox ADD COLUMN tx xid8 NOT NULL DEFAULT pg_current_xact_id()")
        database.execute("CREATE INDEX ON outbox (tx, id)")
    settings = "id_column=id&transaction_column=tx&value_columns=number&timestamp_column=at&poll_interval_s=0.01"
    return stack.enter_context(penstock.connect(f"{url}&{settings}"))


def test_ids_that_are_drawn_ahead_are_read_in_the_order_of_transactions(
    url: str, by_transaction: penstock.Connection, stack: ExitStack
) -> None:
    """As Hibernate does. By ids alone, the row would be missed."""
    topic = by_transaction.open_topic("outbox")
    ahead, quick = opened(url, stack), opened(url, stack)
    [(drawn,)] = ahead.execute("SELECT nextval('outbox_id_seq')").fetchall()
    ahead.commit()
    assert insert(quick, 2) == drawn + 1
    quick.commit()
    assert numbers(topic) == [2]
    start = topic.read(0, 1, 100, 0.0).next
    ahead.execute("INSERT INTO outbox (id, number, at) VALUES (%s, 1, now())", (drawn,))
    assert numbers(topic, start) == []
    insert(quick, 3)
    quick.commit()
    assert numbers(topic, start) == [], "an open transaction is before it"
    ahead.commit()
    assert numbers(topic, start) == [1, 3]
    first, end = topic.span(0)
    assert [record.offset for record in topic.read(0, first, 1, 0.0)] == [first]
    assert topic.read(0, first, 100, 0.0).next == end
    assert numbers(topic, topic.locate(0, Position.at_time(0))) == [1, 3]
    backend = by_transaction.backend
    assert isinstance(backend, NamesPointers)
    assert backend.parse_pointer(backend.pointer_text(first)) == first
    assert backend.pointer_text(first).endswith(f"/{drawn + 1}")
    with pytest.raises(ConfigError, match="TRANSACTION/ID"):
        backend.parse_pointer("7")
    with pytest.raises(OffsetOutOfRangeError):
        topic.read(0, (1 << 40) << 63, 10, 0.0)


def test_no_row_is_missed_in_the_order_of_transactions(url: str, by_transaction: penstock.Connection) -> None:
    check_with_many_writers(
        url, by_transaction.open_topic("outbox"), "tx, id", "(tx::text::numeric * 2 ^ 63::numeric + id)"
    )


def test_a_table_of_another_schema_is_named_with_it(url: str, stack: ExitStack) -> None:
    database = opened(url, stack)
    database.execute("CREATE SCHEMA IF NOT EXISTS elsewhere")
    database.execute("CREATE TABLE IF NOT EXISTS elsewhere.audit (id serial, number integer)")
    database.execute("INSERT INTO elsewhere.audit (number) VALUES (7)")
    database.commit()
    stream = stack.enter_context(penstock.connect(f"{url}&id_column=id&value_columns=number"))
    assert numbers(stream.open_topic("elsewhere.audit"))[-1:] == [7]


def test_an_app_whose_process_is_killed_handles_every_row(url: str, tmp_path: Path) -> None:
    with psycopg.connect(url) as database:
        database.execute("INSERT INTO outbox (number) SELECT generate_series(0, 199)")
    expected = {b"%d" % number for number in range(200)} - {FAILS_ALWAYS}
    letters = f"sqlite:{tmp_path / 'letters.db'}"
    kill_after = random.Random(seed_of()).randint(20, 150)
    found = run_and_kill(
        f"{url}&id_column=id&value_columns=number", "outbox", tmp_path, kill_after, dead_letters=letters
    )
    assert set(found) == expected
