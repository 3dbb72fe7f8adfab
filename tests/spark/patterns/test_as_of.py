"""Each event sees the row of the table that was there when it happened."""

from __future__ import annotations

import datetime
import json
import random
import sqlite3
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from penstock import Connection
from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.late.gate import OnTimeGate
from penstock.spark.patterns import enrich_as_of
from penstock.spark.patterns.as_of import VERSIONS, AsOf, version_type
from penstock.spark.patterns.ordering import WAITING
from penstock.spark.reading import read_batch, read_stream
from penstock.spark.state.stateful_functions import simulate
from penstock.spark.tables import debezium
from penstock.tables import Capture
from tests.seeds import seed_of
from tests.spark.patterns.models import Change, as_of
from tests.spark.time.batches import START, Batches, Collected, at, seconds
from tests.tables.captured import wait_until

CLICKS, USERS = "id int, user string, at timestamp", "name string, city string, changed timestamp, pointer long"
CLICK = StructType([StructField("id", IntegerType()), StructField("at", TimestampType())])
CITY = StructType([StructField("city", StringType())])
SECOND = datetime.timedelta(seconds=1)


def test_rows_meet_the_version_of_their_time_whatever_comes_first(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    clicks, users = Batches(spark, tmp_path / "c", CLICKS), Batches(spark, tmp_path / "u", USERS)
    made: list[tuple[int, str, int, int]] = []
    changes: dict[str, list[tuple[int, Change]]] = defaultdict(list)
    for batch in range(5):
        rows = [(batch * 8 + i, rng.choice("abcd"), batch * 10 + rng.randrange(-14, 10)) for i in range(8)]
        made += [(number, user, when, batch) for number, user, when in rows]
        clicks.put([{"id": number, "user": user, "at": at(when)} for number, user, when in rows])
        changed = []
        for number in range(5):
            name, when = rng.choice("abc"), batch * 10 + rng.randrange(-25, 14)
            city = rng.choice(["Oslo", "Rome", "Lima", None])
            changes[name].append((batch, (when, city)))
            changed.append({"name": name, "city": city, "changed": at(when), "pointer": batch * 5 + number})
        users.put(rng.sample(changed, len(changed)))
    clicks.put([{"id": -1, "user": "end", "at": at(1_000)}])
    users.put([{"name": None, "city": "of nobody", "changed": at(0), "pointer": 1_000}])
    gate = OnTimeGate("late", "at", grace="8 seconds", side=str(tmp_path / "side"))
    found = enrich_as_of(
        gate.apply(clicks.stream()), users.stream(), {"user": "name"}, "at", "changed", columns=["city"]
    )
    assert found.columns == ["id", "user", "at", "city"]
    collected = Collected(tmp_path / "ck", [gate])
    with pytest.raises(StreamingQueryException):
        collected.run(found, fail_at=2)
    collected.run(found)

    expected, late = set(), set()
    watermark = -1_000
    waiting: list[tuple[int, str, int]] = []
    for batch in range(7):
        for number, user, when, arrived in made:
            if arrived == batch:
                if when <= watermark:
                    late.add(number)
                else:
                    waiting.append((number, user, when))
        for number, user, when in waiting:
            if when <= watermark:
                known = [change for arrived, change in changes[user] if arrived <= batch]
                expected.add((number, user, as_of(known, when)))
        waiting = [row for row in waiting if row[2] > watermark]
        times = [when for _, _, when, arrived in made if arrived <= batch]
        watermark = max(times) - 8 if batch < 5 else 900
    assert {row.id for row in collected.late} == late
    left = [(row.id, row.user, row.city) for row in collected.rows if row.id != -1]
    assert len(left) == len(expected)
    assert set(left) == expected
    assert collected.dropped == 0


@pytest.mark.parametrize("keeps_unmatched", [True, False])
def test_state_keeps_only_the_versions_that_rows_can_still_need(keeps_unmatched: bool) -> None:
    joining = AsOf("at", None, ["id", "at", "city"], keeps_unmatched=keeps_unmatched)
    simulated = simulate(
        joining.arrived,
        StructType([*CLICK.fields, *CITY.fields]),
        lists={WAITING: CLICK, VERSIONS: version_type(CITY)},
        timers="event",
        on_timer=joining.due,
        time="_time",
    )
    places = iter(range(1_000))

    def change(when: float | None, city: str | None) -> Row:
        changed = None if when is None else START + when * SECOND
        row = None if city is None else Row(city=city)
        return Row(_time=None, _event=None, _place=next(places), _changed=changed, _row=row)

    def click(number: int, when: float | None) -> Row:
        moment = None if when is None else START + when * SECOND
        return Row(_time=moment, _event=Row(id=number, at=moment), _place=None, _changed=None, _row=None)

    def cities(rows: list[Row]) -> dict[int, str | None]:
        return {row.id: row.city for row in rows}

    def versions() -> list[str | None]:
        kept = simulated._tester.peekListState(VERSIONS, "ann")
        return [None if version[1] is None else version[1][0] for version in kept]

    def wanted(given: dict[int, str | None]) -> dict[int, str | None]:
        return given if keeps_unmatched else {number: city for number, city in given.items() if city is not None}

    assert cities(simulated.rows("ann", [click(0, None), change(None, "Bonn")])) == wanted({0: None})
    simulated.rows("ann", [change(10, "Oslo"), change(20, "Oslo"), change(30, "Rome"), click(1, 5), click(2, 25)])
    assert versions() == ["Bonn", "Oslo", "Oslo", "Rome"]
    assert cities(simulated.watermark(START + 24 * SECOND)) == {1: "Bonn"}
    assert versions() == ["Oslo", "Rome"], "those before the watermark are dropped, but for the last"
    simulated.rows("ann", [change(28, "Lima"), click(3, 29), click(4, 30)])
    assert versions() == ["Oslo", "Rome", "Lima"], "Lima followed Rome in the topic, so it applies from Rome's time"
    assert cities(simulated.watermark(START + 40 * SECOND)) == {2: "Oslo", 3: "Oslo", 4: "Lima"}
    simulated.rows("ann", [change(35, None), click(5, 41)])
    assert versions() == [], "no row is what unknown keys have"
    simulated.rows("ann", [change(50, "Bern"), click(6, 60)])
    assert cities(simulated.watermark(START + 70 * SECOND)) == wanted({5: None, 6: "Bern"})
    simulated.rows("ann", [change(80, "Rome"), change(90, "Oslo"), change(100, None)])
    assert simulated.watermark(START + 110 * SECOND) == []
    simulated.rows("ann", [change(120, "Kyiv")])
    assert versions() == ["Kyiv"], "pruned without a row of the stream"


def test_a_captured_database_table_is_joined_as_of_its_changes(spark: SparkSession, tmp_path: Path) -> None:
    clicks, users = (
        Batches(spark, tmp_path / "c", "id int, user int, at timestamp"),
        Batches(spark, tmp_path / "u", "key string, value string, partition int, pointer long"),
    )

    def envelope(op: str, name: str | None, seconds: int) -> str:
        row = None if name is None else {"id": 7, "name": name}
        ts_ms = int(START.timestamp() + seconds) * 1_000
        return json.dumps({"before": None, "after": row, "op": op, "source": {"ts_ms": ts_ms}})

    told = [envelope("r", "Ada", 10), envelope("u", "Ann", 20), envelope("d", None, 30), None, "no envelope"]
    users.put([{"key": '{"id":7}', "value": value, "partition": 0, "pointer": n} for n, value in enumerate(told)])
    clicks.put([{"id": when, "user": 7, "at": at(when)} for when in (5, 10, 19, 20, 30)])
    clicks.put([{"id": 100, "user": 8, "at": at(100)}])
    fields = StructType([StructField("id", IntegerType()), StructField("name", StringType())])
    for how, missing in (("left", {5: None, 30: None}), ("inner", {})):
        found = enrich_as_of(
            clicks.stream(),
            debezium(users.stream(), fields, key=["id"]),
            {"user": "id"},
            "at",
            "changed_at",
            how,  # type: ignore[arg-type]
            prefix="user_",
            grace="5 seconds",
        )
        assert found.columns == ["id", "user", "at", "user_name"]
        collected = Collected(tmp_path / f"ck-{how}")
        collected.run(found)
        names = {row.id: row.user_name for row in collected.rows}
        assert names == {10: "Ada", 19: "Ada", 20: "Ann", **missing}
    users.put([{"key": '{"__op":"t"}', "value": envelope("t", None, 40), "partition": 0, "pointer": 9}])
    with pytest.raises(StreamingQueryException, match="the table was truncated"):
        Collected(tmp_path / "ck-left").run(
            enrich_as_of(
                clicks.stream(),
                debezium(users.stream(), fields, key=["id"]),
                {"user": "id"},
                "at",
                "changed_at",
                prefix="user_",
                grace="5 seconds",
            )
        )


def test_clicks_meet_the_rows_of_a_database_that_is_captured_meanwhile(
    spark: SparkSession, tmp_path: Path, connection: Connection, log_url: str
) -> None:
    """As of the times that the database gives its changes, to the millisecond."""
    database = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    database.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
    database.execute("INSERT INTO users VALUES (7, 'Ada')")
    capture = Capture(f"sqlite:{tmp_path / 'shop.db'}", log_url, tables=["users"])
    thread = threading.Thread(target=capture.run)
    thread.start()
    topic = "shop.main.users"

    def captured(records: int) -> None:
        wait_until(lambda: capture.progress.phase == "streaming", "the capture streams")
        wait_until(lambda: connection.open_topic(topic).span(0)[1] >= records, "the change is captured")

    try:
        captured(1)
        database.execute("UPDATE users SET name = 'Ann'")
        captured(2)
        database.execute("DELETE FROM users")
        captured(4)  # with its tombstone
    finally:
        capture.close()
        thread.join()
        database.close()
    fields = StructType([StructField("id", LongType()), StructField("name", StringType())])
    rows = debezium(read_batch(spark, log_url, topic), fields, key=["id"]).orderBy("pointer").collect()
    changes = [(seconds(row.changed_at), None if row.deleted else row.name) for row in rows]
    assert [name for _, name in changes] == ["Ada", "Ann", None]
    times = [when + shift for when, _ in changes for shift in (-0.000_5, 0)]
    clicks = Batches(spark, tmp_path / "in", "id int, user long, at timestamp")
    clicks.put([{"id": number, "user": 7, "at": at(when)} for number, when in enumerate(times)])
    clicks.put([{"id": -1, "user": 8, "at": at(times[-1] + 1_000)}])
    users = debezium(read_stream(spark, log_url, topic), fields, key=["id"])
    collected = Collected(tmp_path / "ck")
    collected.run(
        enrich_as_of(clicks.stream(), users, {"user": "id"}, "at", "changed_at", prefix="u_", grace="9 seconds")
    )
    assert {row.id: row.u_name for row in collected.rows} == {
        number: as_of(changes, when) for number, when in enumerate(times)
    }


def test_a_deletion_without_a_key_stops_the_query(spark: SparkSession, tmp_path: Path) -> None:
    clicks, users = Batches(spark, tmp_path / "c", CLICKS), Batches(spark, tmp_path / "u", f"key string, {USERS}")
    clicks.put([{"id": 1, "user": "ann", "at": at(2)}])
    clicks.put([{"id": 2, "user": "end", "at": at(100)}])
    users.put([{"key": "ann", "name": "ann", "city": "Oslo", "changed": at(0), "pointer": 0}])
    users.put([{"key": "ann", "pointer": 1}])  # the record has no value, so no time either

    def join(table: DataFrame) -> DataFrame:
        return enrich_as_of(clicks.stream(), table, {"user": "name"}, "at", "changed", columns=["city"], grace="1 day")

    with pytest.raises(StreamingQueryException, match="its key, name, is null: fill it from the record's key"):
        Collected(tmp_path / "ck").run(join(users.stream()))
    collected = Collected(tmp_path / "ck2")
    clicks.put([{"id": 3, "user": "ann", "at": at(200_000)}])
    users.put([])
    collected.run(join(users.stream().withColumn("name", F.coalesce("name", "key"))))
    assert [(row.id, row.city) for row in collected.rows] == [(1, None), (2, None)], "deleted as of its creation"


def test_what_cannot_be_joined_as_of_a_time_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    clicks = Batches(spark, tmp_path / "c", CLICKS).stream()
    users = Batches(spark, tmp_path / "u", USERS).stream()

    def join(stream: DataFrame = clicks, table: DataFrame = users, **changed: Any) -> DataFrame:
        told = {"on": {"user": "name"}, "stream_time": "at", "table_time": "changed", "grace": "1 second"}
        return enrich_as_of(stream, table, **(told | changed))

    assert join(columns=["city", "pointer"]).columns == ["id", "user", "at", "city", "pointer"]
    with pytest.raises(ConfigError, match="how='outer' is not allowed"):
        join(how="outer")
    with pytest.raises(ConfigError, match="the changelog is no stream"):
        join(table=spark.createDataFrame([], USERS))
    with pytest.raises(ConfigError, match="rows to enrich are no stream"):
        join(stream=spark.createDataFrame([], CLICKS))
    with pytest.raises(SchemaMismatchError, match="no column 'nick' to join on; the changelog has"):
        join(on={"user": "nick"})
    with pytest.raises(SchemaMismatchError, match="'pointer' of the changelog is bigint: cast one of them"):
        join(on={"user": "pointer"})
    with pytest.raises(SchemaMismatchError, match="no column 'city' of type timestamp for the times of changes"):
        join(table_time="city")
    with pytest.raises(SchemaMismatchError, match="set grace="):
        join(grace=None)
    with pytest.raises(SchemaMismatchError, match="both sides have at: choose others"):
        join(table=users.withColumnRenamed("changed", "at"), table_time="at")
    with pytest.raises(SchemaMismatchError, match="no columns beside its key"):
        join(table=users.select("name", "pointer", F.col("changed").alias("timestamp")), table_time="timestamp")
