"""Connections to the captured PostgreSQL: for queries, and for replication, which psycopg has no functions for."""

from __future__ import annotations

import contextlib
import logging
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock.databases.postgres import SETTINGS, psycopg
from penstock.errors import ChangesLostError, ConfigError, PenstockError, SourceUnavailableError
from penstock.tables.cdc.postgres.pgoutput import EPOCH_MS

logger = logging.getLogger(__name__)

SESSION: Final = (
    "datestyle=ISO,YMD",
    "timezone=UTC",
    "intervalstyle=iso_8601",
    "bytea_output=hex",
    "extra_float_digits=1",
    "idle_in_transaction_session_timeout=0",
    "statement_timeout=0",
)
"""So that values have the same text whatever the server's settings, and a long snapshot is not cut off."""
_SLICE_S: Final = 0.5
_LONG_S: Final = 5.0
"""After this long, whoever waits for the server is told why."""

_wal_data = struct.Struct(">QQq").unpack_from
_keepalive = struct.Struct(">QqB").unpack_from

_GONE: Final = ("55000", "58P01", "42704")
"""object_not_in_prerequisite_state, undefined_file, undefined_object: what reading from a slot fails with for good."""
_PASSING: Final = ("08", "57", "53", "25", "40")
"""Classes of errors after which the same may succeed: connection, shutdown, resources, transaction state."""


def parsed_url(url: str) -> dict[str, Any]:
    """The settings of libpq, with those of the session. Raises ConfigError."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        raise ConfigError(f"the PostgreSQL URL is invalid: {error}") from error
    options = " ".join(["-c " + setting for setting in SESSION])
    given["options"] = f"{given.get('options') or ''} {options}".strip()
    return {**SETTINGS, **given, "client_encoding": "UTF8", "fallback_application_name": "penstock cdc"}


@contextlib.contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise errors of psycopg as ours."""
    try:
        yield
    except psycopg.Error as error:
        raise translation(error, where) from error


def translation(error: psycopg.Error, where: str) -> PenstockError:
    text = " ".join(str(error).split())
    state = error.sqlstate or ""
    if state == "42501":
        return ConfigError(f"{where}: this user lacks a right: {text}")
    if not state and "replication" in text and ("superuser" in text or "REPLICATION" in text or "role" in text):
        return ConfigError(f"{where}: {text}; allow it with: ALTER ROLE <this user> REPLICATION")
    if state[:2] == "28" or "password authentication failed" in text or "no pg_hba.conf entry" in text:
        return ConfigError(f"{where} refuses this user: {text}")
    if state[:2] in _PASSING or (not state and isinstance(error, psycopg.OperationalError)):
        return SourceUnavailableError(f"{where} is unavailable: {text}")
    return ConfigError(f"{where} refuses a request: {text}")


def connect(settings: dict[str, Any], where: str) -> psycopg.Connection[Any]:
    """A connection for queries, in autocommit."""
    with translated(where):
        return psycopg.connect(**settings, autocommit=True)


