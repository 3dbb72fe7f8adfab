"""Connections to the captured MySQL or MariaDB: for queries, and for the binlog, which PyMySQL has no functions for."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import ChangesLostError, ConfigError, MissingExtraError, PenstockError, SourceUnavailableError

try:
    import pymysql
    from pymysql.constants import COMMAND
except ImportError as error:
    raise MissingExtraError("MySQL and MariaDB", "mysql") from error

__all__ = ["BinlogConnection", "connect", "parsed_url", "pymysql", "rows_of", "translated", "translation"]

DEFAULT_PORT: Final = 3306
_CONNECT_TIMEOUT_S: Final = 10
_READ_TIMEOUT_S: Final = 600
"""A query that takes longer than this has met a dead server."""
_SILENCE_S: Final = 30.0
_HEARTBEAT_S: Final = 5.0
"""How often an idle server says that it is alive."""
_RECEIVE_BYTES: Final = 256 * 1024
_LARGEST_PACKET: Final = 0xFFFFFF
_WIDTHS: Final = {252: 2, 253: 3, 254: 8}
"""The bytes of a size, by what stands before it."""
SESSION: Final = (
    "SET SESSION time_zone = '+00:00', sql_mode = '', group_concat_max_len = 1048576",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)
"""So that values have the same text whatever the server's settings."""

_REFUSED: Final = (1044, 1045, 1698, 1049, 1251, 2059, 2061, 4151)
_RIGHTS: Final = (1142, 1143, 1227, 1370)
_PASSING: Final = (
    1040,
    1041,
    1053,
    1080,
    1152,
    1158,
    1159,
    1160,
    1161,
    1203,
    1205,
    1213,
    1226,
    1317,
    1412,
    1927,
    1969,
    3024,
)
"""Too many connections, shutdown, network errors, deadlocks, killed connections, and a table that was
altered after a snapshot began: the same may succeed later."""
_BINLOG_ERROR: Final = 1236
_ACCESS_DENIED: Final = 1045


def parsed_url(url: str) -> dict[str, Any]:
    """The settings of PyMySQL, and `server_id` if the URL has one. Raises ConfigError."""
    parts = urlsplit(url)
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise ConfigError(f"the MySQL URL is invalid: {error}") from error
    database = unquote(parts.path.strip("/"))
    if not database or "/" in database:
        raise ConfigError("the MySQL URL names no database: mysql://USER:PASSWORD@HOST:3306/DATABASE")
    settings: dict[str, Any] = {
        "host": parts.hostname or "127.0.0.1",
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database,
    }
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in ("ssl_ca", "ssl_cert", "ssl_key"):
            settings[name] = value
        elif name in ("server_id", "connect_timeout") and value.isdecimal() and 0 < int(value) < 1 << 32:
            settings[name] = int(value)
        else:
            raise ConfigError(
                f"the MySQL URL has {name}={value!r}: it takes server_id and connect_timeout, numbers, and ssl_ca, "
                "ssl_cert and ssl_key, files"
            )
    if "ssl_ca" in settings:
        settings["ssl_verify_identity"] = True
    return settings


