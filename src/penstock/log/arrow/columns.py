"""Turning found records into Arrow columns.

The columns are those of Spark's Kafka source, without the topic. Keys and values are views into the data or, for
engines that cannot read views, plain binary that Arrow copies.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from penstock.log.arrow.spans import Bytes, Engine, Headers, Ints, Longs, Records
from penstock.model import header_name

Unit = Literal["ms", "us", "ns"]

_TICKS_A_MS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}


def schema(unit: Unit = "ms", *, views: bool = False) -> pa.Schema:
    """The columns that `decode` gives for the same `unit` and `views`.

    `timestamp_type` is 0 if the timestamp is the producer's, 1 if it is the broker's.
    """
    if unit not in _TICKS_A_MS:
        raise ValueError(f"{unit!r} is not a unit of time; use one of {', '.join(_TICKS_A_MS)}")
    return pa.schema(
        [
            pa.field("key", _binary_type(views)),
            pa.field("value", _binary_type(views)),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("timestamp", pa.timestamp(unit, tz="UTC")),
            pa.field("timestamp_type", pa.int32()),
            pa.field("headers", pa.list_(_header_type(views))),
        ]
    )


def record_batch(
    engine: Engine,
    data: Bytes,
    records: Records,
    timestamp_type: Ints,
    partition: int,
    unit: Unit,
    views: bool,
) -> pa.RecordBatch:
    """One row for each record. With `views`, the columns keep the data alive, and the data must not change."""
    columns = _Columns(engine, data, views)
    return pa.RecordBatch.from_arrays(
        [
            columns.binary(records.key_at, records.key_size),
            columns.binary(records.value_at, records.value_size),
            _plain(pa.int32(), np.full(len(records), partition, np.int32)),
            _plain(pa.int64(), records.offset),
            _timestamps(records.timestamp, unit),
            _plain(pa.int32(), timestamp_type),
            columns.headers(records),
        ],
        schema=schema(unit, views=views),
    )


class _Columns:
    def __init__(self, engine: Engine, data: Bytes, views: bool) -> None:
        self._engine = engine
        self._data = data
        self._buffer = pa.py_buffer(data)
        self._views = views

    def binary(self, at: Longs, size: Ints) -> pa.Array:
        column = self._viewed(pa.binary_view(), at, size)
        return column if self._views else column.cast(pa.binary())

    def text(self, at: Longs, size: Ints) -> pa.Array:
        """Header names; `penstock.model.header_name` handles those that are not UTF-8."""
        column = self._viewed(pa.string_view(), at, size)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            names = self._viewed(pa.binary_view(), at, size).to_pylist()
            column = pa.array([header_name(name) for name in names], pa.string_view())
        return column if self._views else column.cast(pa.string())

    def headers(self, records: Records) -> pa.Array:
        ends = np.zeros(len(records) + 1, np.int32)
        np.cumsum(records.headers_count, out=ends[1:])
        found = self._engine.headers(self._data, records) if ends[-1] else Headers.empty(0)
        parts = [self.text(found.name_at, found.name_size), self.binary(found.value_at, found.value_size)]
        header_type = _header_type(self._views)
        each = pa.StructArray.from_arrays(parts, fields=list(header_type))
        return pa.Array.from_buffers(
            pa.list_(header_type), len(records), [None, pa.py_buffer(ends)], null_count=0, children=[each]
        )

    def _viewed(self, kind: pa.DataType, at: Longs, size: Ints) -> pa.Array:
        present = size >= 0
        validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
        structs = pa.py_buffer(self._engine.views(self._data, at, size))
        return pa.Array.from_buffers(kind, len(at), [validity, structs, self._buffer])


def _timestamps(milliseconds: Longs, unit: Unit) -> pa.Array:
    """A time beyond the unit's range, which only a faulty producer sends, becomes the largest or smallest possible."""
    ticks = _TICKS_A_MS[unit]
    if ticks > 1:
        furthest = np.iinfo(np.int64).max // ticks
        milliseconds = np.clip(milliseconds, -furthest, furthest) * ticks
    return _plain(pa.timestamp(unit, tz="UTC"), milliseconds)


def _plain(kind: pa.DataType, numbers: Longs | Ints) -> pa.Array:
    """Convert numbers without copying. `pa.array` would first look for pandas, whose import takes a second."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def _binary_type(views: bool) -> Any:
    return pa.binary_view() if views else pa.binary()


def _header_type(views: bool) -> Any:
    return pa.struct(
        [pa.field("key", pa.string_view() if views else pa.string()), pa.field("value", _binary_type(views))]
    )
