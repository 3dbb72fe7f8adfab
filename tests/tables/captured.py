"""What tests of change data capture share: a PostgreSQL with logical decoding, a capture in a process that can be
killed, and the table that the records of a topic make."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
import pytest

from penstock.errors import TransactionLostError
from penstock.model import Record
from penstock.streams import connect
from penstock.tables.cdc.delivery import TransactionalDelivery
from penstock.tables.cdc.source import CAPTURE
from tests.postgres import PostgresServer

TIMEOUT_S: Final = 60.0
_numbers = itertools.count(1)


@functools.cache
def logical_postgres() -> PostgresServer:
    """The PostgreSQL of this test process with `wal_level = logical`."""
    server = PostgresServer(
        {"wal_level": "logical", "max_replication_slots": "60", "max_wal_senders": "60", "max_connections": "200"}
    )
    atexit.register(server.stop)
    server.start()
    return server


@contextmanager
def fresh_database() -> Iterator[str]:
    """The URL of a new database. Its slots are dropped at the end, so that they keep nothing."""
    server = logical_postgres()
    name = f"cdc_{next(_numbers)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield server.url.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
            (name,),
        )
        wait_until(lambda: not _active_slots(connection, name), "slots are released")
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,)
        )


def _active_slots(connection: psycopg.Connection[Any], database: str) -> list[Any]:
    return connection.execute(
        "SELECT 1 FROM pg_replication_slots WHERE database = %s AND active", (database,)
    ).fetchall()


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.01)


def wait_a_while(duration_s: float, timeout_s: float = TIMEOUT_S) -> None:
    """Let other processes work for a random while, before one of them is killed."""
    time.sleep(min(duration_s, timeout_s))


class CaptureProcess:
    """`penstock cdc` in a process of its own."""

    def __init__(self, source: str, stream: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "penstock.cli", "cdc", source, stream, *arguments]
        self.popen: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.popen = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)

    def check_running(self) -> None:
        assert self.popen is not None
        if self.popen.poll() is not None:
            raise AssertionError(f"the capture ended by itself: {self.popen.communicate()[1]}")

    def kill(self) -> None:
        assert self.popen is not None
        self.popen.kill()
        self.popen.communicate()

    def terminate(self) -> int:
        assert self.popen is not None
        self.popen.terminate()
        _, said = self.popen.communicate(timeout=TIMEOUT_S)
        assert self.popen.returncode == 0, said
        return self.popen.returncode


def fail_first_set_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a capture fail once when it stores what it is. What is returned has an item once it did."""
    deliver = TransactionalDelivery.deliver
    failures: list[str] = []

    def failing(
        delivery: TransactionalDelivery, records: Any, state: dict[str, bytes | None], *others: Any, **options: Any
    ) -> None:
        if CAPTURE in state and not failures:
            failures.append("failed")
            raise TransactionLostError("the stream is away")
        deliver(delivery, records, state, *others, **options)

    monkeypatch.setattr(TransactionalDelivery, "deliver", failing)
    return failures


def confirmed_lsn(connection: psycopg.Connection[Any], slot: str) -> int:
    row = connection.execute(
        "SELECT pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::bigint FROM pg_replication_slots WHERE slot_name = %s",
        (slot,),
    ).fetchone()
    return 0 if row is None or row[0] is None else int(row[0])


def current_lsn(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint").fetchone()
    assert row is not None
    return int(row[0])


@dataclass(slots=True)
class Event:
    """One change as a topic tells it."""

    op: str
    lsn: int
    transaction: int
    commit_lsn: int
    index: int


@dataclass(slots=True)
class Materialised:
    """What the records of a topic make, if they are applied in order."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    snapshot_keys: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def apply(self, record: Record) -> None:
        """A record in Debezium's envelope, or a tombstone."""
        assert record.key is not None
        key = record.key.decode()
        if record.value is None:
            assert key not in self.rows, f"a tombstone without its delete event: {key}"
            return
        value = json.loads(record.value)
        source, op = value["source"], value["op"]
        position = source.get("lsn", source.get("sequence", source.get("pos")))
        if op == "r":
            self.snapshot_keys.append(key)
        else:
            self.events.append(
                Event(op, position, source.get("txId", 0), source.get("commitLsn", 0), source.get("index", 0))
            )
        if op == "t":
            self.rows.clear()
        elif op == "d":
            self.rows.pop(key, None)
        else:
            self.rows[key] = value["after"]


def materialised(stream: str, topic: str) -> Materialised:
    table = Materialised()
    with connect(stream) as connection:
        for record in connection.read(topic):
            table.apply(record)
    return table


def records_of(stream: str, topic: str) -> list[Record]:
    with connect(stream) as connection:
        return list(connection.read(topic))


def random_text(chance: random.Random) -> str | None:
    """NULL, empty, unicode, what COPY and JSON escape, or long enough that PostgreSQL stores it apart."""
    kind = chance.randrange(7)
    if kind == 0:
        return None
    if kind == 1:
        return ""
    if kind == 2:
        return "".join(chance.choice("äß€😀漢\u0301\u202e") for _ in range(chance.randint(1, 30)))
    if kind == 3:
        return "".join(chance.choice("\t\n\r\b\f\v\\N\"'{}%\x7f\x1f,") for _ in range(chance.randint(1, 30)))
    if kind == 4:
        return "".join(
            chance.choice("0123456789abcdefghijklmnopqrstuvwxyz") for _ in range(chance.randint(3_000, 9_000))
        )
    return f"text {chance.randrange(1000)}"
