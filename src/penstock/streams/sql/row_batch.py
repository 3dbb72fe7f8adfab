"""Batches of rows that make records only for those who want records, and headers as they are stored."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any, overload

from penstock.model import Batch, Headers, Pointer, Record

Row = tuple[Pointer, bytes | None, bytes | None, str | None, int | None]
"""Pointer, key, value, headers as JSON text, timestamp in milliseconds."""


class RowBatch(Batch):
    """A batch over rows, in their order."""

    __slots__ = ("_rows",)

    def __init__(self, topic: str, partition: int, start: Pointer, next: Pointer, rows: Sequence[Row] = ()) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.next = next
        self._rows = rows

    @property
    def records(self) -> Sequence[Record]:  # type: ignore[override]
        """All of them, newly made."""
        return list(self)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if isinstance(index, slice):
            return [self._record(row) for row in self._rows[index]]
        return self._record(self._rows[index])

    def __iter__(self) -> Iterator[Record]:
        return map(self._record, self._rows)

    def pointer(self, index: int) -> Pointer:
        return self._rows[index][0]

    def pointers(self) -> Sequence[Pointer]:
        return [row[0] for row in self._rows]

    def values(self) -> Sequence[bytes | None]:
        return [row[2] for row in self._rows]

    def keys(self) -> Sequence[bytes | None]:
        return [row[1] for row in self._rows]

    def timestamps(self) -> Sequence[int | None]:
        return [row[4] for row in self._rows]

    def with_headers(self) -> Sequence[int]:
        return [index for index, row in enumerate(self._rows) if row[3] is not None]

    def _record(self, row: Row) -> Record:
        headers = () if row[3] is None else headers_of(row[3])
        return Record(self.topic, self.partition, row[0], row[1], row[2], headers, row[4])


def headers_text(headers: Headers) -> str | None:
    """Headers as a JSON array of [name, value]: text where a value is UTF-8, `{"base64": ...}` where it is not."""
    return json.dumps([[name, _header(value)] for name, value in headers]) if headers else None


def headers_of(text: str) -> Headers:
    """The headers of a row. Other programs may also write an object of names and values."""
    try:
        found = json.loads(text)
        pairs = found.items() if isinstance(found, dict) else found
        return tuple((str(name), _header_bytes(value)) for name, value in pairs)
    except (TypeError, ValueError):
        return (("headers", text.encode()),)


def _header(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _header_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return value if value is None else value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"])
    return json.dumps(value).encode()
