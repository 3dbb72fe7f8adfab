"""Streams whose batches a test decides: each call of `put` is one batch, and each of its lists one partition."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark.late.gate import OnTimeGate

START: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NEVER: Final = -1


def at(seconds: float) -> str:
    """A time so many seconds after the start of all tests, as it is written into files."""
    return (START + datetime.timedelta(seconds=seconds)).isoformat()


def seconds(time: datetime.datetime) -> float:
    """What `at` was given, of what Spark gives back: a time without a zone, in the zone of the session, UTC."""
    return (time.replace(tzinfo=datetime.UTC) - START).total_seconds()


def query_of(batch: DataFrame) -> str:
    """The id of the query whose batch this is, from inside foreachBatch."""
    query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query_id is not None
    return query_id


class Batches:
    """A folder that Spark reads as a stream, file by file in the order they were put."""

    def __init__(self, spark: SparkSession, folder: Path, schema: str, partitions: int = 1) -> None:
        self._spark = spark
        self._folder = folder
        self._schema = schema
        self._partitions = partitions
        self._put = 0
        folder.mkdir(parents=True)

    def put(self, *parts: Sequence[Mapping[str, Any]]) -> None:
        assert len(parts) == self._partitions, "a batch has as many partitions as the stream"
        for rows in parts:
            self._put += 1
            beside = self._folder / f".{self._put}"
            beside.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(beside, (1_767_225_600 + self._put, 1_767_225_600 + self._put))
            beside.rename(self._folder / f"{self._put:05}.json")

    def stream(self) -> DataFrame:
        reader = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", self._partitions)
        return reader.json(str(self._folder))


class Collected:
    """What a query with gates gave, batch by batch, as a pipeline would deliver it. A batch that is repeated counts
    once: it replaces what it gave before."""

    def __init__(self, checkpoint: Path, gates: Sequence[OnTimeGate] = (), mode: str = "append") -> None:
        self._checkpoint = checkpoint
        self._gates = gates
        self._mode = mode
        self.batches: dict[int, list[Any]] = {}
        self.late_batches: dict[int, list[Any]] = {}
        self.dropped = 0
        self.query: StreamingQuery | None = None

    @property
    def rows(self) -> list[Any]:
        return [row for _, rows in sorted(self.batches.items()) for row in rows]

    @property
    def late(self) -> list[Any]:
        return [row for _, rows in sorted(self.late_batches.items()) for row in rows]

    def run(
        self,
        frame: DataFrame,
        before: Callable[[int, DataFrame], None] | None = None,
        fail_at: int = NEVER,
        after: Callable[[int], None] | None = None,
    ) -> None:
        """Everything that is there. `fail_at`: die at the end of this batch, when all of it has been done."""

        def deliver(batch: DataFrame, batch_id: int) -> None:
            if before is not None:
                before(batch_id, batch)
            self.batches[batch_id] = batch.collect()
            query_id = query_of(batch)
            self.late_batches[batch_id] = []
            for gate in self._gates:
                held = gate.staged(batch.sparkSession, query_id, batch_id)
                if held is not None:
                    found = held.frame.collect()
                    assert len(found) == held.rows
                    self.late_batches[batch_id] += found
                gate.finish(query_id, batch_id)
            if after is not None:
                after(batch_id)
            if batch_id == fail_at:
                raise RuntimeError("dies here")

        writer = frame.writeStream.outputMode(self._mode).foreachBatch(deliver)
        query = writer.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True).start()
        self.query = query
        try:
            query.awaitTermination()
        finally:
            for progress in query.recentProgress:
                self.dropped += sum(
                    int(operator["numRowsDroppedByWatermark"]) for operator in progress["stateOperators"]
                )
