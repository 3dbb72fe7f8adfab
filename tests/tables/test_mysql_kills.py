"""A capture of MariaDB that is killed at any moment, while many writers change the tables at random.

The table that the topic makes equals the source row by row. Each committed change is in the topic once, in the order of
commits: the server itself, which lists the events of its binlog, is the witness.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import json
import random
import struct
import uuid
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest

from penstock.abc import TopicStream
from penstock.errors import UnknownTopicError
from penstock.streams import connect
from penstock.tables.cdc.mysql.changes import file_number
from tests.mariadb import MariadbServer
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock
from tests.tables.captured import CaptureProcess, Materialised, materialised, wait_a_while, wait_until
from tests.tables.captured_mysql import Database, running
from tests.tables.random_mysql_writes import Writer, make_tables

CAPTURED: Final = {"items": ["id"], "pairs": ["letter", "number"], "parted": ["id"]}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.mark.parametrize("compressed", ["OFF", "ON"])
@pytest.mark.parametrize("case", range(3))
@pytest.mark.sampled(1)
def test_a_capture_killed_anywhere_neither_loses_nor_repeats_a_change(
    broker: Penstock, case: int, compressed: str
) -> None:
    seed = seed_of() + case
    chance = random.Random(seed)
    stream = f"kafka://{broker.bootstrap}"
    keys = 100
    name = f"killed_{uuid.uuid4().hex[:8]}"
    # Small files of the binlog: kills fall beside their ends, too.
    settings: dict[str, str | None] = {
        "log_bin_compress": compressed, "log_bin_compress_min_len": "10", "max_binlog_size": "1048576",
    }  # fmt: skip
    with (
        MariadbServer(settings) as server,
        contextlib.closing(server.connect()) as connection,
        connection.cursor() as cursor,
        contextlib.ExitStack() as closing,
        connect(stream) as open_stream,
        contextlib.closing(open_stream.open_topic(f"penstock.cdc.{name}")) as state,
    ):
        cursor.execute("CREATE DATABASE shop")
        database = functools.partial(server.connect, "shop")
        make_tables(database, keys, seed)
        cursor.execute("USE shop")
        writers = [Writer(database, seed * 10 + number, keys=keys) for number in range(3)]
        # Small batches: a transaction of 40 changes is stored in several, and kills fall between them.
        capture = CaptureProcess(
            f"{server.url}/shop", stream, "--tables", "items", "--tables", "shop.p*s", "--tables", "shop.parted",
            "--name", name, "--prefix", name, "--snapshot-rows", "15", "--batch-rows", "10", "--heartbeat", "500ms",
            "--quiet",
        )  # fmt: skip
        closing.callback(_end, capture)
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
        with (
            contextlib.closing(Database(f"{server.url}/shop", server)) as source,
            running(f"{server.url}/shop", stream, "items", "pairs", "parted", name=name, prefix=name) as last,
        ):
            last.wait_for(source)
        committed = sum(writer.committed for writer in writers)
        assert committed > 20
        witnessed = _witnessed(cursor, _first_position(stream, name))
        rows = 0
        for table_name in CAPTURED:
            table = materialised(stream, f"{name}.shop.{table_name}")
            _check_same_rows(cursor, table_name, table)
            rows += _check_each_change_once(stream, f"{name}.shop.{table_name}", witnessed[table_name])
        print(f"{committed:,} transactions, {rows:,} changes, {kills} kills")


def _end(capture: CaptureProcess) -> None:
    """Leave no process behind when an assertion has failed."""
    if capture.popen is not None:
        capture.popen.kill()


def _stored(state: TopicStream) -> int:
    """How much the capture has stored, in records of its state: one or more for each batch."""
    try:
        return state.span(0)[1]
    except UnknownTopicError:
        return 0


def _has_stored(capture: CaptureProcess, state: TopicStream, goal: int) -> bool:
    capture.check_running()
    return _stored(state) > goal


def _first_position(stream: str, name: str) -> dict[str, Any]:
    """Where the snapshot was made, as the state of the capture says."""
    with connect(stream) as connection:
        for record in connection.read(f"penstock.cdc.{name}"):
            if record.key == b"position" and record.value is not None:
                return dict(json.loads(record.value))
    raise AssertionError("the capture has saved no position")


Place = tuple[int, int]
"""The number of a file of the binlog, and the position of an event in it."""
Change = tuple[Place, str]
"""An event, and what it does: c, u, d or t."""


def _witnessed(cursor: Any, start: dict[str, Any]) -> dict[str, list[Change]]:
    """The events of each table since the start, in the order of commits, without what was rolled back."""
    found: dict[str, list[Change]] = {name: [] for name in CAPTURED}
    inside: list[tuple[str, Change]] = []
    tables: dict[str, str] = {}
    kinds = {"Write": "c", "Update": "u", "Delete": "d"}
    cursor.execute("SHOW BINARY LOGS")
    for file in [row[0] for row in cursor.fetchall() if file_number(row[0]) >= file_number(start["file"])]:
        cursor.execute(f"SHOW BINLOG EVENTS IN '{file}'")
        for _, place, kind, _, _, info in cursor.fetchall():
            if file == start["file"] and place < start["pos"]:
                continue
            if kind == "Table_map":
                number, _, name = info.removeprefix("table_id: ").partition(" ")
                tables[number] = name.strip("()").removeprefix("shop.")
            elif "_rows_" in kind:
                name = tables[info.removeprefix("table_id: ").split(" ")[0]]
                if name in CAPTURED:
                    inside.append((name, ((file_number(file), place), kinds[kind.partition("_")[0]])))
            elif kind.startswith("Query") and info.startswith("use `shop`; TRUNCATE "):
                found[info.split()[-1]].append(((file_number(file), place), "t"))
            elif kind.startswith("Query") and info == "ROLLBACK":
                inside = []
            elif kind == "Xid":
                for name, change in inside:
                    found[name].append(change)
                inside = []
    return found


def _check_each_change_once(stream: str, topic: str, witnessed: list[Change]) -> int:
    """Every row of each event once, in the order of commits. Returns how many rows."""
    told: list[tuple[Place, int, str]] = []
    with connect(stream) as connection:
        for record in connection.read(topic):
            value = None if record.value is None else json.loads(record.value)
            if value is None or value["op"] == "r":
                continue
            source = value["source"]
            row = ((file_number(source["file"]), source["pos"]), source["row"], value["op"])
            if told and told[-1] == (*row[:2], "d") and value["op"] == "c":
                told[-1] = (*row[:2], "u")  # a changed key: a delete and a create
            else:
                told.append(row)
    events: list[Change] = []
    expected_row = 0
    for place, number, op in told:
        expected_row = expected_row + 1 if events and events[-1] == (place, op) else 0
        assert number == expected_row, f"rows of {place} are missing, or there twice"
        if not number:
            events.append((place, op))
    assert events == witnessed
    return len(told)


def _check_same_rows(cursor: Any, name: str, table: Materialised) -> None:
    cursor.execute("SET time_zone = '+00:00'")
    cursor.execute(f"SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_NAME = '{name}' ORDER BY 1")
    names = [row[0] for row in cursor.fetchall() if row[0] != "twice"]
    texts = {"bits": "bits + 0", "small": "small + 0e0", "raw": "HEX(raw)", "fixed": "HEX(fixed)"}
    chosen = ", ".join(
        texts.get(each, each if each in ("ratio", "flag") else f"CAST({each} AS CHAR)") for each in names
    )
    cursor.execute(f"SELECT {chosen} FROM {name}")
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    expected = {msgspec.json.encode({key: _key(key, row[key]) for key in CAPTURED[name]}).decode(): row for row in rows}
    assert table.rows.keys() == expected.keys()
    for key, row in expected.items():
        found = {column: _loaded(column, value) for column, value in table.rows[key].items()}
        assert found == row, key


def _key(column: str, text: str) -> Any:
    return text if column == "letter" else int(text)


def _loaded(column: str, value: Any) -> Any:
    """A value of the topic as the query of this test returns it."""
    if value is None:
        return None
    match column:
        case "made":
            return value.removesuffix("Z").replace("T", " ")
        case "local":
            return value.replace("T", " ")
        case "raw" | "fixed":
            return base64.b64decode(value).hex().upper()
        case "bits":
            return int(value, 2)
        case "small":
            return struct.unpack("<f", struct.pack("<f", value))[0]
        case "id" | "number" | "big" | "year":
            return f"{value:04d}" if column == "year" else str(value)
        case _:
            return value
