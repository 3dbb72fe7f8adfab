"""What a database must offer to be captured, and what it hands out: batches of records with the position after them."""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

import msgspec

from penstock.errors import ConfigError
from penstock.tables.cdc.records import CaptureFormat, Row

Saved = Mapping[str, bytes]
"""The saved state of a capture, by key."""

CAPTURE: Final = "capture"
"""The key of what a capture is: its source, its owner and how far it was set up."""
POSITION: Final = "position"
"""The key of the position in the database's log of changes."""
TABLE: Final = "table/"
"""Before the name of a table: the key of its columns, and of the progress of its snapshot."""


PENDING: Final = "pending"
DONE: Final = "done"
LEFT: Final = "left"
"""The table is no longer captured. If it is captured again, it needs a new snapshot."""


class SnapshotMode(StrEnum):
    """Whether the rows that tables have now are read before their changes."""

    INITIAL = "initial"
    """Snapshot the tables that have not been read yet."""
    NEVER = "never"
    """Only changes from now on."""
    ONLY = "only"
    """Only the rows that there are now; then end."""
    AGAIN = "again"
    """Snapshot all tables again, for example after changes were lost."""


@dataclass(slots=True)
class TableProgress:
    """The snapshot of one table."""

    name: str
    rows: int = 0
    """Rows that are stored in the stream."""
    total: int | None = None
    """How many rows the table has, as far as the database knows without counting."""
    is_done: bool = False


@dataclass(slots=True)
class CaptureProgress:
    """What a capture has done since it was started. Read it from any thread."""

    phase: str = "starting"
    """starting, snapshot, streaming or stopped."""
    tables: dict[str, TableProgress] = field(default_factory=dict)
    changes: int = 0
    """Inserts, updates, deletes and truncates that are stored in the stream."""
    transactions: int = 0
    """Committed transactions of the database that are stored in the stream."""
    position: str = ""
    """The position after the last stored change, in the database's own form."""
    lag_bytes: int | None = None
    """How much of the database's log is not confirmed yet; None where it is unknown."""
    room_bytes: int | None = None
    """How much the database may write until it drops changes that are not captured; None where it is unknown."""
    written_bytes_per_s: float | None = None
    """How fast the database writes its log; None where it is unknown."""
    kept_until_ms: int | None = None
    """Until when the database keeps changes that are not captured, if it keeps them for a time, as MySQL does."""
    time_to_loss_s: float | None = None
    """When changes are lost, at the present rate of writes, if the capture does not move on; None where it is unknown.
    """
    snapshot_rows: int = 0
    """Rows of snapshots that were stored since the start."""
    last_change_ms: int | None = None
    """When the last stored change was committed in the database."""
    guarantee: str = ""


@dataclass(slots=True)
class SourceBatch:
    """Records, and the state that is true once they are stored. Stored whole or not at all, if the stream can."""

    records: list[Row] = field(default_factory=list)
    state: dict[str, bytes | None] = field(default_factory=dict)
    """None removes a key."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a capture asks of any source."""

    name: str
    tables: tuple[str, ...]
    form: CaptureFormat
    prefix: str | None
    snapshot: SnapshotMode
    snapshot_rows: int
    """Rows that are stored together during the snapshot."""
    batch_rows: int
    """Changes after which a batch ends, even inside a transaction of the database."""
    heartbeat_s: float


class Source(Protocol):
    """A database that is captured. Used by one thread, except for `progress`."""

    progress: CaptureProgress

    @property
    def identity(self) -> str:
        """The database, without secrets: a saved position is worth nothing in another one."""

    def topics(self) -> Mapping[str, str]:
        """The topic of each table. Checks everything that can be checked without a change. Raises ConfigError."""

    def batches(self, saved: Saved, stopping: threading.Event) -> Iterator[SourceBatch]:
        """First the snapshot, then changes, until `stopping`. Asking for the next batch says that the last is stored.

        While nothing happens, an empty batch every second or so lets the capture report that it is alive.
        Raises SourceUnavailableError, ChangesLostError, ConfigError.
        """

    def close(self) -> None: ...


class SavedRefresh(msgspec.Struct, frozen=True):
    """How far a table was read again, while its changes go on."""

    request: str
    after: list[str] | None = None
    """The key of the last row that is stored."""
    rows: int = 0


