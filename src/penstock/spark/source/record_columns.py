"""Records as Arrow columns that Spark takes as they are: types, names and nulls exactly as RECORD has them.

Nothing here makes an array out of a Python object: for that pyarrow looks for pandas first, and loading pandas takes a
second in every new worker.

A record without headers has null there, as with Spark's own Kafka connector; a timestamp that the producer left away is
null, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.spark.columns import RECORD

SCHEMA: Final[Any] = to_arrow_schema(RECORD, timezone="UTC")
CREATE: Final = "create"
APPEND: Final = "append"
_NO_TIMESTAMP_US: Final = -1_000
HEADERS: Final = SCHEMA.field("headers").type
_REPEATED: Final = 1 << 16


def from_log(batch: pa.RecordBatch, topic: str, columns: Sequence[str]) -> pa.RecordBatch:
    """What `penstock.log.arrow` gives, with timestamps in microseconds, as these columns."""
    made = [_FROM_LOG[name](batch, topic) for name in columns]
    return pa.RecordBatch.from_arrays(made, schema=schema_of(tuple(columns)))


@lru_cache(maxsize=8)
def schema_of(columns: tuple[str, ...]) -> Any:
    return pa.schema([SCHEMA.field(name) for name in columns])


@lru_cache(maxsize=16)
def _repetition(text: str, rows: int = _REPEATED) -> Any:
    encoded = text.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(encoded))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(encoded * rows)])


def repeated(text: str, rows: int) -> Any:
    """A column of one text. Those of usual length are parts of one that is kept."""
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
