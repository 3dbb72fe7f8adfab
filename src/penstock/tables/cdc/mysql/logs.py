"""How long the server keeps its binlog, and how far a capture is behind."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from penstock.tables.cdc.mysql.catalog import find_server
from penstock.tables.cdc.mysql.changes import BinlogPosition
from penstock.tables.cdc.mysql.connections import connect, parsed_url, pymysql, rows_of, translated
from penstock.tables.cdc.source import CaptureProgress
from penstock.tables.cdc.status import CaptureStatus

PREFIX: Final = "penstock_"
"""Before the name of a capture: the host that it tells the server, as a replica does."""


def binlog_files(connection: Any) -> dict[str, int]:
    """The files that the server has, in order, with their sizes in bytes."""
    return {str(row[0]): int(row[1] or 0) for row in rows_of(connection, "SHOW BINARY LOGS")}


def kept_s(connection: Any) -> int | None:
    """How long the server keeps a file of the binlog after its last change; None: until someone removes it."""
    names = "'binlog_expire_logs_seconds', 'expire_logs_days'"
    rows = rows_of(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    settings = {row[0]: row[1] for row in rows}
    seconds = int(settings.get("binlog_expire_logs_seconds") or 0)
    return seconds or round(float(settings.get("expire_logs_days") or 0) * 86_400) or None


def behind_bytes(files: dict[str, int], position: BinlogPosition) -> int | None:
    """How much follows a position; None if its file is gone."""
    names = list(files)
    if position.file not in files:
        return None
    later = names[names.index(position.file) + 1 :]
    return max(0, files[position.file] - position.pos) + sum(files[name] for name in later)


class BinlogWatch:
    """Tells how far a capture is behind, and until when the server keeps what it has not read."""

    def __init__(self) -> None:
        self._even_s = 0

    def look(self, connection: Any, position: BinlogPosition, progress: CaptureProgress) -> None:
        """Note it in the progress.

        What follows the position is not older than what is before it, nor than the last look at which nothing followed.
        """
        ((found,),) = rows_of(connection, "SELECT UNIX_TIMESTAMP()")
        now_s = int(found or 0)
        progress.lag_bytes = behind_bytes(binlog_files(connection), position)
        if progress.lag_bytes == 0:
            self._even_s = now_s
        limit_s = kept_s(connection)
        if limit_s is None:
            progress.time_to_loss_s, progress.kept_until_ms = None, None
            return
        left_s = max(0, max(position.at_s or position.made_s, self._even_s) + limit_s - now_s)
        if progress.lag_bytes is None:  # its file is gone
            left_s = 0
        progress.time_to_loss_s = float(left_s)
        progress.kept_until_ms = round((time.time() + left_s) * 1000)


def binlog_status(url: str, name: str | None, measure_s: float) -> list[CaptureStatus]:
    """The captures that are connected. The server knows no others: it does not keep its binlog for anybody.

    If none is connected, or not the one with this name, one line tells how long the binlog is kept.
    """
    settings = parsed_url(url)
    where = f"the database {settings['database']!r} at {settings['host']}:{settings['port']}"
    with contextlib.closing(connect(settings, where)) as connection, translated(where):
        find_server(connection, where)
        limit_s = kept_s(connection)
        begun_s, before = time.monotonic(), sum(binlog_files(connection).values())
        rate = None
        if measure_s > 0:
            time.sleep(measure_s)
            written = sum(binlog_files(connection).values()) - before
            rate = max(0, written) / (time.monotonic() - begun_s)
        kept = sum(binlog_files(connection).values())
        found = [each for each in _connected(connection) if name in (None, each)]
    limit = "binlog_expire_logs_seconds" if limit_s is not None else ""
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
            time_to_loss_s=None if limit_s is None else float(limit_s),
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
