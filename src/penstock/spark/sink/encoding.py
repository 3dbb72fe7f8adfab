"""How the frames of a `TopicTarget` become records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from penstock.serde import Topic
from penstock.spark.sink.written import as_written, check_idempotency_key, is_written, with_idempotency_header


class Encoded(Protocol):
    """What a target says about its records."""

    @property
    def topic(self) -> Topic[Any] | str | None: ...

    @property
    def key(self) -> str | Sequence[str] | Column | None: ...

    @property
    def idempotency_key(self) -> str | None: ...


def check_encodable(target: Encoded, schema: StructType) -> None:
    if target.idempotency_key is not None:
        check_idempotency_key(schema, target.idempotency_key)


def encoded(target: Encoded, frame: DataFrame) -> DataFrame:
    if target.idempotency_key is not None:
        headers = with_idempotency_header(
            frame["headers"] if "headers" in frame.columns else None, frame[target.idempotency_key]
        )
        frame = frame.withColumn("headers", headers)
    assert is_written(frame.schema)
    return as_written(frame)
