"""Connections to PostgreSQL for tables as topics: bounded statements, errors of a stream, notifications."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, Self

from penstock.databases.postgres import PostgresConnection, PostgresPool, psycopg
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    NotAllowedError,
    PenstockError,
    StoreUnavailableError,
    UnknownTopicError,
)
from penstock.model.retry import Retry
from penstock.streams.adapting.polled_topic import Wakeups
from penstock.streams.backend_url import check_positive
from penstock.streams.sql.topic_tables import TopicSettings

ANSWER_S: Final = 5.0
"""How much later than the server we give up a statement, so that it is the server that says why."""
LONGEST_PAUSE_S: Final = 5.0
_AGAIN: Final = Retry(None, first_delay_s=0.2, max_delay_s=LONGEST_PAUSE_S, jitter=0)
REFUSED_LOGINS: Final = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    'role "',
    'database "',
)


@dataclass(frozen=True, slots=True)
class PostgresSettings(TopicSettings):
    """Settings of `postgresql:` URLs, besides libpq's own parameters."""

    poll_interval_s: float = 0.5
    """How often a waiting reader looks for new rows if no notification comes: latency against load."""
    transaction_column: str = ""
    """For existing tables: a column `xid8 NOT NULL DEFAULT pg_current_xact_id()`. Rows are read in the order of
    transactions, safely for any writer, but any open transaction of the server that writes holds readers up."""
    notify_channel: str = "penstock"
    """Appends notify waiting readers on this channel. Empty: no notifications, and one connection less. For existing
    tables, a trigger of yours may do so: `pg_notify('penstock', TABLE)`."""
    connect_timeout_s: float = 10.0
    """How long to wait for a connection."""
    request_timeout_s: float = 20.0
    """The longest a statement may take, waiting for locks included. Positions at a time scan the table."""
    max_connections: int = 8
    """At most this many connections; readers and writers beyond that wait."""

    def __post_init__(self) -> None:
        TopicSettings.__post_init__(self)
        if self.transaction_column and not self.id_column:
            raise ConfigError("transaction_column is for existing tables: add id_column, too")
        check_positive(self, "poll_interval_s", "connect_timeout_s", "request_timeout_s", "max_connections")


class TableConnection(PostgresConnection):
    """A connection on which no statement waits forever, even if the server is silent."""

    oldest_major = 13
    request_timeout_s = 0.0

    @classmethod
    def connect(cls, conninfo: str = "", **settings: Any) -> Self:
        request_timeout_s: float = settings.pop("request_timeout_s")
        connection = super().connect(conninfo, **settings)
        connection.request_timeout_s = request_timeout_s
        limit = f"{round(request_timeout_s * 1000)}ms"
        # Rows are read in the order of an index, a few at a time. Without statistics of a new table, the planner would
        # rather collect all the rest of the table and sort it, and compile that first.
        connection.execute(
            "SELECT set_config('statement_timeout', %s, false), set_config('enable_bitmapscan', 'off', false), "
            "set_config('jit', 'off', false)",
            (limit,),
        )
        return connection

    def wait(self, gen: Any, *settings: Any, **named: Any) -> Any:
        """Wait as psycopg does, but no longer than the request timeout."""
        if self.request_timeout_s:
            gen = _bounded(gen, time.monotonic() + self.request_timeout_s + ANSWER_S)
        return super().wait(gen, *settings, **named)


def _bounded(steps: Generator[Any, Any, Any], deadline_s: float) -> Generator[Any, Any, Any]:
    """The same steps, with an error when nothing is ready after the deadline."""
    try:
        wanted = next(steps)
        while True:  # ends with the steps
            ready = yield wanted
            if not ready and time.monotonic() > deadline_s:
                raise psycopg.OperationalError("the server did not answer in time")
            wanted = steps.send(ready)
    except StopIteration as end:
        return end.value


class TablePool(PostgresPool[TableConnection]):
    """Connections whose errors are those of a stream."""

    def __init__(self, address: str, settings: PostgresSettings) -> None:
        self.connect_timeout_s = max(2, round(settings.connect_timeout_s))  # libpq's least, in whole seconds
        super().__init__(
            address,
            "topics",
            size=settings.max_connections,
            timeout_s=settings.request_timeout_s,
            connection_class=TableConnection,
            connect={"connect_timeout": self.connect_timeout_s, "request_timeout_s": settings.request_timeout_s},
        )

    def take(self) -> TableConnection:
        try:
            return super().take()
        except StoreUnavailableError as error:
            raise BrokerUnavailableError(str(error)) from error

    def translated(self, error: psycopg.Error) -> PenstockError:
        text = " ".join(str(error).split())
        match error:
            case psycopg.errors.UndefinedTable():
                return UnknownTopicError(f"{self.where}: {text}. Create the topic first")
            case psycopg.errors.InsufficientPrivilege():
                return NotAllowedError(f"{self.where} denies this: {text}. Grant the privilege to the user of the URL")
            case psycopg.OperationalError() | psycopg.InterfaceError() | psycopg.InternalError():
                is_refused = any(each in text for each in REFUSED_LOGINS)
                hint = "check user, password and database of the URL" if is_refused else "it is tried again when used"
                return BrokerUnavailableError(f"{self.where} is unavailable ({hint}): {text}", retriable=not is_refused)
        return super().translated(error)


class Listener:
    """A thread that hears of notifications and wakes readers. Without it, or while it reconnects, they poll."""

    def __init__(self, pool: TablePool, channel: str, wakeups: Wakeups) -> None:
        self._pool = pool
        self._channel = channel
        self._wakeups = wakeups
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pipe: tuple[int, int] | None = None

    def start(self) -> None:
        """Called before waiting. The first call starts the thread."""
        if not self._channel or self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                self._pipe = os.pipe()
                self._thread = threading.Thread(target=self._run, args=self._pipe, name="postgres-listen", daemon=True)
                self._thread.start()

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, threading.current_thread()
            if self._pipe is None or thread is None:
                return
            os.close(self._pipe[1])
            self._pipe = None
        thread.join(self._pool.connect_timeout_s + ANSWER_S)

    def _run(self, stop: int, _: int) -> None:
        delays_s = _AGAIN.delays_s()
        try:
            while not _is_ready(stop, 0.0):
                address = {**self._pool.settings, "connect_timeout": self._pool.connect_timeout_s}
                with contextlib.suppress(psycopg.Error), psycopg.connect(**address, autocommit=True) as connection:
                    connection.execute(b'LISTEN "%b"' % self._channel.replace('"', '""').encode())
                    self._wakeups.tell_all()  # what was missed before
                    delays_s = _AGAIN.delays_s()
                    self._hear(connection, stop)
                    return
                if _is_ready(stop, next(delays_s)):
                    return
        finally:
            os.close(stop)

    def _hear(self, connection: psycopg.Connection[Any], stop: int) -> None:
        """Returns when told to stop, raises when the connection is lost."""
        poll = select.poll()
        for each in (stop, connection.fileno()):
            poll.register(each, select.POLLIN | select.POLLHUP | select.POLLERR)
        while True:
            if stop in {each for each, _ in poll.poll()}:
                return
            for notice in connection.notifies(timeout=0):
                self._wakeups.tell(notice.payload)


def _is_ready(descriptor: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(round(timeout_s * 1000)))


def quoted(name: str) -> str:
    """A name of a table or column for a statement, also inside one with parameters."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'
