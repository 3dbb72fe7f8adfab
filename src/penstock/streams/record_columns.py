"""Records as Arrow columns: those of pipelines and of queries.

Log records are converted without Python objects: creating an array from one makes pyarrow import pandas, which takes a
second in every new worker.

Headers are null for a record without headers, as in Spark's own Kafka connector, and so is a missing timestamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import StreamError
from penstock.model import Batch

HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
SCHEMA: Final[Any] = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("pointer", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestamp_type", pa.string()),
    ]
)
SCHEMA_WITH_TEXT: Final[Any] = SCHEMA.set(
    SCHEMA.get_field_index("pointer"), pa.field("pointer", pa.string(), nullable=False)
)
"""The same for streams whose pointers are no offsets."""
POINTER_DIGITS: Final = 64
"""The width of a pointer as text: enough for the sequence numbers of Kinesis, which have 56 digits."""
CREATE: Final = "create"
APPEND: Final = "append"
_NO_TIMESTAMP_US: Final = -1_000
_REPEATED: Final = 1 << 16


def from_log(batch: pa.RecordBatch, topic: str, columns: Sequence[str]) -> pa.RecordBatch:
    """A batch of `penstock.log.arrow`, with timestamps in microseconds, as these columns."""
    made = [_FROM_LOG[name](batch, topic) for name in columns]
    return pa.RecordBatch.from_arrays(made, schema=schema_of(tuple(columns)))


@lru_cache(maxsize=8)
def schema_of(columns: tuple[str, ...], has_offsets: bool = True) -> Any:
    schema = SCHEMA if has_offsets else SCHEMA_WITH_TEXT
    return pa.schema([schema.field(name) for name in columns])


def pointer_text(pointer: int) -> str:
    """A pointer of any size as text of a fixed width, so that texts sort as pointers do. `int` reads it back."""
    text = str(pointer).zfill(POINTER_DIGITS)
    if len(text) > POINTER_DIGITS:
        raise StreamError(f"the pointer {pointer} has more than {POINTER_DIGITS} digits, too many for a column")
    return text


@lru_cache(maxsize=16)
def _repetition(text: str, rows: int = _REPEATED) -> Any:
    encoded = text.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(encoded))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(encoded * rows)])


def repeated(text: str, rows: int) -> Any:
    """A column that repeats one text. Columns of usual length are slices of a cached one."""
    if rows <= _REPEATED:
        return _repetition(text).slice(0, rows)
    return _repetition.__wrapped__(text, rows)


def _log_headers(batch: pa.RecordBatch, topic: str) -> Any:
    headers = batch.column("headers")
    if not len(headers.values):
        return pa.nulls(len(batch), HEADERS)
    present = np.diff(headers.offsets.to_numpy()) > 0
    validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    offsets = headers.buffers()[1]
    return pa.Array.from_buffers(
        HEADERS, len(batch), [validity, offsets], children=[headers.values.cast(HEADERS.value_type)]
    )


def _log_timestamp(batch: pa.RecordBatch, topic: str) -> Any:
    column = batch.column("timestamp")
    ticks = column.view(pa.int64()).to_numpy()
    missing = ticks == _NO_TIMESTAMP_US
    if not missing.any():
        return column
    validity = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(column.type, len(ticks), [validity, pa.py_buffer(np.ascontiguousarray(ticks))])


def _log_timestamp_type(batch: pa.RecordBatch, topic: str) -> Any:
    kinds = batch.column("timestamp_type").to_numpy()
    changes = np.flatnonzero(np.diff(kinds)) + 1
    runs = np.split(kinds, changes)
    return pa.concat_arrays([repeated(APPEND if run[0] else CREATE, len(run)) for run in runs if len(run)])


_FROM_LOG: Final[dict[str, Any]] = {
    "key": lambda batch, topic: batch.column("key"),
    "value": lambda batch, topic: batch.column("value"),
    "headers": _log_headers,
    "topic": lambda batch, topic: repeated(topic, len(batch)),
    "partition": lambda batch, topic: batch.column("partition"),
    "pointer": lambda batch, topic: batch.column("offset"),
    "timestamp": _log_timestamp,
    "timestamp_type": _log_timestamp_type,
}


def from_batch(batch: Batch, columns: Sequence[str], *, has_offsets: bool = True) -> pa.RecordBatch:
    """The records of a batch as these columns."""
    converters = _FROM_BATCH if has_offsets else _WITH_TEXT
    made = [converters[name](batch) for name in columns]
    return pa.RecordBatch.from_arrays(made, schema=schema_of(tuple(columns), has_offsets))


def _headers(batch: Batch) -> Any:
    having = batch.with_headers()
    if not having:
        return pa.nulls(len(batch), HEADERS)
    headers: list[list[dict[str, Any]] | None] = [None] * len(batch)
    for index in having:
        headers[index] = [{"key": name, "value": value} for name, value in batch[index].headers]
    return pa.array(headers, HEADERS)


def _timestamps(batch: Batch) -> Any:
    return pa.array(batch.timestamps(), pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _timestamp_types(batch: Batch) -> Any:
    """Null for streams that do not report the type of their timestamps."""
    types = batch.timestamp_types()
    return pa.nulls(len(batch), pa.string()) if types is None else pa.array(types, pa.string())


_FROM_BATCH: Final[dict[str, Any]] = {
    "key": lambda batch: pa.array(batch.keys(), pa.binary()),
    "value": lambda batch: pa.array(batch.values(), pa.binary()),
    "headers": _headers,
    "topic": lambda batch: repeated(batch.topic, len(batch)),
    "partition": lambda batch: pa.array(np.full(len(batch), batch.partition, np.int32)),
    "pointer": lambda batch: pa.array(batch.pointers(), pa.int64()),
    "timestamp": _timestamps,
    "timestamp_type": _timestamp_types,
}
_WITH_TEXT: Final[dict[str, Any]] = {
    **_FROM_BATCH,
    "pointer": lambda batch: pa.array([pointer_text(each) for each in batch.pointers()], pa.string()),
}
