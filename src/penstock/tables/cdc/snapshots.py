"""The snapshot of tables, a range of keys at a time, each stored with how far it got."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from penstock.errors import ConfigError
from penstock.tables.cdc.records import Moment, Row, SnapshotWriter, TableRecords
from penstock.tables.cdc.source import (
    DONE,
    LEFT,
    PENDING,
    TABLE,
    CaptureProgress,
    SavedRefresh,
    SavedTable,
    SourceBatch,
    TableProgress,
)

logger = logging.getLogger(__name__)

ReadRange = Callable[[list[str] | None, int, SnapshotWriter, list[Row]], list[str] | None]
"""Appends the records of the next rows after a key, up to a limit, made by the function. Returns the last key."""


def show_tables(progress: CaptureProgress, tables: Mapping[str, int | None], saved: Mapping[str, SavedTable]) -> None:
    """Tables with about how many rows they have, if it is known."""
    for name, total in tables.items():
        table = saved[name]
        progress.tables[name] = TableProgress(name, table.rows, total, table.snapshot == DONE)


def take_request(saved: dict[str, SavedTable], name: str, request: str) -> bool:
    """Note that a table is to be read again. Returns whether that is done. Raises ConfigError if it cannot be done."""
    table = saved.get(name)
    if table is None or table.snapshot == LEFT:
        raise ConfigError(f"table {name} is no longer captured")
    if table.refreshed == request:
        return True
    if table.refresh is None or table.refresh.request != request:
        logger.info("table %s is read again, as was asked for", name)
        saved[name] = msgspec.structs.replace(table, refresh=SavedRefresh(request))
    return False


def refreshed_table(tables: Iterable[str], saved: Mapping[str, SavedTable]) -> str | None:
    """A table that is to be read again; None: there is none."""
    return next((name for name in tables if saved[name].refresh is not None and saved[name].snapshot == DONE), None)


def refresh_batch(
    name: str,
    saved: dict[str, SavedTable],
    records: TableRecords,
    read: ReadRange,
    at: Moment,
    limit: int,
) -> tuple[SourceBatch, SavedTable]:
    """The next rows of a table that is read again, and what is true of it once they are stored.

    The caller sees to it that they are no older than what is stored.
    """
    table = saved[name]
    refresh = table.refresh
    assert refresh is not None, "it was asked for"
    rows: list[Row] = []
    after = read(refresh.after, limit, records.snapshot_writer(at), rows)
    count = refresh.rows + len(rows)
    if len(rows) >= limit:
        table = msgspec.structs.replace(table, refresh=SavedRefresh(refresh.request, after, count))
    else:
        table = msgspec.structs.replace(table, refresh=None, refreshed=refresh.request)
        logger.info("table %s was read again: %d rows", name, count)
    return SourceBatch(rows, {TABLE + name: msgspec.json.encode(table)}), table


def pending_tables(tables: Iterable[str], saved: Mapping[str, SavedTable]) -> list[str]:
    return [name for name in tables if saved[name].snapshot == PENDING]


def snapshot_batches(
    name: str,
    saved: dict[str, SavedTable],
    records: TableRecords,
    read: ReadRange,
    moment: Callable[[], Moment],
    limit: int,
    progress: CaptureProgress,
    stopping: threading.Event,
) -> Iterator[SourceBatch]:
    """The rest of the snapshot of one table. The next range is read while one is stored."""

    def read_range(after: list[str] | None) -> tuple[list[Row], list[str] | None]:
        rows: list[Row] = []
        return rows, read(after, limit, records.snapshot_writer(moment()), rows)

    table = saved[name]
    begun = [records.truncated(moment())] if table.is_again and table.after is None else []
    with ThreadPoolExecutor(1, thread_name_prefix="penstock-snapshot") as reader:
        reading = reader.submit(read_range, table.after)
        while not stopping.is_set():
            rows, after = reading.result()
            is_done = len(rows) < limit
            if not is_done:
                reading = reader.submit(read_range, after)
            table = msgspec.structs.replace(
                table,
                after=None if is_done else after,
                rows=table.rows + len(rows),
                snapshot=DONE if is_done else PENDING,
            )
            yield SourceBatch([*begun, *rows] if begun else rows, {TABLE + name: msgspec.json.encode(table)})
            begun = []
            saved[name] = table
            progress.snapshot_rows += len(rows)
            shown = progress.tables[name]
            shown.rows, shown.is_done = table.rows, is_done
            if is_done:
                return
