"""How far the captures of a database are behind, and how long until it removes changes that they have not read."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import UrlError
from penstock.streams.schemes import scheme_of
from penstock.streams.url import without_password


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """One capture, as its database sees it."""

    name: str
    slot: str
    state: str
    """reading, idle (nothing reads from the slot), lost, or unknown: MySQL knows only captures that are connected."""
    behind_bytes: int | None
    """The database's log after the last change that the capture has confirmed; None in MySQL, which is not told."""
    kept_bytes: int
    """The log that the database cannot remove because of this slot; in MySQL, all that it has."""
    room_bytes: int | None
    """How much may be written until changes are lost (`max_slot_wal_keep_size`) or the disk is full; None: unknown."""
    limit: str
    """What the room is limited by: max_slot_wal_keep_size, disk, binlog_expire_logs_seconds, or "" if it is unknown."""
    written_bytes_per_s: float | None
    """How fast the database writes its log; None if it was not measured."""
    time_to_loss_s: float | None
    """When the room is used up if the capture does not move on; None if it never is, or is unknown. In MySQL, how long
    a change is kept."""
    is_lost: bool


def capture_status(url: str, name: str | None = None, measure_s: float = 2.0) -> list[CaptureStatus]:
    """All captures of the database at a URL, or the one with this name. Measures the rate of writes for a while."""
    if scheme_of(url) in ("postgresql", "postgres"):
        from penstock.tables.cdc.postgres.slots import slot_status  # needs an extra

        return slot_status(url, name, measure_s)
    if scheme_of(url) in ("mysql", "mariadb"):
        from penstock.tables.cdc.mysql.logs import binlog_status  # needs an extra

        return binlog_status(url, name, measure_s)
    raise UrlError(
        f"{without_password(url)!r} is not a database whose captures have a status: postgresql://... or mysql://..."
    )
