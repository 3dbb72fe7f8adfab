"""Receivers and messages in SQLite: who wants which events, and what each has not got yet.

Messages are numbered in the order in which they were stored. A receiver has a position in them, as a group has in a
topic: everything before it is delivered or refused. A message is removed when every receiver is past it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import secrets
import urllib.parse
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from penstock.abc import Clock
from penstock.channels.http.signatures import check_secret, new_secret
from penstock.databases import Schema
from penstock.databases.sqlite import SqliteDatabase
from penstock.errors import ConfigError
from penstock.model import Headers, NewRecord
from penstock.model.clock import SystemClock

State = Literal["active", "disabled"]

SCHEMA: Final = Schema(
    what="webhooks",
    version=1,
    version_table="penstock_webhook_version",
    statements=(
        """CREATE TABLE penstock_webhook_receivers (
            id TEXT PRIMARY KEY, url TEXT NOT NULL, events TEXT NOT NULL, secrets TEXT NOT NULL, state TEXT NOT NULL,
            next INTEGER NOT NULL, registered_ms INTEGER NOT NULL, failing_since_ms INTEGER, problem TEXT NOT NULL,
            delivered INTEGER NOT NULL, refused INTEGER NOT NULL
        )""",
        """CREATE TABLE penstock_webhook_messages (
            number INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, id TEXT NOT NULL,
            event TEXT NOT NULL, key BLOB, value BLOB, headers BLOB NOT NULL, timestamp_ms INTEGER,
            stored_ms INTEGER NOT NULL
        )""",
        """CREATE TABLE penstock_webhook_refusals (
            receiver TEXT NOT NULL, id TEXT NOT NULL, event TEXT NOT NULL, value BLOB, problem TEXT NOT NULL,
            refused_ms INTEGER NOT NULL
        )""",
    ),
)
_RECEIVER: Final = "id, url, events, secrets, state, next, registered_ms, failing_since_ms, problem, delivered, refused"
_MESSAGE: Final = "number, id, event, key, value, headers, timestamp_ms"
_LAST: Final = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'penstock_webhook_messages'"
_LONGEST_PROBLEM: Final = 500
_MOST_EVENTS: Final = 100
_LONGEST_EVENT: Final = 200


@dataclass(frozen=True, slots=True)
class RegisteredReceiver:
    """A receiver of webhooks."""

    id: str
    url: str
    events: tuple[str, ...]
    """Patterns of event types: `order.*`; `*` for all."""
    secrets: tuple[str, ...] = field(repr=False)
    """Each request is signed with all of them. The first one is the newest."""
    state: State
    next: int
    """The number of the first message that it may not have."""
    registered_ms: int
    failing_since_ms: int | None
    problem: str
    """Why the last request failed, or why it is disabled."""
    delivered: int
    refused: int

    def wants(self, event: str) -> bool:
        return any(fnmatch.fnmatchcase(event, pattern) for pattern in self.events)

    def shown(self) -> dict[str, Any]:
        """The receiver without its secrets, for people and other programs."""
        return {
            "id": self.id,
            "url": self.url,
            "events": list(self.events),
            "state": self.state,
            "problem": self.problem,
            "failing_since_ms": self.failing_since_ms,
            "delivered": self.delivered,
            "refused": self.refused,
        }


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A record that waits for receivers."""

    number: int
    id: str
    event: str
    record: NewRecord


