"""The same records through Spark's own Kafka connector: same columns, same positions, or a refusal that says why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.errors import ConfigError
from penstock.model import Position, PositionKind
from penstock.spark.arrow_mapping import map_in_arrow
from penstock.spark.columns import RECORD
from penstock.spark.source.decoded import decoder_of
from penstock.spark.source.java_settings import java_settings
from penstock.spark.source.positions import parse_position
from penstock.spark.source.record_columns import APPEND, CREATE, SCHEMA

_ELSEWHERE: Final = '; engine="python" can do it'


def connector_options(bootstrap: str, topic: str, client: Mapping[str, Any]) -> dict[str, str]:
    """What the connector is told about where to read, and as whom."""
    java = java_settings(client.get("librdkafka") or {})
    if client.get("client_id"):
        java["client.id"] = str(client["client_id"])
    return {
        "subscribe": topic,
        "includeHeaders": "true",
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed",
        **{f"kafka.{name}": value for name, value in java.items()},
    }


def position_options(topic: str, text: str, option: str, *, streaming: bool) -> dict[str, str]:
    """A position in the connector's words. `option` is startingPosition or endingPosition."""
    word = "starting" if option == "startingPosition" else "ending"
    position = parse_position(text, option)
    if not isinstance(position, Position):
        pointers = {str(partition): pointer for partition, pointer in sorted(position.items())}
        return {f"{word}Offsets": json.dumps({topic: pointers})}
    if position.kind is PositionKind.TIME:
        found = {f"{word}Timestamp": str(position.time_ms)}
        if word == "starting":
            found["startingOffsetsByTimestampStrategy"] = "latest"
        return found
    if word == "ending" and position.kind is PositionKind.EARLIEST:
        raise ConfigError(f"the Kafka connector cannot end at the earliest record{_ELSEWHERE}")
    if word == "starting" and position.kind is PositionKind.LATEST and not streaming:
        raise ConfigError(f"a batch read of the Kafka connector cannot begin at the end{_ELSEWHERE}")
    return {f"{word}Offsets": str(position.kind)}


def loss_options(on_expired: str) -> dict[str, str]:
    """What happens when records are gone."""
    if on_expired == "fail":
        return {"failOnDataLoss": "true"}
    if on_expired == "earliest":
        return {"failOnDataLoss": "false"}
    raise ConfigError(f"the Kafka connector goes on at the earliest record or fails, not at {on_expired!r}{_ELSEWHERE}")


def as_records(frame: DataFrame) -> DataFrame:
    """The connector's columns as RECORD has them."""
    kind = F.col("timestampType")
    return frame.select(
        "key",
        "value",
        "headers",
        "topic",
        "partition",
        F.col("offset").alias("pointer"),
        F.when(F.unix_millis("timestamp") != -1, F.col("timestamp")).alias("timestamp"),
        F.when(kind == 0, F.lit(CREATE)).when(kind == 1, F.lit(APPEND)).alias("timestamp_type"),
    )


def decoded_by(frame: DataFrame, content: bytes) -> DataFrame:
    """Rows of RECORD through a pickled decoder."""
    return map_in_arrow(frame, partial(_decode, content), decoder_of(content).schema)


def _decode(content: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    decoder = decoder_of(content)
    for batch in batches:
        # Timestamps come in the zone of the session, and the decoder knows one only.
        columns = [column.cast(field.type) for column, field in zip(batch.columns, SCHEMA, strict=True)]
        rows = decoder.decode(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        if len(rows):
            yield rows


assert RECORD.names == SCHEMA.names
