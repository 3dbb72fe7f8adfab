"""How long the server keeps its binlog, and how far a capture is behind."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from penstock.tables.cdc.mysql.catalog import ServerInfo, find_server
from penstock.tables.cdc.mysql.changes import BinlogPosition
from penstock.tables.cdc.mysql.connections import connect, parsed_url, pymysql, rows_of, translated
from penstock.tables.cdc.source import CaptureProgress
from penstock.tables.cdc.status import CaptureStatus

PREFIX: Final = "penstock_"
"""Before the name of a capture: the host that it tells the server, as a replica does."""


def binlog_files(connection: Any) -> dict[str, int]:
    """The files that the server has, in order, with their sizes in bytes."""
    return {str(row[0]): int(row[1] or 0) for row in rows_of(connection, "SHOW BINARY LOGS")}


def behind_bytes(files: dict[str, int], position: BinlogPosition) -> int | None:
    """How much follows a position; None if its file is gone."""
    names = list(files)
    if position.file not in files:
        return None
    later = names[names.index(position.file) + 1 :]
    return max(0, files[position.file] - position.pos) + sum(files[name] for name in later)


def look(connection: Any, server: ServerInfo, position: BinlogPosition, progress: CaptureProgress) -> None:
    """Note in the progress how far the capture is behind, and when changes that it has not read are removed.

    A file is removed that long after its last change. The last change that was captured is not younger than the next.
    """
    progress.lag_bytes = behind_bytes(binlog_files(connection), position)
    progress.time_to_loss_s = None
    if server.kept_s is None:
        return
    age_s = 0.0
    if progress.lag_bytes and progress.last_change_ms is not None:
        age_s = max(0.0, time.time() - progress.last_change_ms / 1000)
    progress.time_to_loss_s = max(0.0, server.kept_s - age_s)


def binlog_status(url: str, name: str | None, measure_s: float) -> list[CaptureStatus]:
    """The captures that are connected. The server knows no others: it does not keep its binlog for anybody.

    If none is connected, or not the one with this name, one line tells how long the binlog is kept.
    """
    settings = parsed_url(url)
    where = f"the database {settings['database']!r} at {settings['host']}:{settings['port']}"
    with contextlib.closing(connect(settings, where)) as connection, translated(where):
        server = find_server(connection, where)
        begun_s, before = time.monotonic(), sum(binlog_files(connection).values())
        rate = None
        if measure_s > 0:
            time.sleep(measure_s)
            written = sum(binlog_files(connection).values()) - before
            rate = max(0, written) / (time.monotonic() - begun_s)
        kept = sum(binlog_files(connection).values())
        found = [each for each in _connected(connection) if name in (None, each)]
    limit = "binlog_expire_logs_seconds" if server.kept_s is not None else ""
    return [
        CaptureStatus(
            name=each or name or "-",
            slot=f"binlog of {settings['host']}",
            state="reading" if each else "unknown",
            behind_bytes=None,
            kept_bytes=kept,
            room_bytes=None,
            limit=limit,
            written_bytes_per_s=rate,
            time_to_loss_s=None if server.kept_s is None else float(server.kept_s),
            is_lost=False,
        )
        for each in (found or [""])
    ]


def _connected(connection: Any) -> list[str]:
    for command in ("SHOW REPLICAS", "SHOW SLAVE HOSTS"):
        with contextlib.suppress(pymysql.err.ProgrammingError):  # the other server's word for it
            hosts = (str(row[1]) for row in rows_of(connection, command))
            return sorted({host.removeprefix(PREFIX) for host in hosts if host.startswith(PREFIX)})
    return []
