"""`Table`: lookups in memory and on disk, a restart from its snapshot, and how soon a captured change is visible."""

from __future__ import annotations

import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg

import penstock
from benchmarks.report import Figure, Report, Row
from penstock.model import Batch, Record
from penstock.tables.changes import ChangeDecoder, ChangeFormat
from penstock.tables.table import TableChange
from penstock.tables.table.disk import DiskRows
from penstock.tables.table.rows import Identity, Indexes
from tests.postgres import PostgresServer


class User(msgspec.Struct):
    name: str
    city: str
    cents: int


USERS: Final = penstock.Topic("users", User)
MEMORY_ROWS: Final = 200_000
DISK_ROWS: Final = 10_000_000
REPLAYED: Final = 500_000
LOOKUPS: Final = 400_000
PER_S: Final = 1_000
LATENCY_S: Final = 20.0
AT_ONCE: Final = 20_000


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _in_memory(report, say, rounds, max(1_000, round(MEMORY_ROWS * scale)))
        _on_disk(report, say, folder, rounds, max(10_000, round(DISK_ROWS * scale)))
        _restart(report, say, folder, rounds, max(10_000, round(REPLAYED * scale)))
        _visible(report, say, folder, max(3.0, LATENCY_S * scale))
    report.notes.append(
        "Tables: lookups of random keys by one thread, each of a row that exists, decoded into a msgspec.Struct. The "
        "file was written just before, so it is in the page cache as far as memory allows. The restart ends with the "
        "first lookup of a table that has caught up. PostgreSQL runs with fsync off; capture and table are processes "
        "of their own on the same machine, and a change is visible when its callback is called."
    )


def _value(number: int) -> bytes:
    return b'{"name":"user %d","city":"Oslo","cents":%d}' % (number, number % 1000)


def _rate(find: Callable[[Any], object], keys: Iterable[Any], count: int) -> float:
    begun_s = time.perf_counter()
    for key in keys:
        find(key)
    return count / (time.perf_counter() - begun_s)


def _in_memory(report: Report, say: Callable[[str], None], rounds: int, rows: int) -> None:
    url = "memory:benchmark-of-tables"
    with penstock.connect(url) as stream:
        stream.create_topic(USERS.name, 1)
        for number in range(rows):
            stream.send(USERS.name, _value(number), str(number))
        with penstock.Table(url, USERS) as table:
            table.wait_until_caught_up(600)
            plain = dict(table.items())
            keys = random.Random(1).choices(list(plain), k=LOOKUPS)
            ours, theirs = [], []
            for _ in range(rounds):
                ours.append(_rate(table.__getitem__, keys, LOOKUPS))
                theirs.append(_rate(plain.__getitem__, keys, LOOKUPS))
                say(f"  in memory, {rows:,} rows: {ours[-1]:,.0f} lookups/s, a dict {theirs[-1]:,.0f}")
    best = statistics.median(ours)
    report.figures.append(Figure(f"Table in memory, {rows:,} rows, lookup", best, "lookups/s", 1_000_000))
    report.rows.append(
        Row(f"Table in memory, {rows:,} rows", best, "Table", statistics.median(theirs), "a dict", "lookups/s", 0.1)
    )


def _on_disk(report: Report, say: Callable[[str], None], folder: Path, rounds: int, rows: int) -> None:
    path = str(folder / "rows.db")
    decoder = ChangeDecoder(USERS, ChangeFormat.PLAIN)
    stored = DiskRows(path, USERS.name, decoder, "plain", Indexes({}))
    stored.restart(Identity(USERS.name, None))
    begun_s = time.perf_counter()
    for start in range(0, rows, AT_ONCE):
        end = min(rows, start + AT_ONCE)
        records = [Record(USERS.name, 0, each, b"%08d" % each, _value(each)) for each in range(start, end)]
        stored.apply([Batch(USERS.name, 0, start, end, records)], 0, wanted=False)
    written_s = time.perf_counter() - begun_s
    size_bytes = Path(path).stat().st_size
    say(f"  wrote {rows:,} rows to disk in {written_s:.0f} s, {size_bytes / 1e6:,.0f} MB")
    keys = [f"{number:08}" for number in random.Random(2).choices(range(rows), k=LOOKUPS)]
    decode = msgspec.json.Decoder(User).decode
    client = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    select = "SELECT value FROM penstock_table_rows WHERE key = ?"

    def find(key: str) -> User:
        found: User = decode(client.execute(select, (key.encode(),)).fetchone()[0])
        return found

    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_rate(stored.__getitem__, keys, LOOKUPS))
        theirs.append(_rate(find, keys, LOOKUPS))
        say(f"  on disk, {rows:,} rows: {ours[-1]:,.0f} lookups/s, sqlite3 {theirs[-1]:,.0f}")
    client.close()
    stored.close()
    best = statistics.median(ours)
    report.figures.append(Figure(f"Table on disk, {rows:,} rows, lookup", best, "lookups/s", 100_000))
    report.figures.append(Figure(f"Table on disk, {rows:,} rows in order of keys, written", rows / written_s, "rows/s"))
    report.rows.append(
        Row(f"Table on disk, {rows:,} rows", best, "Table", statistics.median(theirs), "sqlite3", "lookups/s", 0.7)
    )


