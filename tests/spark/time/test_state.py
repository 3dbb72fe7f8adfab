"""Stateful functions: what is kept, what timers do, what is refused; without Spark running where it can be."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from penstock.errors import ConfigError, HandlerError, SchemaMismatchError
from penstock.spark.state.context import KeyContext
from penstock.spark.state.stateful_functions import require_an_end, simulate, stateful
from tests.spark.time.batches import START, Batches, Collected, at

SECOND = datetime.timedelta(seconds=1)
TOTAL = StructType([StructField("key", StringType()), StructField("total", DoubleType())])


@dataclasses.dataclass
class Seen:
    count: int
    last: datetime.datetime
    tags: list[str]


class Place(msgspec.Struct, frozen=True):
    x: int
    y: int


def total(key: str, rows: Iterator[Row], ctx: KeyContext) -> Iterator[dict[str, Any]]:
    reached = ctx.state.get(0.0) + sum(row.amount for row in rows)
    ctx.state.put(reached)
    yield {"key": key, "total": reached}


def test_a_function_finds_what_it_kept_of_its_key() -> None:
    simulated = simulate(total, TOTAL, state=float)
    assert simulated.rows("a", [{"amount": 1}, {"amount": 2}]) == [Row(key="a", total=3.0)]
    assert simulated.rows("b", [{"amount": 5}]) == [Row(key="b", total=5.0)]
    assert simulated.rows("a", [{"amount": 4}]) == [Row(key="a", total=7.0)]


def test_values_lists_and_maps_are_kept_by_name() -> None:
    def function(key: str, rows: Iterator[Row], ctx: KeyContext) -> Iterator[tuple[str, float]]:
        for row in rows:
            ctx.list("amounts").append(row.amount)
            ctx.map("by_place").put(Place(row.amount % 2, 0), ctx.map("by_place").get(Place(row.amount % 2, 0), 0) + 1)
            ctx.value("seen").put(Seen(row.amount, START, ["x"]))
        assert ctx.value("seen").get().last == START
        assert Place(7, 7) not in ctx.map("by_place")
        ctx.map("by_place").delete(Place(1, 0))
        yield key, sum(ctx.list("amounts"))
        yield "places", sum(count for place, count in ctx.map("by_place").items() if place == Place(0, 0))
        if sum(ctx.list("amounts")) > 10:
            ctx.list("amounts").replace([])
            ctx.value("seen").delete()
            ctx.map("by_place").clear()

    simulated = simulate(
        function, TOTAL, values={"seen": Seen}, lists={"amounts": int}, maps={"by_place": (Place, int)}
    )
    assert [row.total for row in simulated.rows("a", [{"amount": 2}, {"amount": 3}])] == [5, 1]
    assert [row.total for row in simulated.rows("a", [{"amount": 6}])] == [11, 2]
    assert [row.total for row in simulated.rows("a", [{"amount": 1}])] == [1, 0]


def test_timers_come_with_the_watermark() -> None:
    def arrived(key: str, rows: Iterator[Row], ctx: KeyContext) -> None:
        for row in rows:
            ctx.timer(row.at + 10 * SECOND)
            ctx.timer(row.at + 20 * SECOND)
        ctx.cancel(START + 20 * SECOND)
        assert ctx.timers()[0] == START + 10 * SECOND

    def come(key: str, when: datetime.datetime, ctx: KeyContext) -> Iterator[tuple[str, float]]:
        assert ctx.watermark >= when
        yield key, (when - START).total_seconds()

    simulated = simulate(arrived, TOTAL, timers="event", on_timer=come, time="at")
    assert simulated.rows("a", [Row(at=START), Row(at=START + 5 * SECOND)]) == []
    assert simulated.watermark(START + 9 * SECOND) == []
    assert [row.total for row in simulated.watermark(START + 15 * SECOND)] == [10, 15]
    assert [row.total for row in simulated.watermark(START + 60 * SECOND)] == [25]


def test_timers_come_with_the_clock() -> None:
    def arrived(key: str, rows: Iterator[Row], ctx: KeyContext) -> None:
        ctx.timer(ctx.now + 5 * SECOND)

    def come(key: str, when: datetime.datetime, ctx: KeyContext) -> Iterator[tuple[str, float]]:
        yield key, 1.0

    simulated = simulate(arrived, TOTAL, timers="processing", on_timer=come)
    assert simulated.clock(START) == []
    simulated.rows("a", [Row(x=1)])
    assert simulated.clock(START + 4 * SECOND) == []
    assert simulated.clock(START + 6 * SECOND) == [Row(key="a", total=1.0)]


def test_a_session_ends_when_its_timer_comes_and_nothing_came_since() -> None:
    """The recipe of docs/spark/state.md."""

    def arrived(session: str, events: Iterator[Row], ctx: KeyContext) -> None:
        last = max(event.at for event in events)
        ctx.state.put(max(last, ctx.state.get(last)))
        ctx.timer(last + 30 * SECOND)

    def silent(session: str, when: datetime.datetime, ctx: KeyContext) -> Iterator[tuple[str, float]]:
        if ctx.state.get() + 30 * SECOND <= when:
            yield session, (ctx.state.get() - START).total_seconds()
            ctx.state.delete()

    simulated = simulate(arrived, TOTAL, state=datetime.datetime, timers="event", on_timer=silent, time="at")
    simulated.rows("a", [Row(at=START + SECOND)])
    simulated.rows("a", [Row(at=START + 20 * SECOND)])
    assert simulated.watermark(START + 40 * SECOND) == []
    assert simulated.watermark(START + 60 * SECOND) == [Row(key="a", total=20.0)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"key": "a", "sum": 1.0}, "no column sum; the columns are key, total"),
        ({"key": 5, "total": 1.0}, "output.key: 5 must be a string"),
        ({"key": "a", "total": "1"}, "total"),
        (("a",), "1 values for the columns key, total"),
        (7, "7 must be a dict"),
    ],
)
def test_output_that_does_not_fit_is_refused_by_name(given: Any, message: str) -> None:
    simulated = simulate(lambda key, rows, ctx: [given], TOTAL)
    with pytest.raises(SchemaMismatchError, match=message):
        simulated.rows("a", [])


def test_a_time_without_a_zone_is_refused() -> None:
    schema = StructType([StructField("at", TimestampType())])
    with pytest.raises(SchemaMismatchError, match=r"output\.at: the time .* has no time zone"):
        simulate(lambda key, rows, ctx: [(START.replace(tzinfo=None),)], schema).rows("a", [])


def test_what_was_not_declared_is_not_there() -> None:
    asked: list[str] = []

    def function(key: str, rows: Iterator[Row], ctx: KeyContext) -> None:
        for ask in (lambda: ctx.state, lambda: ctx.list("x"), lambda: ctx.now, lambda: ctx.watermark, ctx.timers):
            with pytest.raises(HandlerError) as error:
                ask()
            asked.append(str(error.value))

    simulate(function, TOTAL).rows("a", [])
    assert [text.partition(":")[2] for text in asked[:2]] == [" declare it with state=", " declare it with lists="]
    assert len(asked) == 5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"timers": "event"}, "must be used together"),
        ({"timers": "daily", "on_timer": print}, "'daily' is not allowed"),
        ({"values": {"state": int}}, "state name 'state'"),
        ({"values": {"a": int}, "lists": {"a": int}}, "state name 'a'"),
        ({"state": "long"}, "is a string"),
        ({"state": object}, "state"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(wrong: dict[str, Any], message: str) -> None:
    time = "at" if wrong.get("timers") == "event" else None
    with pytest.raises(ConfigError, match=message):
        simulate(total, TOTAL, time=time, **wrong)


def test_state_survives_restarts_and_a_batch_that_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    """The state is a dataclass with a time and a list in it, and comes back as it was put."""
    feed = Batches(spark, tmp_path / "in", "key string, amount int, at timestamp")
    made: dict[str, list[int]] = defaultdict(list)
    for step in range(4):
        feed.put([{"key": key, "amount": step + len(key), "at": at(step)} for key in ("a", "bb")])
        for key in ("a", "bb"):
            made[key].append(step + len(key))

    def seen(key: tuple[str, ...], rows: Iterator[Row], ctx: KeyContext) -> Iterator[dict[str, Any]]:
        kept: Seen = ctx.state.get(Seen(0, START - SECOND, []))
        for row in rows:
            assert row.at > kept.last
            kept = Seen(kept.count + row.amount, row.at, [*kept.tags, f"{row.amount}"])
            ctx.map("times").put(row.at, kept)
        ctx.state.put(kept)
        times = sorted((time, each.count) for time, each in ctx.map("times").items())
        assert times[-1] == (kept.last, kept.count)
        yield {"key": key[0], "count": kept.count, "tags": ",".join(kept.tags), "times": len(times)}

    found = stateful(
        feed.stream(),
        ["key"],
        seen,
        "key string, count long, tags string, times int",
        state=Seen,
        maps={"times": (datetime.datetime, Seen)},
        mode="update",
    )
    require_an_end(found, "this")
    collected = Collected(tmp_path / "ck", mode="update")
    with pytest.raises(StreamingQueryException):
        collected.run(found, fail_at=2)
    collected.run(found)
    last = {row.key: row for row in collected.rows}
    for key, amounts in made.items():
        assert last[key]["count"] == sum(amounts)
        assert last[key].tags == ",".join(map(str, amounts))
        assert last[key].times == 4
    assert len(collected.rows) == 8


def test_records_and_maps_in_rows_keys_and_output_are_what_they_are_in_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark itself hands a function dicts for records, and pairs for maps."""
    schema = "id struct<shop: string>, lines array<struct<sku: string, n: int>>, tags map<string, int>"
    feed = Batches(spark, tmp_path / "in", schema)
    feed.put([{"id": {"shop": "x"}, "lines": [{"sku": "a", "n": 2}], "tags": {"red": 1}}])

    def function(key: Row, rows: Iterator[Row], ctx: KeyContext) -> Iterator[Row]:
        for row in rows:
            assert (key.shop, row.id.shop) == ("x", "x")
            ctx.state.put(row)
            kept = ctx.state.get()
            assert kept == row
            yield Row(lines=row.lines, tags=kept.tags | {"more": row.lines[0].n}, id=key)

    columns = feed.stream().schema
    collected = Collected(tmp_path / "ck")
    collected.run(stateful(feed.stream(), "id", function, columns, state=columns))
    assert collected.rows == [Row(id=Row(shop="x"), lines=[Row(sku="a", n=2)], tags={"red": 1, "more": 2})]


