"""Tables of PostgreSQL and SQLite through Penstock, against psycopg and sqlite3 on the same database."""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg

import penstock
from benchmarks.report import Figure, Report, Row
from penstock.abc import TopicStream
from penstock.model import NewRecord
from tests.postgres import PostgresServer

COUNT: Final = 50_000
RECORD_BYTES: Final = 100
AT_ONCE: Final = 1_000
BAR: Final = 0.7
VALUE: Final = b"x" * RECORD_BYTES
COLUMNS: Final = "(id bigint PRIMARY KEY, key bytea, value bytea, headers text, timestamp_ms bigint)"


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    count = max(AT_ONCE, round(COUNT * scale))
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as name,
        PostgresServer({"fsync": "on", "full_page_writes": "on"}) as server,
    ):
        systems: list[tuple[str, str, Callable[[int], dict[str, float]]]] = [
            ("PostgreSQL", "psycopg", lambda turn: _postgres(server.fresh_database(), count)),
            ("SQLite", "sqlite3", lambda turn: _sqlite(Path(name) / f"{turn}.db", count)),
        ]
        for system, client, one_round in systems:
            rates: dict[str, list[float]] = {}
            for turn in range(rounds):
                for what, rate in one_round(turn).items():
                    rates.setdefault(what, []).append(rate)
                    say(f"  {system}, {what}: {rate:,.0f} records/s")
            for what in ("append", "read"):
                ours, theirs = (statistics.median(rates[f"{who} {what}"]) for who in ("penstock", "client"))
                title = f"{system} table, {what}, {RECORD_BYTES} B records, one thread"
                theirs_is = f"{client}, {AT_ONCE} at once"
                row = Row(title, ours, "fsync for each batch", theirs, theirs_is, "records/s", BAR)
                say("  " + row.line())
                report.rows.append(row)
            sent = statistics.median(rates["penstock send"])
            report.figures.append(Figure(f"{system} table, send, one record in one call", sent, "records/s"))
    report.notes.append(
        "Tables: fsync on (PostgreSQL with synchronous_commit, SQLite with synchronous = FULL). The client inserts "
        "1,000 rows by executemany in a transaction, and selects 1,000 by id; append is 1,000 records in one call."
    )


def _postgres(url: str, count: int) -> dict[str, float]:
    with psycopg.connect(url) as client:
        client.execute(f"CREATE TABLE theirs {COLUMNS}".encode())
        client.commit()

        def insert(rows: list[tuple[Any, ...]]) -> None:
            with client.transaction(), client.cursor() as cursor:
                cursor.executemany("INSERT INTO theirs VALUES (%s, %s, %s, %s, %s)", rows)

        def select(start: int) -> list[tuple[Any, ...]]:
            with client.cursor(binary=True) as cursor:
                cursor.execute("SELECT * FROM theirs WHERE id >= %s ORDER BY id LIMIT %s", (start, AT_ONCE))
                return cursor.fetchall()

        return {**_client(insert, select, count), **_penstock(url, count)}


def _sqlite(path: Path, count: int) -> dict[str, float]:
    with closing(sqlite3.connect(path.with_suffix(".theirs"), isolation_level=None)) as client:
        client.execute("PRAGMA journal_mode = WAL")
        client.execute("PRAGMA synchronous = FULL")
        client.execute(f"CREATE TABLE theirs {COLUMNS}")

        def insert(rows: list[tuple[Any, ...]]) -> None:
            client.execute("BEGIN IMMEDIATE")
            client.executemany("INSERT INTO theirs VALUES (?, ?, ?, ?, ?)", rows)
            client.execute("COMMIT")

        def select(start: int) -> list[tuple[Any, ...]]:
            return client.execute("SELECT * FROM theirs WHERE id >= ? ORDER BY id LIMIT ?", (start, AT_ONCE)).fetchall()

        return {**_client(insert, select, count), **_penstock(f"sqlite:{path}", count)}


def _client(
    insert: Callable[[list[tuple[Any, ...]]], None], select: Callable[[int], list[tuple[Any, ...]]], count: int
) -> dict[str, float]:
    started_s = time.perf_counter()
    for start in range(0, count, AT_ONCE):
        now_ms = time.time_ns() // 1_000_000
        insert([(number, b"%d" % (number % AT_ONCE), VALUE, None, now_ms) for number in range(start, start + AT_ONCE)])
    append_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    found = start = 0
    while found < count:
        rows = select(start)
        found += sum(row[2] == VALUE for row in rows)
        start = rows[-1][0] + 1
    return {"client append": count / append_s, "client read": count / (time.perf_counter() - started_s)}


def _penstock(url: str, count: int) -> dict[str, float]:
    with penstock.connect(url) as stream:
        for name in ("ours", "sent"):
            stream.create_topic(name)
        opened = stream.open_topic("ours")
        rates = {"penstock append": count / _elapsed(_append(opened, count))}
        started_s = time.perf_counter()
        for number in range(count):
            stream.send("sent", VALUE, key=b"%d" % (number % AT_ONCE))
        stream.flush(120)
        rates["penstock send"] = count / (time.perf_counter() - started_s)
        rates["penstock read"] = count / _elapsed(_read(opened, count))
        opened.close()
    return rates


def _append(opened: TopicStream, count: int) -> Iterator[None]:
    yield
    for _ in range(0, count, AT_ONCE):
        receipts = opened.append([NewRecord("ours", VALUE, b"%d" % number) for number in range(AT_ONCE)])
    receipts[-1].result(120)


def _read(opened: TopicStream, count: int) -> Iterator[None]:
    yield
    found = pointer = 0
    while found < count:
        batch = opened.read(0, pointer, AT_ONCE, 1.0)
        found += sum(value == VALUE for value in batch.values())
        pointer = batch.next


def _elapsed(work: Iterator[None]) -> float:
    """The seconds that a generator takes behind its first yield."""
    next(work)
    started_s = time.perf_counter()
    for _ in work:
        pass
    return time.perf_counter() - started_s
