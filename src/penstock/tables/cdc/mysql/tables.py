"""The captured tables, and how their rows are read at each point of the binlog."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.errors import ConfigError
from penstock.tables.cdc.mysql.binlog import Query, TableMap
from penstock.tables.cdc.mysql.catalog import MysqlTable, ServerInfo
from penstock.tables.cdc.mysql.values import FromBinlog, from_binlog
from penstock.tables.cdc.records import CaptureFormat, TableRecords, topic_name
from penstock.tables.cdc.source import TABLE, SavedTable, check_key

logger = logging.getLogger(__name__)

_NULL: Final = b"null"
Place = tuple[int, int]


@dataclass(slots=True)
class CapturedTable:
    """A table as the binlog describes it at one point."""

    name: str
    records: TableRecords
    readers: tuple[FromBinlog, ...]
    """What reads each column that is in the rows."""
    kept: tuple[int, ...] | None
    """The places of those that are captured, among them; None: all."""
    state: tuple[str, bytes] | None
    """The key and value to save, if its columns have changed."""

    def read(self, data: bytes, at: int) -> tuple[list[bytes], int]:
        """The JSON of a row's values, and the index after the row."""
        readers = self.readers
        width = (len(readers) + 7) // 8
        nulls = int.from_bytes(data[at : at + width], "little")
        at += width
        row: list[bytes] = []
        append = row.append
        for read in readers:
            if nulls & 1:
                append(_NULL)
            else:
                value, at = read(data, at)
                append(value)
            nulls >>= 1
        if self.kept is not None:
            row = [row[place] for place in self.kept]
        return row, at


class CapturedTables:
    """The tables of one capture."""

    def __init__(
        self,
        server: ServerInfo,
        tables: Sequence[MysqlTable],
        saved: dict[str, SavedTable],
        since: Mapping[str, Place],
        prefix: str,
        form: CaptureFormat,
        find: Callable[[str], MysqlTable | None],
    ) -> None:
        """`since` has the places from which tables that were added later count; `find` reads the catalog again."""
        self._server = server
        self._tables = {table.full_name: table for table in tables}
        self._saved = saved
        self._since = since
        self._prefix = prefix
        self._form = form
        self._find = find
        folds = server.settings.get("lower_case_table_names", "0") != "0"
        self._fold: Callable[[str], str] = str.casefold if folds else str
        self._names = {self._fold(name): name for name in self._tables}

    def topic(self, name: str) -> str:
        table = self._tables[name]
        return topic_name(self._prefix, table.schema, table.name)

    def is_captured(self, name: str, place: Place) -> bool:
        return name in self._tables and place >= self._since.get(name, place)

    def named(self, name: str) -> list[str]:
        if name.endswith(".*"):
            return [each for folded, each in self._names.items() if folded.startswith(self._fold(name[:-1]))]
        found = self._names.get(self._fold(name))
        return [] if found is None else [found]

    def is_mentioned(self, query: Query) -> str | None:
        for name, table in self._tables.items():
            texts = [table.name] if table.schema == query.schema else [table.schema, table.name]
            if all(re.search(rf"\b{re.escape(each)}\b", query.text, re.IGNORECASE) for each in texts):
                return name
        return None

    def altered(self, name: str) -> None:
        found = self._find(name)
        if found is not None:  # else it was dropped since, which a later event says
            self._tables[name] = found

    def records(self, name: str) -> TableRecords:
        saved = self._saved[name]
        return self._records_of(name, [column for column, _ in saved.columns], saved)

    def records_with(self, name: str, columns: list[str]) -> TableRecords:
        """Records of a table with these columns."""
        return self._records_of(name, columns, self._saved[name])

    def describe(self, table: TableMap, present: bytes) -> CapturedTable:
        name = table.full_name
        info, saved = self._tables[name], self._saved[name]
        check_key(name, saved, table.key)
        there = [column for index, column in enumerate(table.columns) if present[index // 8] >> index % 8 & 1]
        stored = {column for column, _ in info.columns}
        absent = stored & ({column.name for column in table.columns} - {column.name for column in there})
        if absent:
            raise ConfigError(
                f"a change of table {name} was logged without its column {min(absent)!r}: SET GLOBAL binlog_row_image "
                "= FULL, end the sessions that are open, and start over with --snapshot again"
            )
        kept = tuple(index for index, column in enumerate(there) if column.name not in info.generated)
        types = {column: kind.full for column, kind in info.columns}
        columns = [(there[index].name, types.get(there[index].name, f"type {there[index].kind}")) for index in kept]
        state = None
        if columns != [tuple(each) for each in saved.columns]:
            saved = msgspec.structs.replace(saved, columns=columns, version=saved.version + 1)
            self._saved[name] = saved
            state = (TABLE + name, msgspec.json.encode(saved))
            logger.info("the columns of table %s have changed: version %d", name, saved.version)
        return CapturedTable(
            name,
            self._records_of(name, [column for column, _ in columns], saved),
            tuple(from_binlog(column, self._server.charsets, name) for column in there),
            None if len(kept) == len(there) else kept,
            state,
        )

    def _records_of(self, name: str, columns: list[str], saved: SavedTable) -> TableRecords:
        table = self._tables[name]
        origin = {
            "connector": self._server.connector,
            "name": self._prefix,
            "db": table.schema,
            "table": table.name,
            "schemaVersion": saved.version,
        }
        return TableRecords(self.topic(name), columns, saved.key, self._form, origin, "pos", now_ms)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
