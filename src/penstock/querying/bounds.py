"""What a filter needs of a topic: which partitions, from which offset to which, and from which time on.

Arrow knows how to simplify a filter with what is known about some rows, and reports when no row can match. A bound is
searched by asking that: "can a record before this offset match?". So every bound that is found is one that Arrow has
shown; where Arrow cannot show anything, everything is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

_FORMAT: Final = ds.IpcFileFormat()
_FILES: Final = LocalFileSystem()
_MOST_SEPARATE: Final = 64
"""With more partitions, all get the same bounds of offsets."""
_FIRST_MS: Final = 0
_LAST_MS: Final = 253_402_300_800_000
"""The end of the year 9999."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The records that may match. They are conservative: others may be among them."""

    offsets: Mapping[int, tuple[int, int]]
    """The first offset of each partition and the one after the last. Partitions without matches are omitted."""
    since_ms: int | None = None
    """No record before this time matches; None: unknown."""


def names_field(filter: ds.Expression, name: str) -> bool:
    """Whether the filter may need this column. Its text contains the names of all that it needs."""
    return name in str(filter)


def bounds_of(
    filter: ds.Expression | None, spans: Mapping[int, tuple[int, int]], schema: pa.Schema, names: Mapping[str, str]
) -> Bounds:
    """The bounds of a filter within these spans. `names` are those of the columns `partition`, `offset` and
    `timestamp` in the schema; `offset` is missing where pointers are not offsets."""
    found = {partition: span for partition, span in spans.items() if span[0] < span[1]}
    if filter is None:
        return Bounds(found)
    asked = _Question(filter, schema)
    is_separate = False
    if names_field(filter, names["partition"]):
        partition = pc.field(names["partition"])
        found = {number: span for number, span in found.items() if asked.may_match(partition == number)}
        is_separate = len(found) <= _MOST_SEPARATE
    if "offset" in names and names_field(filter, names["offset"]):
        found = _by_offset(asked, found, names, is_separate=is_separate)
    since_ms = _since(asked, names["timestamp"]) if found and names_field(filter, names["timestamp"]) else None
    return Bounds(found, since_ms)


class _Question:
    """Asks whether a record of some kind may match a filter."""

    def __init__(self, filter: ds.Expression, schema: pa.Schema) -> None:
        self._filter = filter
        self._schema = schema

    def may_match(self, kind: ds.Expression) -> bool:
        # A file that does not exist: only its guarantee is looked at.
        fragment = _FORMAT.make_fragment("none", _FILES, partition_expression=kind)
        files = ds.FileSystemDataset([fragment], self._schema, _FORMAT, _FILES)
        return next(iter(files.get_fragments(filter=self._filter)), None) is not None


def _by_offset(
    asked: _Question, spans: Mapping[int, tuple[int, int]], names: Mapping[str, str], *, is_separate: bool
) -> dict[int, tuple[int, int]]:
    offset = pc.field(names["offset"])
    if not spans:
        return {}

    def narrowed(span: tuple[int, int], among: ds.Expression | None) -> tuple[int, int]:
        def kind(condition: ds.Expression) -> ds.Expression:
            return condition if among is None else among & condition

        low, high = span
        first = _largest(low, high, lambda at: not asked.may_match(kind(offset < at)))
        last = -_largest(-high, -low, lambda at: not asked.may_match(kind(offset >= -at)))
        return first, last

    if is_separate:
        partition = pc.field(names["partition"])
        found = {number: narrowed(span, partition == number) for number, span in spans.items()}
    else:
        starts, ends = zip(*spans.values(), strict=True)
        low, high = narrowed((min(starts), max(ends)), None)
        found = {number: (max(start, low), min(end, high)) for number, (start, end) in spans.items()}
    return {number: span for number, span in found.items() if span[0] < span[1]}


def _since(asked: _Question, name: str) -> int | None:
    """The latest time before which no record matches. Records without a time are not before it."""
    column = pc.field(name)

    def has_none_before(time_ms: int) -> bool:
        moment = pa.scalar(time_ms * 1000, pa.timestamp("us", tz="UTC"))
        return not asked.may_match((column < moment) | column.is_null())

    found = _largest(_FIRST_MS, _LAST_MS, has_none_before)
    return None if found == _FIRST_MS else found


def _largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest number above `low`, up to `high`, for which `holds` was seen to hold; `low` if there is none."""
    if holds(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def needed(filter: ds.Expression | None, columns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Of the columns of a table, those that are asked for or that the filter needs, in the table's order."""
    chosen: Any = set(columns)
    return [name for name in names if name in chosen or (filter is not None and names_field(filter, name))]