def test_timers_in_a_query_come_once(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", "key string, at timestamp")
    feed.put([{"key": "a", "at": at(0)}, {"key": "b", "at": at(3)}])
    feed.put([{"key": "c", "at": at(12)}])
    feed.put([{"key": "c", "at": at(14)}])

    def arrived(key: str, rows: Iterator[Row], ctx: KeyContext) -> None:
        for row in rows:
            ctx.state.put(row.at)
            ctx.timer(row.at + 5 * SECOND)

    def silent(key: str, when: datetime.datetime, ctx: KeyContext) -> Iterator[tuple[str, float]]:
        if ctx.state.get() + 5 * SECOND == when:
            yield key, (when - START).total_seconds()

    with pytest.raises(ConfigError, match="needs a watermark"):
        stateful(feed.stream(), "key", arrived, TOTAL, state=datetime.datetime, timers="event", on_timer=silent)
    frame = feed.stream().withWatermark("at", "0 seconds")
    found = stateful(frame, "key", arrived, TOTAL, state=datetime.datetime, timers="event", on_timer=silent)
    collected = Collected(tmp_path / "ck")
    collected.run(found)
    feed.put([{"key": "d", "at": at(100)}])
    collected.run(found)
    assert sorted((row.key, row.total) for row in collected.rows) == [("a", 5), ("b", 8), ("c", 19)]


def test_what_counts_by_the_clock_cannot_be_run_once(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", "key string, amount int")
    forgetful = stateful(feed.stream(), "key", total, TOTAL, state=float, ttl="1 hour")
    with pytest.raises(ConfigError, match="a run once would not end"):
        require_an_end(forgetful, "write to spend")
    with pytest.raises(ConfigError, match="ttl follows the clock"):
        stateful(feed.stream(), "key", total, TOTAL, ttl="1 hour", timers="event", on_timer=lambda *_: None)


def test_what_was_not_put_for_long_enough_is_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", "key string, amount int")
    for _ in range(2):
        feed.put([{"key": "a", "amount": 1}])
    found: list[float] = []
    totals = stateful(feed.stream(), "key", total, TOTAL, state=float, ttl="1 millisecond")
    writer = totals.writeStream.foreachBatch(lambda batch, _: found.extend(row.total for row in batch.collect()))
    query = writer.option("checkpointLocation", str(tmp_path / "ck")).start()
    try:
        wait_until(lambda: len(found) >= 2 or not query.isActive, timeout_s=100)
    finally:
        query.stop()
    assert found == [1.0, 1.0]


def wait_until(happened: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_key_that_is_no_column_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", "key string, amount int")
    with pytest.raises(ConfigError, match="no column 'user' for the key; the frame has key, amount"):
        stateful(feed.stream(), "user", total, StructType([StructField("x", LongType())]))
    with pytest.raises(ConfigError, match="use append or update"):
        stateful(feed.stream(), "key", total, TOTAL, mode="complete")
