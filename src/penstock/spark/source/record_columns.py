"""Records as Arrow columns that Spark takes as they are: types, names and nulls exactly as RECORD has them.

A record without headers has null there, as with Spark's own Kafka connector; a timestamp that the producer left away is
null, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.model import Batch
from penstock.spark.columns import RECORD
from penstock.streams.kafka.batch import KafkaBatch

SCHEMA: Final[Any] = to_arrow_schema(RECORD, timezone="UTC")
CREATE: Final = "create"
APPEND: Final = "append"
_TYPE_NAMES: Final = pa.array([CREATE, APPEND], pa.string())
_NO_TIMESTAMP_US: Final = -1_000
_HEADERS: Final = SCHEMA.field("headers").type
_REPEATED: Final = 1 << 16


def from_log(batch: pa.RecordBatch, topic: str, columns: Sequence[str]) -> pa.RecordBatch:
    """What `penstock.log.arrow` gives, with timestamps in microseconds, as these columns."""
    made = [_FROM_LOG[name](batch, topic) for name in columns]
    return pa.RecordBatch.from_arrays(made, schema=_schema(tuple(columns)))


def from_batch(batch: Batch, columns: Sequence[str]) -> pa.RecordBatch:
    """The records of any stream as these columns."""
    made = [_FROM_BATCH[name](batch) for name in columns]
    return pa.RecordBatch.from_arrays(made, schema=_schema(tuple(columns)))


def empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=SCHEMA)


@lru_cache(maxsize=8)
def _schema(columns: tuple[str, ...]) -> Any:
    return pa.schema([SCHEMA.field(name) for name in columns])


@lru_cache(maxsize=8)
def _repetition(text: str) -> Any:
    return pa.repeat(pa.scalar(text, pa.string()), _REPEATED)


def _repeated(text: str, rows: int) -> Any:
    """A column of one text. Those of usual length are parts of one that is kept."""
    if rows <= _REPEATED:
        return _repetition(text).slice(0, rows)
    return pa.repeat(pa.scalar(text, pa.string()), rows)


def _log_headers(batch: pa.RecordBatch, topic: str) -> Any:
    headers = batch.column("headers")
    if not len(headers.values):
        return pa.nulls(len(batch), _HEADERS)
    present = np.diff(headers.offsets.to_numpy()) > 0
    validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    offsets = headers.buffers()[1]
    return pa.Array.from_buffers(
        _HEADERS, len(batch), [validity, offsets], children=[headers.values.cast(_HEADERS.value_type)]
    )


def _log_timestamp(batch: pa.RecordBatch, topic: str) -> Any:
    column = batch.column("timestamp")
    ticks = column.view(pa.int64()).to_numpy()
    missing = ticks == _NO_TIMESTAMP_US
    if not missing.any():
        return column
    return pc.if_else(pa.array(missing), pa.scalar(None, column.type), column)


def _log_timestamp_type(batch: pa.RecordBatch, topic: str) -> Any:
    kinds = batch.column("timestamp_type").to_numpy()
    if not len(kinds):
        return pa.array([], pa.string())
    first = int(kinds[0])
    if (kinds == first).all():
        return _repeated(APPEND if first else CREATE, len(kinds))
    return _TYPE_NAMES.take(pa.array(kinds))


_FROM_LOG: Final[dict[str, Any]] = {
    "key": lambda batch, topic: batch.column("key"),
    "value": lambda batch, topic: batch.column("value"),
    "headers": _log_headers,
    "topic": lambda batch, topic: _repeated(topic, len(batch)),
    "partition": lambda batch, topic: batch.column("partition"),
    "pointer": lambda batch, topic: batch.column("offset"),
    "timestamp": _log_timestamp,
    "timestamp_type": _log_timestamp_type,
}


def _headers(batch: Batch) -> Any:
    having = batch.with_headers()
    if not having:
        return pa.nulls(len(batch), _HEADERS)
    headers: list[list[dict[str, Any]] | None] = [None] * len(batch)
    for index in having:
        headers[index] = [{"key": name, "value": value} for name, value in batch[index].headers]
    return pa.array(headers, _HEADERS)


def _timestamps(batch: Batch) -> Any:
    if isinstance(batch, KafkaBatch):
        times: list[int | None] = [time if time >= 0 else None for _, time in batch.timestamps()]
    else:
        times = [record.timestamp_ms for record in batch]
    return pa.array(times, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _timestamp_types(batch: Batch) -> Any:
    """Streams that do not tell whose clock it was have none."""
    if not isinstance(batch, KafkaBatch):
        return pa.nulls(len(batch), pa.string())
    names = {1: CREATE, 2: APPEND}
    return pa.array([names.get(kind) for kind, _ in batch.timestamps()], pa.string())


_FROM_BATCH: Final[dict[str, Any]] = {
    "key": lambda batch: pa.array(batch.keys(), pa.binary()),
    "value": lambda batch: pa.array(batch.values(), pa.binary()),
    "headers": _headers,
    "topic": lambda batch: _repeated(batch.topic, len(batch)),
    "partition": lambda batch: pa.array(np.full(len(batch), batch.partition, np.int32)),
    "pointer": lambda batch: pa.array(batch.pointers(), pa.int64()),
    "timestamp": _timestamps,
    "timestamp_type": _timestamp_types,
}