class SavedTable(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a table, and the progress of its snapshot."""

    columns: list[tuple[str, str]]
    """Name and type."""
    key: list[str]
    version: int = 1
    """Grows with each change of the columns."""
    snapshot: str = PENDING
    after: list[str] | None = None
    """The key of the last row that is stored, as the database writes it."""
    rows: int = 0
    is_again: bool = False
    """Whether older rows of it are in the topic, which do not count any more."""
    oid: int = 0
    """PostgreSQL's number of the table; 0 until it is published, and what wrote it before has ended."""
    published: int = 0
    """PostgreSQL's number of the table's entry in the publication; 0 if the publication names no tables."""

    refresh: SavedRefresh | None = None
    """None: the table is not being read again on request."""
    refreshed: str = ""
    """The last request that is done."""

    def read_again(self, columns: list[tuple[str, str]], key: list[str]) -> SavedTable:
        """Its snapshot from the beginning, after a truncate if rows of it are in the topic."""
        return msgspec.structs.replace(
            self,
            columns=columns,
            key=key,
            version=self.version + ([tuple(each) for each in self.columns] != columns),
            snapshot=PENDING,
            after=None,
            is_again=self.is_again or self.snapshot != PENDING or self.after is not None,
            oid=0,
            published=0,
            refresh=None,
        )


@runtime_checkable
class Refreshing(Protocol):
    """A source that reads a table again on request, while changes go on."""

    def refresh(self, table: str, request: str) -> bool:
        """Begin, unless that request is being worked on. Returns whether it is done.

        Raises ConfigError if it cannot be done.
        """


Described = Mapping[str, tuple[list[tuple[str, str]], list[str]]]
"""The columns, with their types, and the key of each table."""


def saved_tables(saved: Saved) -> dict[str, SavedTable]:
    return {
        name.removeprefix(TABLE): msgspec.json.decode(value, type=SavedTable)
        for name, value in saved.items()
        if name.startswith(TABLE)
    }


def check_key(name: str, saved: SavedTable, key: Iterable[str]) -> None:
    """Raise ConfigError if a table has another key than the records in its topic."""
    now = tuple(key)
    if now != tuple(saved.key):
        raise ConfigError(
            f"the key of table {name} changed from ({', '.join(saved.key)}) to ({', '.join(now)}): its topic would "
            "have two kinds of keys. Start over with --snapshot again, or restore the key"
        )


def update_tables(
    saved: dict[str, SavedTable], described: Described, mode: SnapshotMode, *, is_new: bool
) -> dict[str, bytes | None]:
    """Note the tables that are new, or no longer captured, and return what to save of it. `is_new`: all start over."""
    changed: dict[str, SavedTable] = {}
    for name, (columns, key) in described.items():
        before = saved.get(name)
        if before is not None and not is_new and before.snapshot != LEFT:
            continue
        skips = mode is SnapshotMode.NEVER
        changed[name] = SavedTable(
            columns=columns,
            key=key,
            version=1 if before is None else before.version,
            snapshot=DONE if skips else PENDING,
            is_again=before is not None
            and not skips
            and (before.snapshot != PENDING or before.after is not None or before.is_again),
        )
    for name, before in saved.items():
        if name not in described and before.snapshot != LEFT:
            changed[name] = msgspec.structs.replace(before, snapshot=LEFT)
    saved.update(changed)
    return {TABLE + name: msgspec.json.encode(table) for name, table in changed.items()}


def chosen_tables(patterns: Iterable[str], existing: Iterable[str], default_schema: str) -> list[str]:
    """The tables that the patterns name, in the order of the database. Raises ConfigError for one that names none."""
    there = list(existing)
    chosen: set[str] = set()
    for pattern in patterns:
        found = fnmatch.filter(there, _full(pattern, default_schema))
        if not found:
            shown = ", ".join(there[:20]) + (", ..." if len(there) > 20 else "")
            raise ConfigError(f"no table matches {pattern!r}: there are {shown or 'none that this user can see'}")
        chosen.update(found)
    return [name for name in there if name in chosen]


def is_chosen(patterns: Iterable[str], name: str, default_schema: str) -> bool:
    """Whether one of the patterns names this table, which may not exist."""
    return any(fnmatch.fnmatchcase(name, _full(pattern, default_schema)) for pattern in patterns)


def _full(pattern: str, default_schema: str) -> str:
    return pattern if "." in pattern or not default_schema else f"{default_schema}.{pattern}"
