"""The records of any stream, read through its client, as Arrow columns like those of `record_columns`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.model import Batch
from penstock.spark.source.record_columns import APPEND, CREATE, HEADERS, repeated, schema_of
from penstock.streams.kafka.batch import KafkaBatch

_KINDS: Final = {1: CREATE, 2: APPEND}
"""librdkafka's numbers for whose clock it was."""


def from_batch(batch: Batch, columns: Sequence[str]) -> pa.RecordBatch:
    """The records of a batch as these columns."""
    made = [_FROM_BATCH[name](batch) for name in columns]
    return pa.RecordBatch.from_arrays(made, schema=schema_of(tuple(columns)))


def _headers(batch: Batch) -> Any:
    having = batch.with_headers()
    if not having:
        return pa.nulls(len(batch), HEADERS)
    headers: list[list[dict[str, Any]] | None] = [None] * len(batch)
    for index in having:
        headers[index] = [{"key": name, "value": value} for name, value in batch[index].headers]
    return pa.array(headers, HEADERS)


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
    return pa.array([_KINDS.get(kind) for kind, _ in batch.timestamps()], pa.string())


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
