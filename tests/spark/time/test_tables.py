"""Where changes have led to, what each of them changed, and the rows inside Debezium's envelopes."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import SparkRuntimeException, StreamingQueryException
from pyspark.sql import SparkSession

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.tables import as_table, changes, debezium
from tests.seeds import seed_of
from tests.spark.time.batches import START, Batches, Collected

RECORDS = "key string, value string, partition int, pointer long"
TS_MS = int(START.timestamp() * 1_000)


@dataclasses.dataclass
class User:
    id: int
    name: str
    city: str | None = None


def envelope(op: str, before: Any, after: Any, *, wrapped: bool = False) -> str:
    inside = {"before": before, "after": after, "op": op, "ts_ms": TS_MS + 5, "source": {"ts_ms": TS_MS}}
    return json.dumps({"schema": {}, "payload": inside} if wrapped else inside)


def test_a_table_is_the_last_row_of_each_key(spark: SparkSession) -> None:
    rows = [("a", "1", 0, 0), ("b", "2", 1, 0), ("a", "3", 0, 1), ("b", None, 1, 1), ("c", "4", 0, 2)]
    table = as_table(spark.createDataFrame(rows, RECORDS), "key")
    assert {row.key: row.value for row in table.collect()} == {"a": "3", "c": "4"}
    assert table.columns == ["key", "value", "partition", "pointer"]
    with pytest.raises(SchemaMismatchError, match="no column 'id'"):
        as_table(table, "id")


def test_changes_lead_to_the_table_and_tell_what_was_there_before(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    feed = Batches(spark, tmp_path / "in", RECORDS)
    table: dict[str, str] = {}
    expected: list[tuple[str, str, str | None, str | None]] = []
    for batch in range(3):
        rows = []
        for number in range(12):
            key, value = rng.choice("abc"), rng.choice(["x", "y", None])
            rows.append({"key": key, "value": value, "partition": 0, "pointer": batch * 12 + number})
            before = table.get(key)
            if before != value:
                expected.append((key, "c" if before is None else "d" if value is None else "u", before, value))
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
        feed.put(rows)
    found = changes(feed.stream(), "key")
    collected = Collected(tmp_path / "ck")
    with pytest.raises(StreamingQueryException):
        collected.run(found, fail_at=1)
    collected.run(found)
    seen = [(row.key, row.op, row.before and row.before.value, row.after and row.after.value) for row in collected.rows]
    for key in "abc":
        assert [change for change in seen if change[0] == key] == [change for change in expected if change[0] == key]


def test_the_rows_of_a_database_come_out_of_their_envelopes(spark: SparkSession) -> None:
    ann, bob = {"id": 1, "name": "ann", "city": "Oslo"}, {"id": 2, "name": "bob", "city": None}
    values = [
        ('{"id": 1}', envelope("r", None, ann)),
        ('{"id": 2}', envelope("c", None, bob, wrapped=True)),
        ('{"id": 1}', envelope("u", ann, ann | {"city": "Rome"}, wrapped=True)),
        ('{"payload": {"id": 2}}', envelope("d", None, None)),
        ('{"id": 2}', None),
        ('{"id": 3}', "no envelope"),
    ]
    frame = spark.createDataFrame([(key, value, 0, at) for at, (key, value) in enumerate(values)], RECORDS)
    rows = debezium(frame, User, key=["id"])
    assert [
        (row.id, row.name, row.city, row.op, row.deleted, row.key) for row in rows.orderBy("pointer").collect()
    ] == [
        (1, "ann", "Oslo", "r", False, '{"id": 1}'),
        (2, "bob", None, "c", False, '{"id": 2}'),
        (1, "ann", "Rome", "u", False, '{"id": 1}'),
        (2, None, None, "d", True, '{"payload": {"id": 2}}'),
        (3, None, None, None, False, '{"id": 3}'),
    ]
    assert rows.where("op = 'u'").selectExpr("unix_millis(changed_at)").collect()[0][0] == TS_MS
    table = as_table(rows.where("op is not null"), "id")
    assert [(row.id, row.name, row.city) for row in table.collect()] == [(1, "ann", "Rome")]


def test_a_truncate_deletes_the_earlier_rows_of_its_partition(spark: SparkSession) -> None:
    ann, bob, cid = ({"id": number, "name": name} for number, name in ((1, "ann"), (2, "bob"), (3, "cid")))
    records = [
        ('{"id":1}', envelope("c", None, ann), 0, 0),
        ('{"id":2}', envelope("c", None, bob), 0, 1),
        ('{"id":3}', envelope("c", None, cid), 1, 0),
        ('{"__op":"t"}', envelope("t", None, None), 0, 2),
        (None, envelope("c", None, None), 0, 3),
        ('{"id":2}', envelope("c", None, bob | {"city": "Rome"}), 0, 4),
    ]
    frame = spark.createDataFrame(records, RECORDS)
    rows = debezium(frame, User, key=["id"]).where("name is not null or op = 't'")
    assert [(row.id, row.city) for row in as_table(rows, "id").orderBy("id").collect()] == [(2, "Rome"), (3, None)]
    assert as_table(rows, "id").columns == [name for name in rows.columns if name != "deleted"]
    with pytest.raises(SparkRuntimeException, match="keep the column `partition`"):
        as_table(rows.drop("partition"), "id").collect()
    plain = spark.createDataFrame([("a", "1", 0, 0), ("b", "2", 1, 7), ('{"__op":"t"}', "{}", 0, 1)], RECORDS)
    assert [row.key for row in as_table(plain, "key").collect()] == ["b"], "the flat form, by its key"


def test_a_truncate_stops_a_query_of_changes(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", RECORDS)
    feed.put([{"key": '{"__op":"t"}', "value": envelope("t", None, None), "partition": 0, "pointer": 0}])
    found = changes(debezium(feed.stream(), User, key=["id"]), "id")
    with pytest.raises(StreamingQueryException, match="the table was truncated"):
        Collected(tmp_path / "ck").run(found)


def test_what_is_no_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    stream = Batches(spark, tmp_path / "in", RECORDS).stream()
    with pytest.raises(ConfigError, match="a stream has no last row"):
        as_table(stream, "key")
    with pytest.raises(ConfigError, match="has no fields"):
        debezium(stream, int)
