"""Typed topics in streaming queries: dead letters in a topic of the stream, and how many there were."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock import Connection, DeadLetterFilter, open_dead_letters
from penstock.serde import Topic
from penstock.spark.reading import read_stream
from penstock.spark.source.native import decoded_by
from penstock.spark.values.columns import RECORD
from penstock.spark.values.decoding import Decoder
from tests.spark.typed.records import record_rows
from tests.spark.typed.values import Line

LINES = Topic("lines", Line)


def test_a_stream_goes_on_and_what_it_cannot_read_is_in_the_dead_letters(
    spark: SparkSession, log_url: str, connection: Connection, tmp_path: Path
) -> None:
    connection.create_topic("lines", 1)
    for number in range(20):
        connection.send("lines", b"junk" if number % 5 == 0 else LINES.new_record(Line("tea", number)).value)
    connection.flush()
    decoder = Decoder(LINES, url=log_url, group="usage")
    seen: list[int] = []

    def take(batch: DataFrame, number: int) -> None:
        seen.extend(row["cups"] for row in batch.select("cups").collect())

    for _ in range(2):  # the second time nothing is left to do
        read = read_stream(spark, log_url, "lines", engine="python", decoder=decoder, max_records_per_batch=10)
        query = (
            read.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
    assert sorted(seen) == [number for number in range(20) if number % 5]
    letters = open_dead_letters("lines.dlq", connection)
    assert [letter.record.offset for letter in letters.browse(DeadLetterFilter(group="usage"))] == [0, 5, 10, 15]
    letters.close()


def test_frames_of_records_from_anywhere_become_typed(spark: SparkSession, tmp_path: Path) -> None:
    decoder = Decoder(LINES, url="kafka://127.0.0.1:1", dead_letters=f"sqlite:{tmp_path / 'letters.db'}", group="usage")
    rows = record_rows([b'{"item":"tea","cups":2}', b"junk", None], topic="lines")
    frame = spark.createDataFrame(pa.Table.from_batches([rows]), RECORD)
    decoded = decoded_by(frame, pickle.dumps(decoder))
    assert decoded.schema == decoder.schema
    assert [(row["item"], row["pointer"]) for row in decoded.collect()] == [("tea", 0), (None, 2)]
    letters = open_dead_letters(f"sqlite:{tmp_path / 'letters.db'}")
    assert letters.count(DeadLetterFilter()) == 1
    letters.close()
