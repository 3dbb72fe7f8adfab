"""Late rows are held back, all of them and nothing else, whatever happens in between."""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.late.gate import OnTimeGate, dropped_late
from tests.seeds import seed_of
from tests.spark.time.batches import START, Batches, Collected, at, query_of, seconds

SCHEMA = "id int, key string, at timestamp"
Event = dict[str, Any]


def event(number: int, when: float | None, key: str = "a") -> Event:
    return {"id": number, "key": key, "at": None if when is None else at(when)}


def ids(rows: Iterable[Any]) -> list[int]:
    return sorted(row.id for row in rows)


def late_by_hand(batches: Sequence[Sequence[tuple[int, float]]], grace: float, end_of: Any) -> set[int]:
    """The definition, word for word: all windows of a row ended by the latest time of batches before, less grace."""
    latest, late = -math.inf, set()
    for batch in batches:
        late |= {number for number, when in batch if end_of(when) <= latest - grace}
        latest = max([latest, *(when for _, when in batch)])
    return late


def counts(frame: DataFrame) -> DataFrame:
    return frame.groupBy(F.window("at", "10 seconds"), "key").agg(
        F.count("*").alias("n"), F.collect_list("id").alias("ids")
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["tumbling", "session", "none"])
def test_on_time_and_late_rows_are_all_rows_and_spark_drops_none(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    rng = random.Random(seed_of())
    feed = Batches(spark, tmp_path / "in", SCHEMA, partitions=2)
    made, number = [], 0
    for step in range(5):
        batch = [(number + i, rng.uniform(step * 8 - 30, step * 8 + 8)) for i in range(20)]
        number += 20
        made.append(batch)
        feed.put([event(i, t) for i, t in batch[:7]], [event(i, t) for i, t in batch[7:]])
    how: dict[str, Any] = {"tumbling": {"window": "10 seconds"}, "session": {"gap": "5 seconds"}, "none": {}}[kind]
    ends = {"tumbling": lambda t: t // 10 * 10 + 10, "session": lambda t: t + 5, "none": lambda t: t}
    gate = OnTimeGate("late", "at", grace="4 seconds", side=str(tmp_path / "side"), **how)
    on_time = gate.apply(feed.stream())
    assert gate.is_in(on_time)
    if kind == "tumbling":
        result = on_time.groupBy(F.window("at", "10 seconds")).agg(F.collect_list("id").alias("ids"))
    elif kind == "session":
        result = on_time.groupBy(F.session_window("at", "5 seconds"), "key").agg(F.collect_list("id").alias("ids"))
    else:
        result = on_time.dropDuplicates(["id", "at"]).select(F.array("id").alias("ids"))
    collected = Collected(tmp_path / "ck", [gate])
    with pytest.raises(StreamingQueryException):
        collected.run(result, fail_at=3)
    collected.run(result)
    # What is still open when the input ends is closed by one row that comes much later.
    feed.put([event(number, 10_000)], [])
    collected.run(result)
    late = late_by_hand(made, 4, ends[kind])
    assert 10 < len(late) < number - 10
    assert ids(collected.late) == sorted(late)
    on_time_ids = sorted(i for row in collected.rows for i in row.ids if i != number)
    assert on_time_ids == sorted(set(range(number)) - late)
    assert collected.dropped == 0


def test_a_row_in_several_windows_is_late_when_the_last_of_them_has_closed(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", SCHEMA)
    feed.put([event(0, 101)])
    feed.put([event(1, 79), event(2, 84.999), event(3, 85), event(4, 95)])
    gate = OnTimeGate(
        "hops", "at", window="20 seconds", slide="5 seconds", grace="1 second", side=str(tmp_path / "side")
    )
    hops = (
        gate.apply(feed.stream()).groupBy(F.window("at", "20 seconds", "5 seconds")).agg(F.collect_set("id").alias("i"))
    )
    collected = Collected(tmp_path / "ck", [gate])
    collected.run(hops)
    # The watermark is 100: the last window of 84.999 ends right there, and has closed; that of 85 ends at 105.
    held = [row.id for row in collected.late if len(row.late_windows) == 4]
    assert sorted(held) == [1, 2]


def test_every_window_has_each_of_its_rows_or_is_named_with_the_late_row(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    feed = Batches(spark, tmp_path / "in", SCHEMA, partitions=2)
    made: dict[int, float] = {}
    for step in range(5):
        batch = {len(made) + i: round(rng.uniform(step * 8 - 30, step * 8 + 8), 3) for i in range(20)}
        made |= batch
        rows = [event(*each) for each in batch.items()]
        feed.put(rows[:7], rows[7:])
    gate = OnTimeGate(
        "hops",
        "at",
        window="20 seconds",
        slide="5 seconds",
        offset="2 seconds",
        grace="4 seconds",
        side=str(tmp_path / "s"),
    )
    hops = F.window("at", "20 seconds", "5 seconds", "2 seconds")
    result = gate.apply(feed.stream()).groupBy(hops).agg(F.collect_list("id").alias("ids"))
    collected = Collected(tmp_path / "ck", [gate])
    with pytest.raises(StreamingQueryException):
        collected.run(result, fail_at=3)
    collected.run(result)
    feed.put([event(len(made), 10_000)], [])
    collected.run(result)
    counted = [(number, seconds(row.window.end)) for row in collected.rows for number in row.ids]
    missed = [(row.id, seconds(window.end)) for row in collected.late for window in row.late_windows]
    wanted = [(number, end) for number, when in made.items() for end in range(-998, 1_000, 5) if end - 20 <= when < end]
    assert sorted(counted + missed) == sorted(wanted)
    partly = {number for number, _ in counted} & {number for number, _ in missed}
    assert partly, "some rows came in time for some of their windows only"
    assert all(
        seconds(window.end) - seconds(window.start) == 20 for row in collected.late for window in row.late_windows
    )


def test_rows_without_a_time_are_held_back_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", SCHEMA)
    feed.put([event(0, 5), event(1, None), event(2, None)])
    gate = OnTimeGate("nulls", "at", window="10 seconds", side=str(tmp_path / "side"))
    found: list[tuple[int, int]] = []

    def look(batch: DataFrame, batch_id: int) -> None:
        batch.collect()
        query_id = query_of(batch)
        held = gate.staged(batch.sparkSession, query_id, batch_id)
        if held is not None:
            found.append((held.rows, held.without_time))
            assert [row.at for row in held.frame.collect()] == [None, None]
        gate.finish(query_id, batch_id)

    writer = gate.apply(feed.stream()).writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / "ck"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert found == [(2, 2)]


def test_a_frame_that_is_evaluated_in_several_ways_gives_its_late_rows_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Batches(spark, tmp_path / "in", SCHEMA, partitions=2)
    feed.put([event(0, 100)], [event(1, 100)])
    feed.put([event(2, 1), event(3, 1), event(4, 99)], [event(2, 1), event(3, 1)])
    gate = OnTimeGate("often", "at", side=str(tmp_path / "side"), grace="10 seconds")
    collected = Collected(tmp_path / "ck", [gate])

    def before(batch_id: int, batch: DataFrame) -> None:
        batch.coalesce(1).collect()
        batch.count()
        if batch_id == 1:
            batch.limit(1).collect()

    collected.run(gate.apply(feed.stream()), before)
    assert ids(collected.late) == [2, 2, 3, 3]
    assert ids(collected.rows) == [0, 1, 4]


def test_partitions_that_one_task_takes_after_another_are_all_kept(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", SCHEMA, partitions=2)
    feed.put([event(0, 100)], [event(1, 100)])
    feed.put([event(2, 1)], [event(2, 1)])
    gate = OnTimeGate("cut", "at", side=str(tmp_path / "side"))
    collected = Collected(tmp_path / "ck", [gate])
    collected.run(gate.apply(feed.stream()).coalesce(1))
    assert ids(collected.late) == [2, 2]


def test_late_rows_of_a_batch_that_a_target_had_already_are_still_there(spark: SparkSession, tmp_path: Path) -> None:
    """A run dies when the batch was delivered, and its late rows were not. The next run does not evaluate it again."""
    feed = Batches(spark, tmp_path / "in", SCHEMA)
    feed.put([event(0, 100)])
    feed.put([event(1, 1), event(2, 101)])
    feed.put([event(3, 200), event(4, 2)])
    gate = OnTimeGate("again", "at", side=str(tmp_path / "side"))
    on_time, late, delivered = gate.apply(feed.stream()), collections.Counter[int](), set[int]()

    def deliver(batch: DataFrame, batch_id: int) -> None:
        if batch_id not in delivered:
            batch.collect()
            delivered.add(batch_id)
            if batch_id == 1:
                raise RuntimeError("dies here")
        query_id = query_of(batch)
        held = gate.staged(batch.sparkSession, query_id, batch_id)
        late.update(row.id for row in (held.frame.collect() if held is not None else []))
        gate.finish(query_id, batch_id)

    writer = on_time.writeStream.foreachBatch(deliver).option("checkpointLocation", str(tmp_path / "ck"))
    with pytest.raises(StreamingQueryException):
        writer.trigger(availableNow=True).start().awaitTermination()
    writer.trigger(availableNow=True).start().awaitTermination()
    assert late == {1: 1, 4: 1}


def test_nothing_is_left_in_the_folder_but_the_watermarks(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", SCHEMA)
    for step in range(3):
        feed.put([event(step, step * 10), event(10 + step, 0)])
    gate = OnTimeGate("clean", "at", side=str(tmp_path / "side"), grace="1500 milliseconds")
    collected = Collected(tmp_path / "ck", [gate])
    collected.run(gate.apply(feed.stream()))
    assert [file.name for file in (tmp_path / "side").rglob("*") if file.is_file()] == ["watermarks.json"]
    assert collected.query is not None
    assert gate.watermark_ms(str(collected.query.id), 3) == START.timestamp() * 1_000 + 18_500


def test_a_gate_in_an_old_query_needs_its_watermark(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", SCHEMA)
    feed.put([event(0, 100)])
    Collected(tmp_path / "ck").run(feed.stream().withWatermark("at", "0 seconds"))
    feed.put([event(1, 50)])
    gate = OnTimeGate("new", "at", side=str(tmp_path / "side"))
    collected = Collected(tmp_path / "ck", [gate])
    on_time = gate.apply(feed.stream())
    with pytest.raises(StreamingQueryException, match="has no watermark for batch 1"):
        collected.run(on_time)
    assert collected.query is not None
    gate.adopt(str(collected.query.id), 1, 1_767_225_600_000 + 60_000)
    collected.run(on_time)
    assert ids(collected.late) == [1]


def test_without_a_gate_what_spark_dropped_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", SCHEMA)
    for number, when in enumerate([100.0, 101, 5, 6]):
        feed.put([event(number, when)])
    collected = Collected(tmp_path / "ck")
    collected.run(counts(feed.stream().withWatermark("at", "1 second")))
    assert collected.query is not None
    assert sum(dropped_late(progress) for progress in collected.query.recentProgress) == 2


def test_two_gates_in_one_query_hold_back_their_own_rows(spark: SparkSession, tmp_path: Path) -> None:
    left, right = (Batches(spark, tmp_path / side, SCHEMA) for side in ("left", "right"))
    for step, (here, there) in enumerate([(100, 10), (120, 20), (50, 15)]):
        left.put([event(step, here)])
        right.put([event(10 + step, there)])
    gates = [OnTimeGate(f"gate{i}", "at", grace="1 second", side=str(tmp_path / "side")) for i in range(2)]
    frames = [gate.apply(feed.stream()) for gate, feed in zip(gates, (left, right), strict=True)]
    assert not gates[0].is_in(frames[1])
    both = frames[0].union(frames[1])
    assert all(gate.is_in(both) for gate in gates)
    collected = Collected(tmp_path / "ck", gates)
    collected.run(both)
    assert ids(collected.late) == [2, 12]
    assert ids(collected.rows) == [0, 1, 10, 11]


def test_a_batch_frame_comes_back_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1,)], "id int").withColumn("at", F.current_timestamp())
    gate = OnTimeGate("all", "at", side=str(tmp_path))
    assert gate.apply(frame) is frame
    with pytest.raises(ConfigError, match="already applied to a frame"):
        gate.apply(frame)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window": "10 secs"}, "must be a duration"),
        ({"window": "1 month"}, "use days"),
        ({"window": "0 seconds"}, "must be positive"),
        ({"window": "5 seconds", "slide": "10 seconds"}, "belong to no window"),
        ({"slide": "10 seconds"}, "need the size of the window"),
        ({"gap": "5 seconds", "window": "1 minute"}, "gap is for session windows"),
        ({"grace": 5}, "must be text"),
        ({"name": "a/b"}, "is not allowed"),
        ({"side": ""}, "needs a folder"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OnTimeGate(**({"name": "gate", "column": "at", "side": "/nowhere"} | wrong))


def test_an_event_time_must_be_a_time(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "x")], "id int, at string")
    with pytest.raises(SchemaMismatchError, match="'at' is string"):
        OnTimeGate("gate", "at", side="/nowhere").apply(frame)
    with pytest.raises(SchemaMismatchError, match="the frame has id, at"):
        OnTimeGate("gate", "when", side="/nowhere").apply(frame)