def _restart(report: Report, say: Callable[[str], None], folder: Path, rounds: int, records: int) -> None:
    url = f"log:{folder / 'log'}"
    with penstock.connect(url) as stream:
        stream.create_topic(USERS.name, 1, {"cleanup.policy": "compact"})
        for number in range(records):
            stream.send(USERS.name, _value(number), str(number))
        stream.flush()
        again, replayed = [], []
        kept = folder / "kept.db"
        _first_lookup(url, kept)
        for turn in range(rounds):
            replayed.append(_first_lookup(url, folder / f"{turn}.db"))
            again.append(_first_lookup(url, kept))
            say(f"  {records:,} records: {again[-1]:.3f} s from the snapshot, {replayed[-1]:.2f} s by replay")
    ours, theirs = statistics.median(again), statistics.median(replayed)
    title = f"Table on disk, {records:,} records, start to first lookup"
    report.rows.append(Row(title, ours, "from its snapshot", theirs, "replay", "s", 0.1, lower_is_better=True))


def _first_lookup(url: str, storage: Path) -> float:
    begun_s = time.perf_counter()
    with penstock.Table(url, USERS, storage=storage, timeout_s=600) as table:
        table["7"]
        return time.perf_counter() - begun_s


def _visible(report: Report, say: Callable[[str], None], folder: Path, duration_s: float) -> None:
    url = f"log:{folder / 'captured'}"
    settings = {"wal_level": "logical", "max_replication_slots": "4", "max_wal_senders": "4"}
    with (
        PostgresServer(settings) as server,
        penstock.connect(url),
        psycopg.connect(server.url, autocommit=True) as client,
    ):
        client.execute("CREATE TABLE users (id int PRIMARY KEY, written double precision)")
        client.execute("INSERT INTO users SELECT n, 0 FROM generate_series(0, 999) n")
        command = [sys.executable, "-m", "penstock.cli", "cdc", server.url, url, "--tables", "public.users"]
        capture = subprocess.Popen([*command, "--name", "bench", "--prefix", "bench"], stderr=subprocess.DEVNULL)
        try:
            delays, elapsed_s = _delays(url, client, duration_s)
        finally:
            capture.terminate()
            capture.wait(60)
    rate = len(delays) / elapsed_s
    p50, p99 = (statistics.quantiles(delays, n=100)[at - 1] * 1000 for at in (50, 99))
    say(f"  capture to visible at {rate:,.0f} changes/s: p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    title = f"from a commit in PostgreSQL to a Table, {rate:,.0f} changes/s for {elapsed_s:.0f} s"
    report.figures.append(Figure(f"{title}, p50", p50, "ms"))
    report.figures.append(Figure(f"{title}, p99", p99, "ms", 500, lower_is_better=True))


def _delays(url: str, client: psycopg.Connection[Any], duration_s: float) -> tuple[list[float], float]:
    """Commit `PER_S` changes a second, or as many as the machine can. How late each was visible, and the seconds."""
    count = round(PER_S * duration_s)
    delays: list[float] = []
    everything = threading.Event()

    def changed(change: TableChange) -> None:
        after: Mapping[str, Any] | None = change.after
        if after and after["written"]:
            delays.append(time.time() - after["written"])
            if len(delays) == count:
                everything.set()

    _wait_for_topic(url)
    with penstock.Table(url, "bench.public.users", format="debezium") as table:
        until_s = time.monotonic() + 60
        while len(table) < 1_000 and time.monotonic() < until_s:
            time.sleep(0.05)
        table.on_change(changed)
        begun_s = time.monotonic()
        for number in range(count):
            early_s = begun_s + number / PER_S - time.monotonic()
            if early_s > 0:
                time.sleep(early_s)
            client.execute("UPDATE users SET written = %s WHERE id = %s", (time.time(), number % 1_000))
        elapsed_s = time.monotonic() - begun_s
        everything.wait(60)
    return delays, elapsed_s


def _wait_for_topic(url: str) -> None:
    until_s = time.monotonic() + 60
    with penstock.connect(url) as stream:
        while "bench.public.users" not in stream.topics() and time.monotonic() < until_s:
            time.sleep(0.05)