class Registry:
    """The receivers and messages of one file. Any thread and any process may use it."""

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        with suppress(OSError):  # opening the database says what is wrong
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # it holds secrets
        self._database: SqliteDatabase[Any] = SqliteDatabase(path, SCHEMA, synchronous="FULL")

    def close(self) -> None:
        self._database.close()

    def register(
        self, url: str, events: Sequence[str] = ("*",), secret: str | None = None, max_receivers: int = 1_000
    ) -> RegisteredReceiver:
        """Register a receiver, for records that are sent from now on. Without a secret, it gets a new one."""
        if secret is not None:
            check_secret("standard", secret, "the registration")
        check_url(url, allow_http=True)
        check_events(events)
        receiver_id = f"wh_{secrets.token_hex(12)}"
        with self._database.transaction() as cursor:
            (count,) = cursor.execute("SELECT count(*) FROM penstock_webhook_receivers").fetchone()
            if count >= max_receivers:
                raise ConfigError(f"{count} receivers are registered, and max_receivers allows no more: remove some")
            (last,) = cursor.execute(_LAST).fetchone()
            cursor.execute(
                f"INSERT INTO penstock_webhook_receivers ({_RECEIVER}) "
                "VALUES (?, ?, ?, ?, 'active', ?, ?, NULL, '', 0, 0)",
                (receiver_id, url, " ".join(events), secret or new_secret(), last + 1, self._clock.wall_ms()),
            )
        return self.receiver(receiver_id)

    def receivers(self) -> list[RegisteredReceiver]:
        """All receivers, the oldest first."""
        rows = self._database.read(f"SELECT {_RECEIVER} FROM penstock_webhook_receivers ORDER BY registered_ms, id")
        return [_receiver(row) for row in rows]

    def receiver(self, receiver_id: str) -> RegisteredReceiver:
        """The registered receiver with this id. ConfigError if there is none."""
        rows = self._database.read(f"SELECT {_RECEIVER} FROM penstock_webhook_receivers WHERE id = ?", (receiver_id,))
        if not rows:
            raise ConfigError(f"no receiver {receiver_id} is registered in {self.path}")
        return _receiver(rows[0])

    def remove(self, receiver_id: str) -> None:
        self.receiver(receiver_id)
        self._database.write("DELETE FROM penstock_webhook_receivers WHERE id = ?", (receiver_id,))

    def enable(self, receiver_id: str) -> None:
        """Send to a disabled receiver again, beginning with the messages that wait for it and were not removed."""
        self._change(receiver_id, "state = 'active', problem = '', failing_since_ms = NULL")

    def disable(self, receiver_id: str, problem: str) -> None:
        self._change(receiver_id, "state = 'disabled', problem = ?", problem[:_LONGEST_PROBLEM])

    def rotate(self, receiver_id: str) -> str:
        """Give a receiver a new secret. Until the next change, requests are signed with the previous one, too."""
        secret = new_secret()
        self._change(receiver_id, "secrets = ?", " ".join([secret, *self.receiver(receiver_id).secrets[:1]]))
        return secret

    def add(self, messages: Iterable[tuple[str, str, NewRecord]]) -> None:
        """Store records with their id and event type. A record whose id is there already is ignored."""
        now_ms = self._clock.wall_ms()
        with self._database.transaction() as cursor:
            cursor.executemany(
                "INSERT OR IGNORE INTO penstock_webhook_messages "
                "(digest, id, event, key, value, headers, timestamp_ms, stored_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        _digest(each, new),
                        each,
                        event,
                        new.key,
                        new.value,
                        msgspec.msgpack.encode(new.headers),
                        new.timestamp_ms,
                        now_ms,
                    )
                    for each, event, new in messages
                ],
            )

    def waiting(self, start: int, limit: int) -> list[StoredMessage]:
        """The messages with this number or a higher one."""
        rows = self._database.read(
            f"SELECT {_MESSAGE} FROM penstock_webhook_messages WHERE number >= ? ORDER BY number LIMIT ?",
            (start, limit),
        )
        return [_message(row) for row in rows]

    def end(self) -> int:
        """The number of the next message, or a lower one that no message has."""
        ((last,),) = self._database.read(_LAST)
        return int(last) + 1

    def advance(self, receiver_id: str, next_number: int, delivered: int) -> None:
        self._change(receiver_id, "next = ?, delivered = delivered + ?", next_number, delivered)

    def succeeded(self, receiver_id: str) -> None:
        self._change(receiver_id, "failing_since_ms = NULL, problem = ''")

    def failing(self, receiver_id: str, problem: str) -> None:
        """Note that a request failed. The first failure after a success starts the time after which the receiver is
        disabled."""
        self._change(
            receiver_id,
            "failing_since_ms = coalesce(failing_since_ms, ?), problem = ?",
            self._clock.wall_ms(),
            problem[:_LONGEST_PROBLEM],
        )

    def refused(self, receiver_id: str, message: StoredMessage, problem: str) -> None:
        """Note that a receiver refuses a message for good, and keep the message for inspection."""
        with self._database.transaction() as cursor:
            cursor.execute(
                "INSERT INTO penstock_webhook_refusals VALUES (?, ?, ?, ?, ?, ?)",
                (receiver_id, message.id, message.event, message.record.value, problem, self._clock.wall_ms()),
            )
            cursor.execute("UPDATE penstock_webhook_receivers SET refused = refused + 1 WHERE id = ?", (receiver_id,))

    def refusals(self, receiver_id: str) -> list[tuple[str, str, bytes | None, str]]:
        """The id, event type, value and problem of each message that a receiver refused, the oldest first."""
        return [
            (message_id, event, value, problem)
            for message_id, event, value, problem in self._database.read(
                "SELECT id, event, value, problem FROM penstock_webhook_refusals WHERE receiver = ? ORDER BY rowid",
                (receiver_id,),
            )
        ]

    def trim(self, keep_s: float, most: int) -> None:
        """Remove messages that every receiver has got. For disabled receivers, keep the newest `most` messages, for
        `keep_s`."""
        oldest_ms = self._clock.wall_ms() - int(keep_s * 1000)
        with self._database.transaction() as cursor:
            (last,) = cursor.execute(_LAST).fetchone()
            cursor.execute(
                "DELETE FROM penstock_webhook_messages WHERE number < "
                "(SELECT coalesce(min(next), :last + 1) FROM penstock_webhook_receivers) "
                "OR ((stored_ms < :oldest_ms OR number <= :last - :most) AND number < "
                "(SELECT coalesce(min(next), :last + 1) FROM penstock_webhook_receivers WHERE state = 'active'))",
                {"last": last, "oldest_ms": oldest_ms, "most": most},
            )
            cursor.execute("DELETE FROM penstock_webhook_refusals WHERE refused_ms < ?", (oldest_ms,))

    def _change(self, receiver_id: str, what: str, *values: Any) -> None:
        self._database.write(f"UPDATE penstock_webhook_receivers SET {what} WHERE id = ?", (*values, receiver_id))


