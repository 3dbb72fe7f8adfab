"""Replication slots: what they keep the server from removing, and how long there is room for it."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path
from typing import Any, Final

from penstock.databases.postgres import psycopg
from penstock.errors import ConfigError
from penstock.tables.cdc.postgres.connections import connect, parsed_url, translated
from penstock.tables.cdc.status import CaptureStatus

_PREFIX: Final = "penstock_"
_SLOTS: Final = """
SELECT slot_name, active, COALESCE(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint,
       COALESCE(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint, {status}
FROM pg_replication_slots
WHERE plugin = 'pgoutput' AND database = current_database() AND slot_name LIKE %s ORDER BY 1"""
_WRITTEN: Final = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"


def slot_status(url: str, name: str | None, measure_s: float) -> list[CaptureStatus]:
    """The slots of captures; a slot with another name is found by `name` if that is the slot's own."""
    settings = parsed_url(url)
    where = f"the PostgreSQL database at {settings.get('host') or 'localhost'}"
    with contextlib.closing(connect(settings, where)) as connection, translated(where):
        rate = _rate(connection, measure_s)
        query = _query(connection)
        pattern = f"{_PREFIX}%".replace("_", r"\_") if name is None else name.replace("_", r"\_")
        rows = connection.execute(query.encode(), (pattern,)).fetchall()
        if name is not None and not rows:
            rows = connection.execute(query.encode(), ((_PREFIX + name).replace("_", r"\_"),)).fetchall()
        if name is not None and not rows:
            raise ConfigError(f"{where} has no replication slot {_PREFIX + name!r} or {name!r}")
        free = _free_bytes(connection, str(settings.get("host") or "")) if rows else None
        return [_status(row, rate, free) for row in rows]


class SlotWatch:
    """Looks at one slot now and then, and knows how fast the server writes since the last look."""

    def __init__(self, slot: str, host: str) -> None:
        self._slot = slot
        self._host = host
        self._last: tuple[float, int] | None = None

    def look(self, connection: psycopg.Connection[Any]) -> CaptureStatus | None:
        """None if there is no such slot."""
        (written,) = connection.execute(_WRITTEN).fetchone() or (0,)
        now_s = time.monotonic()
        rate = None
        if self._last is not None and now_s > self._last[0]:
            rate = (written - self._last[1]) / (now_s - self._last[0])
        self._last = (now_s, written)
        row = connection.execute(_query(connection).encode(), (self._slot.replace("_", r"\_"),)).fetchone()
        return None if row is None else _status(row, rate, _free_bytes(connection, self._host))


def _query(connection: psycopg.Connection[Any]) -> str:
    has_status = connection.info.server_version >= 130_000
    return _SLOTS.format(status="wal_status, safe_wal_size" if has_status else "'', NULL::bigint")


def _status(row: Any, rate: float | None, free_bytes: int | None) -> CaptureStatus:
    slot, is_active, behind, kept, wal_status, safe = row
    is_lost = wal_status == "lost"
    room, limit = (safe, "max_slot_wal_keep_size") if safe is not None else (free_bytes, "disk")
    if free_bytes is not None and room is not None and free_bytes < room:
        room, limit = free_bytes, "disk"
    time_to_loss_s = None
    if is_lost:
        room = 0
    elif room is not None and rate:
        time_to_loss_s = max(0, room) / rate
    return CaptureStatus(
        name=slot.removeprefix(_PREFIX),
        slot=slot,
        state="lost" if is_lost else "reading" if is_active else "idle",
        behind_bytes=behind,
        kept_bytes=kept,
        room_bytes=None if room is None else max(0, room),
        limit="" if room is None else limit,
        written_bytes_per_s=rate,
        time_to_loss_s=time_to_loss_s,
        is_lost=is_lost,
    )


def _rate(connection: psycopg.Connection[Any], measure_s: float) -> float | None:
    if measure_s <= 0:
        return None
    (before,) = connection.execute(_WRITTEN).fetchone() or (0,)
    begun_s = time.monotonic()
    time.sleep(measure_s)
    (after,) = connection.execute(_WRITTEN).fetchone() or (0,)
    return float(after - before) / (time.monotonic() - begun_s)


def _free_bytes(connection: psycopg.Connection[Any], host: str) -> int | None:
    """Free bytes on the disk of the server's log, if the server runs on this machine and says where it is."""
    if host and not host.startswith("/") and host not in ("localhost", "127.0.0.1", "::1"):
        return None
    try:
        row = connection.execute("SELECT current_setting('data_directory', true)").fetchone()
    except psycopg.errors.InsufficientPrivilege:  # it is for those with pg_read_all_settings
        return None
    folder = Path(str(row[0]) if row and row[0] else "") / "pg_wal"
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free
    return None
