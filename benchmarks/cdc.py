"""Change data capture: a snapshot beside `psql`'s COPY, and a backlog of changes beside Debezium's engine."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg

import penstock
from benchmarks.report import Figure, Report, Row
from benchmarks.servers import REPOSITORY
from penstock.tables import Capture
from tests.postgres import PostgresServer
from tools import parts

ROWS: Final = 1_000_000
BACKLOG: Final = 300_000
IN_A_TRANSACTION: Final = 100
TIMEOUT_S: Final = 600.0
SETTINGS: Final = {"wal_level": "logical", "max_replication_slots": "8", "max_wal_senders": "8", "max_wal_size": "8GB"}
PROGRAM: Final = REPOSITORY / "benchmarks" / "DebeziumBacklog.java"
Say = Callable[[str], None]


def run(report: Report, say: Say, *, rounds: int = 3, scale: float = 1.0) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as name,
        PostgresServer(SETTINGS) as server,
        psycopg.connect(server.url, autocommit=True) as client,
    ):
        _snapshot(report, say, Path(name), server.url, client, rounds, max(10_000, round(ROWS * scale)))
        _backlog(report, say, Path(name), server.url, client, rounds, max(10_000, round(BACKLOG * scale)))
    report.notes.append(
        "Change data capture: PostgreSQL runs with fsync off, and the embedded log with its default flush policy. The "
        "snapshot stores Debezium's envelope of each row exactly once; psql copies the rows to /dev/null. The backlog "
        f"was committed before, {IN_A_TRANSACTION} rows in a transaction. Our capture stores it exactly once; "
        "Debezium's engine makes JSON without a schema and counts it. Both rates are from the first batch to the last: "
        "the start of the JVM and of the capture are not in them."
    )


def _snapshot(
    report: Report, say: Say, folder: Path, url: str, client: psycopg.Connection[Any], rounds: int, rows: int
) -> None:
    client.execute(
        "CREATE TABLE users (id bigint PRIMARY KEY, name text, email text, city text, cents bigint, "
        "balance numeric(12, 2), active boolean, created timestamptz, note text)"
    )
    client.execute(
        "INSERT INTO users SELECT n, 'user ' || n, 'user' || n || '@example.com', "
        "(array['Oslo', 'Lima', 'Rome', NULL])[1 + n % 4], n * 7, n / 100.0, n % 2 = 0, "
        "'2026-01-01'::timestamptz + n * interval '1 s', repeat('note ', n % 10) "
        f"FROM generate_series(1, {rows}) n"
    )
    client.execute("VACUUM ANALYZE users")
    psql = str(Path(parts.postgres_programs()) / "psql")
    ours, theirs = [], []
    for turn in range(rounds):
        begun_s = time.perf_counter()
        subprocess.run([psql, url, "-qc", "COPY users TO STDOUT"], stdout=subprocess.DEVNULL, check=True)
        theirs.append(rows / (time.perf_counter() - begun_s))
        stream = f"log:{folder / f'snapshot-{turn}'}"
        with penstock.connect(stream):
            capture = Capture(url, stream, tables=["users"], name=f"snapshot_{turn}", snapshot="only")
            begun_s = time.perf_counter()
            capture.run()
            ours.append(rows / (time.perf_counter() - begun_s))
        say(f"  snapshot of {rows:,} rows: {ours[-1]:,.0f} rows/s, psql's COPY {theirs[-1]:,.0f}")
    title = f"Snapshot of a table of PostgreSQL, {rows:,} rows of 9 columns"
    report.rows.append(
        Row(title, statistics.median(ours), "penstock cdc", statistics.median(theirs), "psql COPY", "rows/s", 0.35)
    )


def _backlog(
    report: Report, say: Say, folder: Path, url: str, client: psycopg.Connection[Any], rounds: int, count: int
) -> None:
    client.execute("CREATE TABLE changes (id bigint PRIMARY KEY, name text, cents bigint)")
    stream = f"log:{folder / 'changes'}"
    try:
        debezium: _Debezium | None = _Debezium(url, client, folder)
    except parts.PartMissing as missing:
        report.notes.append(f"Not compared with Debezium: {missing}")
        say(f"  without Debezium: {missing}")
        debezium = None
    ours, theirs = [], []
    with penstock.connect(stream):
        with _running(url, stream):
            pass  # its slot is there
        for turn in range(rounds):
            first = 1 + turn * count
            for start in range(first, first + count, IN_A_TRANSACTION):
                end = min(first + count, start + IN_A_TRANSACTION)
                client.execute(
                    f"INSERT INTO changes SELECT n, 'name ' || n, n FROM generate_series({start}, {end - 1}) n"
                )
            with _running(url, stream) as capture:
                ours.append(_rate(capture, count))
            said = f"  a backlog of {count:,} changes: {ours[-1]:,.0f} changes/s"
            if debezium is not None:
                theirs.append(debezium.rate(first + count - 1))
                said += f", Debezium {theirs[-1]:,.0f}"
            say(said)
    title = f"A backlog of {count:,} changes of PostgreSQL"
    best = statistics.median(ours)
    if theirs:
        report.rows.append(
            Row(title, best, "penstock cdc", statistics.median(theirs), "Debezium engine", "changes/s", 5)
        )
    else:
        report.figures.append(Figure(title, best, "changes/s"))


@contextlib.contextmanager
def _running(url: str, stream: str) -> Iterator[Capture]:
    capture = Capture(url, stream, tables=["changes"], name="backlog")
    thread = threading.Thread(target=capture.run)
    thread.start()
    try:
        _wait(lambda: capture.progress.phase == "streaming" or not thread.is_alive(), "the capture streams")
        yield capture
    finally:
        capture.close()
        thread.join()


def _rate(capture: Capture, count: int) -> float:
    """From the first batch to the last, without the first."""
    _wait(lambda: capture.progress.changes > 0, "the first changes are stored")
    begun_s, first = time.perf_counter(), capture.progress.changes
    _wait(lambda: capture.progress.changes >= count, "all changes are stored")
    return (count - first) / (time.perf_counter() - begun_s)


def _wait(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {TIMEOUT_S:g} s: {what}")
        time.sleep(0.002)


class _Debezium:
    """The engine on the table `changes`, with a slot of its own."""

    def __init__(self, url: str, client: psycopg.Connection[Any], folder: Path) -> None:
        self._java = parts.java_with_compiler()
        self._jars = parts.debezium_jars()
        where = urlsplit(url)
        self._properties = {
            "name": "bench",
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": where.hostname,
            "database.port": where.port,
            "database.user": where.username,
            "database.password": where.password or "none",
            "database.dbname": where.path.strip("/"),
            "topic.prefix": "bench",
            "table.include.list": "public.changes",
            "plugin.name": "pgoutput",
            "slot.name": "debezium",
            "publication.autocreate.mode": "filtered",
            "snapshot.mode": "no_data",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": folder / "debezium-offsets",
            "offset.flush.interval.ms": 1000,
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            "max.batch.size": 8192,
            "max.queue.size": 32768,
        }
        with self._engine(0) as process:  # until it has read one row: then its offset is stored

            def is_reading() -> bool:
                if process.poll() is not None:
                    raise RuntimeError(f"Debezium's engine ended: {process.communicate()[1][-2000:]}")
                return client.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone() is not None

            _wait(is_reading, "Debezium reads")
            client.execute("INSERT INTO changes VALUES (0, 'first', 0)")
            self._result(process)

    def rate(self, last: int) -> float:
        """Changes a second up to the one with this id."""
        with self._engine(last) as process:
            found = self._result(process)
        return float(found["changes"]) / float(found["seconds"])

    @contextlib.contextmanager
    def _engine(self, last: int) -> Iterator[subprocess.Popen[str]]:
        properties = [f"{name}={value}" for name, value in self._properties.items()]
        command = [self._java, "-Xmx1g", "-cp", f"{self._jars}/*", str(PROGRAM), f'{{"id":{last}}}', *properties]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def _result(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, said = process.communicate(timeout=TIMEOUT_S)
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if not lines:
            raise RuntimeError(f"Debezium's engine printed no result: {said[-2000:]}")
        found: dict[str, Any] = json.loads(lines[-1])
        return found