class ReplicationConnection:
    """Speaks the replication protocol. Used by one thread."""

    def __init__(self, settings: dict[str, Any], where: str) -> None:
        with translated(where):
            self._connection = psycopg.connect(**settings, replication="database", autocommit=True)
        self._pg = self._connection.pgconn
        self._where = where
        self.wal_end = 0
        """The end of the server's log, as far as it has told."""
        self.confirmed = 0
        self._answered_s = time.monotonic()

    def identify(self) -> str:
        """The system identifier of the server, which its copies share, and no other server has."""
        found = self._execute("IDENTIFY_SYSTEM", threading.Event(), None)
        return (found.get_value(0, 0) or b"").decode()

    def create_slot(
        self, slot: str, *, export: bool, stopping: threading.Event, on_wait: Callable[[], str]
    ) -> tuple[int, str]:
        """The LSN from which the slot has every change, and the name of a snapshot of that moment.

        The snapshot can be used until this connection is used again. `on_wait` says what the server waits for.
        """
        action = "EXPORT_SNAPSHOT" if export else "NOEXPORT_SNAPSHOT"
        found = self._execute(f'CREATE_REPLICATION_SLOT "{slot}" LOGICAL pgoutput {action}', stopping, on_wait)
        return parsed_lsn((found.get_value(0, 1) or b"").decode()), (found.get_value(0, 2) or b"").decode()

    def start(self, slot: str, start: int, publication: str) -> None:
        """Begin to receive changes. Raises SlotInUseError while another connection has the slot."""
        names = publication.replace("'", "''")
        command = (
            f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(start)} '
            f"(proto_version '1', publication_names '\"{names}\"')"
        )
        self._execute(command, threading.Event(), None)
        self.confirmed = start

    def receive(self) -> bytes | None:
        """The next message of pgoutput or keepalive; None if none has arrived."""
        size, data = self._pg.get_copy_data(1)
        if size > 0:
            return bytes(data)
        if size == 0:
            return None
        result = self._pg.get_result()
        text = (result.error_message if result is not None else self._pg.error_message).decode(errors="replace")
        raise self._failure(text, result)

    def wait(self, timeout_s: float) -> None:
        """Wait for something to arrive."""
        select.select([self._pg.socket], [], [], timeout_s)
        self._pg.consume_input()

    def confirm(self, lsn: int) -> None:
        """Tell the server that everything before is stored: it may remove its log."""
        self.confirmed = max(self.confirmed, lsn)
        self._answered_s = time.monotonic()
        now_us = round(time.time() * 1_000_000) - EPOCH_MS * 1000
        self._pg.put_copy_data(b"r" + struct.pack(">QQQqB", self.confirmed, self.confirmed, self.confirmed, now_us, 0))
        self._pg.flush()

    def keep_alive(self, every_s: float) -> None:
        """Tell the server that this connection is alive, if it was not told for this long."""
        if time.monotonic() - self._answered_s >= every_s:
            self.confirm(self.confirmed)

    def close(self) -> None:
        self._connection.close()

    def _execute(self, command: str, stopping: threading.Event, on_wait: Callable[[], str] | None) -> Any:
        """Run a command without blocking the interpreter, so that it can be stopped."""
        begun_s, told = time.monotonic(), False
        with translated(self._where):
            self._pg.send_query(command.encode())
            while True:
                self._pg.flush()
                self._pg.consume_input()
                if not self._pg.is_busy():
                    break
                select.select([self._pg.socket], [], [], _SLICE_S)
                if stopping.is_set():
                    raise SourceUnavailableError(f"stopped while {self._where} was working on: {command}")
                if on_wait is not None and not told and time.monotonic() - begun_s > _LONG_S:
                    told = True
                    logger.warning("%s", on_wait())
            result = self._pg.get_result()
            if result is None:
                raise SourceUnavailableError(f"{self._where} closed the connection")
            if result.status == psycopg.pq.ExecStatus.COPY_BOTH:
                return result
            while self._pg.get_result() is not None:
                pass
        if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
            raise self._failure(result.error_message.decode(errors="replace"), result)
        return result

    def _failure(self, text: str, result: Any) -> PenstockError:
        state = b"" if result is None else result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b""
        text = " ".join(text.split())
        if state == b"55006":
            return SlotInUseError(f"{self._where}: {text}")
        if state == b"42501":
            return ConfigError(f"{self._where}: {text}; allow it with: ALTER ROLE <this user> REPLICATION")
        if state == b"53400":
            return ConfigError(f"{self._where}: {text}; raise max_replication_slots, or drop a slot that is not needed")
        if state == b"42704" and "publication" in text:
            return ConfigError(f"{self._where}: {text}; it must have existed when the slot was created")
        if state.decode() in _GONE:
            return ChangesLostError(f"{self._where} can no longer send the changes: {text}")
        return SourceUnavailableError(f"{self._where} is unavailable: {text}")


class SlotInUseError(SourceUnavailableError):
    """Another connection reads from the slot."""


def wal_data(message: bytes) -> tuple[int, int]:
    """The LSN of a change, and the end of the server's log when it was sent."""
    start, end, _ = _wal_data(message, 1)
    return start, end


def keepalive(message: bytes) -> tuple[int, bool]:
    """The LSN up to which everything was sent, and whether the server wants an answer."""
    end, _, wants_answer = _keepalive(message, 1)
    return end, bool(wants_answer)


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parsed_lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)
