"""A capture that is killed at any moment, while many writers change the tables at random.

The table that the topic makes equals the source row by row. Each committed change is in the topic once, in the order of
commits: a second slot, with PostgreSQL's own test_decoding, is the witness.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import json
import random
import re
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import msgspec
import psycopg
import pytest
from psycopg.types.range import Range

from penstock.abc import TopicStream
from penstock.errors import UnknownTopicError
from penstock.streams import connect
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock
from tests.tables.captured import (
    CaptureProcess,
    Materialised,
    confirmed_lsn,
    current_lsn,
    fresh_database,
    materialised,
    wait_a_while,
    wait_until,
)
from tests.tables.random_writes import Writer, make_tables

CHANGE: Final = re.compile(r'table (\w+)\."?(\w+)"?: (INSERT|UPDATE|DELETE|TRUNCATE)')
TRUNCATED: Final = re.compile(r"table ([^:]+): TRUNCATE")
CAPTURED: Final = ("items", "pairs", "parted")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.mark.parametrize("case", range(4))
@pytest.mark.sampled(1)
def test_a_capture_killed_anywhere_neither_loses_nor_repeats_a_change(broker: Penstock, case: int) -> None:
    seed = seed_of() + case
    chance = random.Random(seed)
    stream = f"kafka://{broker.bootstrap}"
    keys = 100
    name = f"killed_{uuid.uuid4().hex[:8]}"
    slot = f"penstock_{name}"
    with (
        fresh_database() as url,
        psycopg.connect(url, autocommit=True) as connection,
        connect(stream) as open_stream,
        contextlib.closing(open_stream.open_topic(f"penstock.cdc.{name}")) as state,
    ):
        make_tables(url, keys, seed)
        connection.execute("SELECT pg_create_logical_replication_slot('witness', 'test_decoding')")
        writers = [Writer(url, seed * 10 + number, keys=keys) for number in range(3)]
        # Small batches: a transaction of 40 changes is stored in several, and kills fall between them.
        capture = CaptureProcess(
            url, stream, "--tables", "items", "--tables", "public.p*s", "--tables", "public.parted", "--name", name,
            "--prefix", name, "--snapshot-rows", "15", "--batch-rows", "10", "--heartbeat", "500ms", "--quiet",
        )  # fmt: skip
        for writer in writers:
            writer.start()
        kills = times(6, soak=40)
        for _ in range(kills):
            goal = _stored(state) + chance.randint(0, 12)
            capture.start()
            wait_until(functools.partial(_has_stored, capture, state, goal), "the capture moves on")
            wait_a_while(chance.uniform(0.0, 0.1))
            capture.kill()
        for writer in writers:
            writer.finish()
        capture.start()
        end = current_lsn(connection)
        wait_until(lambda: _has_moved(capture, connection, slot, end - 1), "everything is captured")
        capture.terminate()
        committed = sum(writer.committed for writer in writers)
        assert committed > 20
        witnessed = _witnessed(connection, _first_lsn(stream, name))
        for table_name in CAPTURED:
            table = materialised(stream, f"{name}.public.{table_name}")
            _check_same_rows(connection, table_name, table)
            _check_each_change_once(table, [each for each in witnessed if each[3] == table_name])
        print(f"{committed:,} transactions, {len(witnessed):,} changes, {kills} kills")


def _stored(state: TopicStream) -> int:
    """How much the capture has stored, in records of its state: one or more for each batch."""
    try:
        return state.span(0)[1]
    except UnknownTopicError:
        return 0


def _has_stored(capture: CaptureProcess, state: TopicStream, goal: int) -> bool:
    capture.check_running()
    return _stored(state) > goal


def _has_moved(capture: CaptureProcess, connection: psycopg.Connection[Any], slot: str, beyond: int) -> bool:
    capture.check_running()
    return confirmed_lsn(connection, slot) > beyond


def _first_lsn(stream: str, name: str) -> int:
    """Where the slot of the capture began, as its state says."""
    with connect(stream) as connection:
        for record in connection.read(f"penstock.cdc.{name}"):
            if record.key == b"position" and record.value is not None:
                return int(json.loads(record.value)["lsn"])
    raise AssertionError("the capture has saved no position")


Witnessed = tuple[int, int, str, str]
"""LSN, transaction, kind, table."""


def _witnessed(connection: psycopg.Connection[Any], start: int) -> list[Witnessed]:
    """The changes since the start, in the order of commits."""
    found: list[Witnessed] = []
    inside: list[Witnessed] = []
    query = (
        "SELECT pg_wal_lsn_diff(lsn, '0/0')::bigint, xid::text::bigint, data "
        "FROM pg_logical_slot_get_changes('witness', NULL, NULL, 'skip-empty-xacts', '1')"
    )
    for lsn, transaction, data in connection.execute(query):
        if data.startswith("BEGIN"):
            inside = []
        elif data.startswith("COMMIT"):
            found += inside if lsn >= start else []
        elif truncated := TRUNCATED.match(data):
            names = {name.strip().rpartition(".")[2] for name in truncated[1].split(",")}
            inside += [(lsn, transaction, "t", _root(name)) for name in sorted(names) if not name.startswith("parted_")]
        elif change := CHANGE.match(data):
            kind = {"INSERT": "c", "UPDATE": "u", "DELETE": "d"}[change[3]]
            inside.append((lsn, transaction, kind, _root(change[2])))
    return found


def _root(name: str) -> str:
    return "parted" if name.startswith("parted_") else name


def _check_each_change_once(table: Materialised, witnessed: list[Witnessed]) -> None:
    places = [(event.commit_lsn, event.index, event.op == "c") for event in table.events]
    assert places == sorted(places), "not in the order of commits"
    assert len(set(places)) == len(places), "a change is there twice"
    told: list[tuple[int, int, str]] = []
    for event in table.events:
        if told and told[-1][0] == event.lsn and (told[-1][2], event.op) == ("d", "c"):
            told[-1] = (event.lsn, event.transaction, "u")  # a changed key: a delete and a create
        else:
            told.append((event.lsn, event.transaction, event.op))
    assert told == [(lsn, transaction, kind) for lsn, transaction, kind, _ in witnessed]


def _check_same_rows(connection: psycopg.Connection[Any], name: str, table: Materialised) -> None:
    cursor = connection.execute(f"SELECT * FROM {name}".encode())
    assert cursor.description is not None
    names = [column.name for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor]
    keys = {"items": ["id"], "pairs": ["letter", "number"], "parted": ["id"]}[name]
    expected = {msgspec.json.encode({key: row[key] for key in keys}).decode(): row for row in rows}
    assert table.rows.keys() == expected.keys()
    for key, row in expected.items():
        found = {column: _loaded(column, value) for column, value in table.rows[key].items()}
        assert found == {column: _comparable(value) for column, value in row.items()}, key


def _comparable(value: Any) -> Any:
    if isinstance(value, Range):
        return (
            "empty" if value.isempty else f"{value.bounds[0]}{_edge(value.lower)},{_edge(value.upper)}{value.bounds[1]}"
        )
    if isinstance(value, uuid.UUID):
        return str(value)
    return value


def _edge(value: Any) -> str:
    return "" if value is None else str(value)


def _loaded(column: str, value: Any) -> Any:
    """A value of the topic as psycopg would load it."""
    if value is None:
        return None
    match column:
        case "amount":
            return Decimal(value)
        case "made" | "local":
            return datetime.datetime.fromisoformat(value)
        case "day":
            return datetime.date.fromisoformat(value)
        case "moment":
            return datetime.time.fromisoformat(value)
        case "raw":
            return base64.b64decode(value)
        case "document":
            return json.loads(value)
        case "wait":
            return {"P1DT2H3M4.5S": datetime.timedelta(days=1, hours=2, minutes=3, seconds=4.5),
                    "P-1M": datetime.timedelta(days=-30), "PT0S": datetime.timedelta(0)}[value]  # fmt: skip
        case _:
            return value
