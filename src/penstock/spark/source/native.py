"""Reading through Spark's own Kafka connector, with the same columns and positions as the python engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.errors import ConfigError
from penstock.model import Position, PositionKind
from penstock.spark.source.java_settings import java_settings
from penstock.spark.source.origin import TopicSelection
from penstock.spark.source.positions import by_topic, parse_position
from penstock.spark.source.read_options import decoder_of
from penstock.spark.values.arrow_mapping import map_in_arrow
from penstock.spark.values.columns import RECORD
from penstock.streams.record_columns import APPEND, CREATE, SCHEMA

_USE_PYTHON: Final = ': use engine="python"'


def connector_options(bootstrap: str, selection: TopicSelection, client: Mapping[str, Any]) -> dict[str, str]:
    """The connector's options for the broker, the topics and the client."""
    java = java_settings(client.get("librdkafka") or {})
    if client.get("client_id"):
        java["client.id"] = str(client["client_id"])
    return {
        **_subscription(selection),
        "includeHeaders": "true",
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed",
        **{f"kafka.{name}": value for name, value in java.items()},
    }


def _subscription(selection: TopicSelection) -> dict[str, str]:
    if selection.pattern is None:
        return {"subscribe": ",".join(selection.names)}
    if "dlq" in selection.pattern or "(?P" in selection.pattern:
        raise ConfigError(
            f"the Kafka connector cannot subscribe to {selection}: patterns with named groups, and of topics of dead "
            f"letters, are Penstock's own{_USE_PYTHON}"
        )
    return {"subscribePattern": rf"(?!__|penstock\.)(?!.*\.dlq$)(?:{selection.pattern})"}


def position_options(topics: Sequence[str], text: str, option: str, *, streaming: bool) -> dict[str, str]:
    """The connector's options for a position. `option` is startingPosition or endingPosition."""
    word = "starting" if option == "startingPosition" else "ending"
    position = parse_position(text, option, topics)
    if not isinstance(position, Position):
        return {f"{word}Offsets": json.dumps(by_topic(position))}
    if position.kind is PositionKind.TIME:
        found = {f"{word}Timestamp": str(position.time_ms)}
        if word == "starting":
            found["startingOffsetsByTimestampStrategy"] = "latest"
        return found
    if word == "ending" and position.kind is PositionKind.EARLIEST:
        raise ConfigError(f"the Kafka connector cannot end at the earliest record{_USE_PYTHON}")
    if word == "starting" and position.kind is PositionKind.LATEST and not streaming:
        raise ConfigError(f"a batch read of the Kafka connector cannot begin at the end{_USE_PYTHON}")
    return {f"{word}Offsets": str(position.kind)}


def loss_options(on_expired: str) -> dict[str, str]:
    """The connector's options for expired records."""
    if on_expired == "fail":
        return {"failOnDataLoss": "true"}
    if on_expired == "earliest":
        return {"failOnDataLoss": "false"}
    raise ConfigError(
        f"the Kafka connector continues at the earliest record or fails, not at {on_expired!r}{_USE_PYTHON}"
    )


def as_records(frame: DataFrame) -> DataFrame:
    """The connector's columns as the columns of RECORD."""
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
        # Timestamps have the time zone of the session, and the decoder expects UTC.
        columns = [column.cast(field.type) for column, field in zip(batch.columns, SCHEMA, strict=True)]
        rows = decoder.decode(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        if len(rows):
            yield rows


assert RECORD.names == SCHEMA.names
