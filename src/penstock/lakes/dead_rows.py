"""Rows that do not fit, in a table beside: with where they came from, and why they do not fit."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.errors import StoreUnavailableError
from penstock.lakes.commits import Move, metadata_of
from penstock.lakes.table import LakeTable
from penstock.model import Record

SUFFIX: Final = "_dead"
"""The table of dead rows has the name of its table, and this."""

SCHEMA: Final = pa.schema(
    [
        ("group", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("error", pa.string()),
    ]
)

_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class DeadRow:
    """A record whose row does not fit into the table."""

    application: str
    """The writer of its partition."""
    record: Record
    error: str


class DeadRowsTable:
    """The table of dead rows. Each record is there once, also if it is read again after a crash.

    The rows are committed before the position of the main table moves past them. Their own position, in this table,
    says which ones are there already.
    """

    def __init__(self, table: LakeTable, group: str) -> None:
        self.table = table.beside(SUFFIX)
        self._group = group
        self._opened = self.table.open()

    def add(self, dead: Sequence[DeadRow]) -> int:
        """Store those that are not there yet, and return how many these were."""
        self._opened.evolve(SCHEMA)
        for _ in range(_ATTEMPTS):
            known = self._opened.positions(sorted({each.application for each in dead}))
            new = [each for each in dead if each.record.offset >= (known[each.application] or 0)]
            if not new:
                return 0
            ends: dict[str, int] = {}
            offsets: dict[tuple[str, int], tuple[int, int]] = {}
            for each in new:
                record = each.record
                ends[each.application] = max(ends.get(each.application, 0), record.offset + 1)
                first, end = offsets.get((record.topic, record.partition), (record.offset, 0))
                offsets[record.topic, record.partition] = (min(first, record.offset), max(end, record.offset + 1))
            rows = _rows(new, self._group)
            moves = [Move(application, known[application], end) for application, end in ends.items()]
            if self._opened.commit(lambda rows=rows: rows, moves, metadata_of(self._group, offsets)):  # type: ignore[misc]
                return len(new)
        raise StoreUnavailableError(f"{self.table.label}: its positions are moved by other writers again and again")


def _rows(dead: Sequence[DeadRow], group: str) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "group": group,
                "topic": each.record.topic,
                "partition": each.record.partition,
                "offset": each.record.offset,
                "timestamp": None
                if each.record.timestamp_ms is None
                else datetime.datetime.fromtimestamp(each.record.timestamp_ms / 1000, datetime.UTC),
                "key": each.record.key,
                "value": each.record.value,
                "error": each.error,
            }
            for each in dead
        ],
        SCHEMA,
    )