@contextlib.contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise errors of PyMySQL as ours."""
    try:
        yield
    except (pymysql.err.Error, OSError) as error:
        raise translation(error, where) from error


def translation(error: Exception, where: str) -> PenstockError:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = " ".join(str(error.args[-1] if error.args else error).split())
    if code == _BINLOG_ERROR:
        return _binlog_error(text, where)
    if code in _RIGHTS:
        return _lacks_right(text, where)
    if code in _REFUSED:
        return ConfigError(f"{where} refuses this user or database: {text}")
    if code in _PASSING or (2000 <= code < 2060) or isinstance(error, OSError) or not code:
        return SourceUnavailableError(f"{where} is unavailable: {text}")
    return ConfigError(f"{where} refuses a request: {text}")


def _lacks_right(text: str, where: str) -> ConfigError:
    return ConfigError(
        f"{where}: this user lacks a right: {text}; a capture needs SELECT on its tables, and: GRANT REPLICATION "
        "SLAVE, REPLICATION CLIENT ON *.* TO <this user>"
    )


def _binlog_error(text: str, where: str) -> PenstockError:
    """Error 1236 stands for everything that can be wrong with a binlog."""
    if "max_allowed_packet" in text:
        return ConfigError(f"{where} cannot send a change: {text}; SET GLOBAL max_allowed_packet = 1073741824")
    if "same server_uuid/server_id" in text:
        return SourceUnavailableError(
            f"{where}: another replica has the server_id of this capture: {text}; add ?server_id=N to the URL"
        )
    return ChangesLostError(
        f"{where} can no longer send the changes: {text}; changes since then are lost. Take a new snapshot of all "
        "tables with --snapshot again; to prevent it, raise binlog_expire_logs_seconds (expire_logs_days)"
    )


def connect(settings: dict[str, Any], where: str) -> Any:
    """A connection for queries, in autocommit. Values come as the bytes that the server sends."""
    given = {name: value for name, value in settings.items() if name != "server_id"}
    with translated(where):
        connection = pymysql.connect(
            **{"connect_timeout": _CONNECT_TIMEOUT_S, **given},
            read_timeout=_READ_TIMEOUT_S,
            write_timeout=_READ_TIMEOUT_S,
            charset="utf8mb4",
            use_unicode=False,
            conv={},
            autocommit=True,
            program_name="penstock cdc",
        )
        try:
            with connection.cursor() as cursor:
                for command in SESSION:
                    cursor.execute(command)
        except BaseException:
            connection.close()
            raise
    return connection


def rows_of(connection: Any, query: str, values: tuple[Any, ...] = ()) -> list[tuple[str | None, ...]]:
    """The rows of a query whose values are text."""
    with connection.cursor() as cursor:
        cursor.execute(query, values or None)
        return [tuple(None if each is None else each.decode() for each in row) for row in cursor.fetchall()]


def raw_rows(connection: Any, query: str) -> Iterator[list[bytes | None]]:
    """The rows of a query, as the text that the server sends: in a fraction of the time that a cursor takes.

    Read them all before the connection is used again.
    """
    connection._execute_command(COMMAND.COM_QUERY, query.encode())
    for _ in range(connection._read_packet().read_length_encoded_integer() + 1):
        connection._read_packet()  # descriptions of the columns, and their end
    read = connection._rfile.read
    while True:
        data = _raw_packet(read)
        if data[0] == 0xFE and len(data) < 9:
            return
        if data[0] == 0xFF:
            pymysql.err.raise_mysql_exception(data)
        row: list[bytes | None] = []
        at, end = 0, len(data)
        while at < end:
            size = data[at]
            at += 1
            if size == 251:
                row.append(None)
                continue
            if size > 251:
                width = _WIDTHS[size]
                size = int.from_bytes(data[at : at + width], "little")
                at += width
            row.append(data[at : at + size])
            at += size
        yield row


def _raw_packet(read: Callable[[int], bytes]) -> bytes:
    parts: list[bytes] = []
    while True:  # ends: a packet that is not full is the last one
        header = read(4)
        size = int.from_bytes(header[:3], "little")
        data = read(size)
        if len(header) < 4 or len(data) < size:
            raise pymysql.err.OperationalError(2013, "the connection was closed during a query")
        if size < _LARGEST_PACKET and not parts:
            return data
        parts.append(data)
        if size < _LARGEST_PACKET:
            return b"".join(parts)


def literal(text: str) -> str:
    """Text as an SQL literal that no setting of the session changes."""
    return f"_utf8mb4 X'{text.encode().hex()}'"


def quoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


class BinlogConnection:
    """Receives the binlog as a replica does. Used by one thread."""

    def __init__(self, settings: dict[str, Any], where: str, *, server_id: int, name: str) -> None:
        """`name` is what SHOW REPLICA HOSTS shows as this replica's host."""
        self._where = where
        self._connection = connect(settings, where)
        self._server_id = server_id
        self._name = name.encode()[:59]
        self._data = bytearray()
        self._start = 0
        self._heard_s = time.monotonic()

    def start(self, file: str, position: int) -> None:
        """Begin to receive events after a position that is the end of an event."""
        heartbeat_ns = round(_HEARTBEAT_S * 1e9)
        commands = (
            "SET @master_binlog_checksum = @@global.binlog_checksum",
            "SET @source_binlog_checksum = @@global.binlog_checksum",
            f"SET @master_heartbeat_period = {heartbeat_ns}, @source_heartbeat_period = {heartbeat_ns}",
            # MariaDB: events of global transaction ids as they are.
            "SET @mariadb_slave_capability = 4",
        )
        with translated(self._where):
            with self._connection.cursor() as cursor:
                for command in commands:
                    cursor.execute(command)
            # hostname, user, password, port, rank, id of the primary
            register = struct.pack("<IB", self._server_id, len(self._name)) + self._name + bytes(2 + 2 + 4 + 4)
            # PyMySQL's own way to send a command; it has no public one for those of replication.
            self._connection._execute_command(COMMAND.COM_REGISTER_SLAVE, register)
            try:
                self._connection._read_ok_packet()
            except pymysql.err.OperationalError as error:
                if error.args[0] == _ACCESS_DENIED:  # it has let the user in
                    raise _lacks_right(str(error.args[-1]), self._where) from error
                raise
            dump = struct.pack("<IHI", position, 0, self._server_id) + file.encode()
            self._connection._execute_command(COMMAND.COM_BINLOG_DUMP, dump)
        self._heard_s = time.monotonic()

    def receive(self, timeout_s: float) -> bytes | None:
        """The next event; None if none arrives in time."""
        packet = self._packet()
        if packet is None:
            self._read(timeout_s)
            packet = self._packet()
        if packet is None:
            if time.monotonic() - self._heard_s > _SILENCE_S:
                raise SourceUnavailableError(f"{self._where} was silent for {_SILENCE_S:g} s")
            return None
        kind = packet[0]
        if kind == 0:
            return packet
        if kind == 0xFF:
            (code,) = struct.unpack_from("<H", packet, 1)
            text = packet[9:].decode(errors="replace")
            if code == _ACCESS_DENIED:
                raise _lacks_right(text, self._where)
            raise translation(pymysql.err.OperationalError(code, text), self._where)
        raise SourceUnavailableError(f"{self._where} ended the binlog")

    def close(self) -> None:
        with contextlib.suppress(pymysql.err.Error, OSError):
            self._connection._force_close()

    def _read(self, timeout_s: float) -> None:
        sock = self._connection._sock
        try:
            sock.settimeout(timeout_s)
            data = sock.recv(_RECEIVE_BYTES)
        except TimeoutError:
            return
        except OSError as error:
            raise translation(error, self._where) from error
        if not data:
            raise SourceUnavailableError(f"{self._where} closed the connection")
        del self._data[: self._start]
        self._start = 0
        self._data += data
        self._heard_s = time.monotonic()

    def _packet(self) -> bytes | None:
        """A whole packet, if it is here. What is larger than 16 MB comes in several."""
        data, start = self._data, self._start
        places: list[tuple[int, int]] = []
        while True:  # ends: each turn passes bytes that are here
            if len(data) - start < 4:
                return None
            size = int.from_bytes(data[start : start + 3], "little")
            places.append((start + 4, start + 4 + size))
            start += 4 + size
            if len(data) < start:
                return None
            if size < _LARGEST_PACKET:
                break
        self._start = start
        if len(places) == 1:
            return bytes(data[places[0][0] : places[0][1]])
        return b"".join(bytes(data[begin:end]) for begin, end in places)
