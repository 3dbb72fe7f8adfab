"""A folder of Parquet files as a topic: rows as JSON objects, numbered from 0.

Files are taken in the order of their names, and files that appear later come behind all that are known, in the order of
theirs. So the number of a row stays the same when files are added or removed. A file without its footer is still being
written, and is taken when it is complete. Files must not be changed: one whose size differs is an error. Names that
begin with a dot or an underscore are left out, as Spark and Hive do.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import MissingExtraError, OffsetOutOfRangeError, StreamError, UnknownTopicError
from penstock.model import Batch, Pointer, Record
from penstock.streams.file.records import from_object
from penstock.streams.file.settings import FileSettings
from penstock.streams.file.sidecar import Sidecar

try:
    import pyarrow
    from pyarrow.parquet import ParquetFile
except ImportError as error:
    raise MissingExtraError("Parquet", "arrow") from error

logger = logging.getLogger(__name__)


class Part(msgspec.Struct):
    """One file of the folder."""

    name: str
    size_bytes: int
    first: int
    """The number of its first row."""
    rows: int

    @property
    def end(self) -> int:
        return self.first + self.rows


class ParquetFolder:
    """The files of one folder, as a source of records. Any thread may use it."""

    def __init__(self, topic: str, path: Path, settings: FileSettings) -> None:
        self.topic = topic
        self.path = path
        self._settings = settings
        self._lock = threading.Lock()
        self._sidecar: Sidecar[Part] | None = None
        self._incomplete: set[str] = set()
        self._held: tuple[str, int, list[dict[str, Any]]] | None = None
        """A row group that was read: the file, the number of its first row, and its rows."""

    def check(self) -> None:
        if not self.path.is_dir():
            raise UnknownTopicError(f"there is no folder {self.path} of Parquet files: check the path")

    def span(self) -> tuple[Pointer, Pointer]:
        with self._lock:
            parts = self._parts()
            end = parts[-1].end if parts else 0
            return next((part.first for part in parts if self._is_there(part)), end), end

    def read(self, start: Pointer, limit: int) -> Batch:
        with self._lock:
            parts = self._parts()
            end = parts[-1].end if parts else 0
            if not 0 <= start <= end:
                raise OffsetOutOfRangeError(f"{self.topic}-0", start, 0, end)
            records: list[Record] = []
            number = start
            for part in parts:
                while part.first <= number < part.end and len(records) < limit:
                    if not self._is_there(part):
                        if records:
                            return Batch(self.topic, 0, start, number, records)
                        there = next((each.first for each in parts if each.end > number and self._is_there(each)), end)
                        raise OffsetOutOfRangeError(f"{self.topic}-0", start, there, end)
                    first, rows = self._group(part, number)
                    for row in rows[number - first : number - first + limit - len(records)]:
                        records.append(from_object(self.topic, number, row, self._settings))
                        number += 1
            return Batch(self.topic, 0, start, number, records)

    def _group(self, part: Part, number: int) -> tuple[int, list[dict[str, Any]]]:
        """The row group with this row: the number of its first row, and its rows."""
        if self._held is not None:
            name, first, rows = self._held
            if name == part.name and first <= number < first + len(rows):
                return first, rows
        with ParquetFile(self.path / part.name) as file:
            first = part.first
            for index in range(file.num_row_groups):
                count = file.metadata.row_group(index).num_rows
                if number < first + count:
                    self._held = (part.name, first, file.read_row_group(index).to_pylist())
                    return self._held[1:]
                first += count
        raise StreamError(f"{self.path / part.name} has fewer rows than before: Parquet files must not be changed")

    def _is_there(self, part: Part) -> bool:
        try:
            size_bytes = (self.path / part.name).stat().st_size
        except FileNotFoundError:
            return False
        if size_bytes != part.size_bytes:
            raise StreamError(
                f"{self.path / part.name} was {part.size_bytes} bytes and is {size_bytes}: Parquet files must not be "
                "changed; add a file of another name"
            )
        return True

    def _parts(self) -> list[Part]:
        """All known files, after looking for new ones. The caller holds the lock."""
        self.check()
        if self._sidecar is None:
            self._sidecar = Sidecar(self.path, Part)
        known = {part.name for part in self._sidecar.entries}
        new = [
            path for path in sorted(self.path.glob("*.parquet")) if path.name not in known and path.name[0] not in "._"
        ]
        found = [(path, rows) for path in new if (rows := self._rows(path)) is not None]
        if found:
            self._sidecar.change(lambda parts: _add(parts, found))
        return self._sidecar.entries

    def _rows(self, path: Path) -> int | None:
        """The number of rows; None while the file has no footer."""
        try:
            with ParquetFile(path) as file:
                return int(file.metadata.num_rows)
        except (pyarrow.ArrowInvalid, OSError) as error:
            if path.name not in self._incomplete:
                self._incomplete.add(path.name)
                logger.warning("%s is not a complete Parquet file yet, and is read when it is: %s", path, error)
            return None


def _add(parts: list[Part], found: list[tuple[Path, int]]) -> None:
    known = {part.name for part in parts}
    for path, rows in found:
        if path.name not in known:
            first = parts[-1].end if parts else 0
            parts.append(Part(path.name, path.stat().st_size, first, rows))
