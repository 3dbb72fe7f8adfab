"""Records as Arrow rows, without a stream."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.model import Headers
from penstock.spark.values.columns import ABOUT_A_RECORD, RECORD, arrow_type_of

AT = datetime.datetime(2026, 11, 15, 8, tzinfo=datetime.UTC)
KEY = b"a key"


def record_rows(
    values: Sequence[bytes | None], topic: str = "orders", headers: Sequence[Headers] | None = None
) -> pa.RecordBatch:
    """One row for each value, at the pointers 0, 1, 2, …"""
    count = len(values)
    listed = [[{"key": name, "value": content} for name, content in each] for each in headers or [()] * count]
    columns: dict[str, list[Any]] = {
        "key": [KEY] * count,
        "value": list(values),
        "headers": listed,
        "topic": [topic] * count,
        "partition": [3] * count,
        "pointer": list(range(count)),
        "timestamp": [AT] * count,
        "timestamp_type": ["create"] * count,
    }
    arrays = [pa.array(columns[field.name], arrow_type_of(field.dataType)) for field in RECORD]
    return pa.RecordBatch.from_arrays(arrays, RECORD.names)


def fields_of(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of the type, without what is known about the record."""
    return {name: cell for name, cell in row.items() if name.removeprefix("record_") not in ABOUT_A_RECORD}