def check_url(url: str, *, allow_http: bool) -> None:
    """Raise ConfigError unless a receiver may have this URL."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_usable = False
    if not is_usable or parts.username is not None or parts.scheme not in ("http", "https") or not url.isascii():
        raise ConfigError("the url of a receiver must be https://HOST/PATH, without a login")
    if parts.scheme == "http" and not allow_http:
        raise ConfigError("the url of a receiver must begin with https: (unless http is allowed)")


def check_events(events: Sequence[str]) -> None:
    if not events or len(events) > _MOST_EVENTS:
        raise ConfigError(f"events must have 1 to {_MOST_EVENTS} event types, or patterns such as order.*")
    for event in events:
        if not event or len(event) > _LONGEST_EVENT or any(character.isspace() for character in event):
            raise ConfigError(f"{event[:50]!r} is not an event type, or a pattern such as order.*")


def _digest(message_id: str, record: NewRecord) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode((message_id, record.key, record.value))).digest()


def _receiver(row: Sequence[Any]) -> RegisteredReceiver:
    receiver_id, url, events, found, *others = row
    return RegisteredReceiver(receiver_id, url, tuple(events.split()), tuple(found.split()), *others)


def _message(row: Sequence[Any]) -> StoredMessage:
    number, message_id, event, key, value, headers, timestamp_ms = row
    decoded = msgspec.msgpack.decode(headers, type=Headers)
    return StoredMessage(number, message_id, event, NewRecord("webhooks", value, key, decoded, timestamp_ms))
