"""A durable queue of a few lines, to show what the suite says about queues that are killed. Small, slow, correct.

Who has a record is written beside it, with the time up to which it is theirs. Subclasses have one defect each.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.abc import Delivery, Feature, Features, Outcome
from penstock.errors import ConfigError, ConnectionClosedError, StaleDeliveryError
from penstock.model import NewRecord, Record

VISIBILITY_S: Final = 2.0
POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class SqliteDelivery:
    record: Record
    attempt: int
    ticket: str


class SqliteQueue:
    """Without keys, headers, and delayed redelivery."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "queue.db"
        self._closed = False
        with self.transaction() as database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS queue (place INTEGER PRIMARY KEY AUTOINCREMENT, value BLOB,"
                " until_s REAL DEFAULT 0, ticket TEXT DEFAULT '', attempt INTEGER DEFAULT 0)"
            )

    @property
    def name(self) -> str:
        return "sqlite"

    @property
    def features(self) -> Features:
        return frozenset({Feature.DURABLE, Feature.REDELIVERY})

    def transaction(self) -> sqlite3.Connection:
        if self._closed:
            raise ConnectionClosedError("the queue is closed")
        database = sqlite3.connect(self._file, timeout=30)
        database.execute("PRAGMA synchronous=OFF")  # processes are killed here, machines are not
        return database

    def receive(self, limit: int, wait_s: float) -> Sequence[SqliteDelivery]:
        deadline_s = time.monotonic() + wait_s
        while True:
            deliveries = self.take(limit)
            if deliveries or time.monotonic() >= deadline_s:
                return deliveries
            wait_a_little(min(POLL_S, max(0.0, deadline_s - time.monotonic())), timeout_s=POLL_S)

    def take(self, limit: int) -> list[SqliteDelivery]:
        ticket = uuid.uuid4().hex
        with self.transaction() as database:
            rows = database.execute(
                "UPDATE queue SET until_s = ?, ticket = ? || place, attempt = attempt + 1 WHERE place IN"
                " (SELECT place FROM queue WHERE until_s <= ? ORDER BY place LIMIT ?)"
                " RETURNING place, value, attempt, ticket",
                (time.time() + VISIBILITY_S, ticket, time.time(), limit),
            ).fetchall()
        return [
            SqliteDelivery(Record("queue", 0, place, None, value), attempt, own)
            for place, value, attempt, own in sorted(rows)
        ]

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        assert isinstance(delivery, SqliteDelivery)
        if delay_s:
            raise ConfigError("this queue has no delayed redelivery")
        is_again = outcome in (Outcome.RETRY, Outcome.RELEASE)
        what = "UPDATE queue SET until_s = 0" if is_again else "DELETE FROM queue"
        with self.transaction() as database:
            changed = database.execute(f"{what} WHERE ticket = ?", (delivery.ticket,)).rowcount
        if not changed:
            raise StaleDeliveryError("somebody else has it")

    def send(self, records: Sequence[NewRecord]) -> None:
        with self.transaction() as database:
            database.executemany("INSERT INTO queue (value) VALUES (?)", [(record.value,) for record in records])

    def close(self) -> None:
        self._closed = True


def wait_a_little(pause_s: float, timeout_s: float) -> None:
    time.sleep(min(pause_s, timeout_s))


class SendsLater(SqliteQueue):
    """Says that it has a record before it does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._unsent: list[NewRecord] = []

    def send(self, records: Sequence[NewRecord]) -> None:
        self._unsent += records

    def close(self) -> None:
        super().send(self._unsent)
        super().close()


class SettlesLater(SqliteQueue):
    """Says that a record is settled before it is."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._unsettled: list[Delivery] = []

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        self._unsettled.append(delivery)

    def close(self) -> None:
        for each in self._unsettled:
            super().settle(each, Outcome.DONE)
        super().close()


class ForgetsWhatIsHandedOut(SqliteQueue):
    """Takes a record off the queue when it is received, not when it is settled."""

    def receive(self, limit: int, wait_s: float) -> Sequence[SqliteDelivery]:
        deliveries = super().receive(limit, wait_s)
        for delivery in deliveries:
            super().settle(delivery, Outcome.DONE)
        return deliveries

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        return
