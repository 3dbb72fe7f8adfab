"""How the results of two versions differ."""

from __future__ import annotations

import datetime
import random
from collections import Counter

from pyspark.sql import DataFrame, SparkSession

from penstock.spark.values.columns import RECORD
from penstock.spark.versions.comparing import Comparison, Example, compare
from tests.seeds import seed_of

Rows = list[tuple[bytes | None, bytes | None]]


def _topic(spark: SparkSession, rows: Rows, partitions: int = 1) -> DataFrame:
    """Records in this order; each key is in one partition."""
    pointers: Counter[int] = Counter()
    records = []
    for number, (key, value) in enumerate(rows):
        partition = 0 if key is None else sum(key) % partitions
        at = datetime.datetime.fromtimestamp(1_700_000_000 + number, datetime.UTC)
        records.append((key, value, None, "t", partition, pointers[partition], at, "create"))
        pointers[partition] += 1
    return spark.createDataFrame(records, RECORD)


def test_tables_are_compared_by_the_last_value_of_each_key(spark: SparkSession) -> None:
    old = _topic(spark, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"3"), (b"gone", b"x"), (b"gone", None)])
    new = _topic(spark, [(b"a", b"2"), (b"b", b"9"), (b"d", b"4"), (b"c", b"0"), (b"c", None)])
    assert compare(old, new, "key") == Comparison(
        "key",
        same=1,
        only_old=1,
        only_new=1,
        different=1,
        examples=(
            Example("only_old", b"c", b"3", None),
            Example("only_new", b"d", None, b"4"),
            Example("different", b"b", b"1", b"9"),
        ),
    )


def test_records_are_compared_as_often_as_they_are_there(spark: SparkSession) -> None:
    old = _topic(spark, [(None, b"x"), (None, b"x"), (b"k", b"x"), (None, b"y"), (None, None)])
    new = _topic(spark, [(b"k", b"x"), (None, b"x"), (None, None), (b"k", b"x"), (b"j", b"y")])
    found = compare(old, new, "record")
    assert (found.same, found.only_old, found.only_new, found.different) == (3, 2, 2, 0)
    assert {(each.kind, each.key, each.old, each.new) for each in found.examples} == {
        ("only_old", None, b"x", None),
        ("only_old", None, b"y", None),
        ("only_new", b"k", None, b"x"),
        ("only_new", b"j", None, b"y"),
    }


def test_the_same_in_another_order_is_the_same(spark: SparkSession) -> None:
    rows: Rows = [(b"k%d" % (number % 7), b"%d" % number) for number in range(50)]
    found = compare(_topic(spark, rows), _topic(spark, rows[::-1]), "record")
    assert found.is_same
    assert found.same == 50


def test_a_key_whose_partition_has_changed_is_decided_by_time(spark: SparkSession) -> None:
    one = _topic(spark, [(b"b", b"old"), (b"b", b"older")])
    moved = one.withColumn("partition", one.pointer.cast("int")).withColumn("pointer", one.pointer * 0)
    assert compare(moved, _topic(spark, [(b"b", b"older")]), "key").is_same


def test_any_two_topics_are_counted_as_python_counts_them(spark: SparkSession) -> None:
    chance = random.Random(seed_of())

    def rows() -> Rows:
        return [
            (b"%d" % chance.randrange(30), None if chance.random() < 0.2 else b"%d" % chance.randrange(3))
            for _ in range(150)
        ]

    old, new = rows(), rows()
    by_key = compare(_topic(spark, old, 3), _topic(spark, new, 3), "key")
    last_old = {key: value for key, value in dict(old).items() if value is not None}
    last_new = {key: value for key, value in dict(new).items() if value is not None}
    both = last_old.keys() & last_new.keys()
    assert by_key.same == sum(last_old[key] == last_new[key] for key in both)
    assert by_key.different == sum(last_old[key] != last_new[key] for key in both)
    assert by_key.only_old == len(last_old.keys() - last_new.keys())
    assert by_key.only_new == len(last_new.keys() - last_old.keys())

    by_record = compare(_topic(spark, old, 3), _topic(spark, new, 3), "record")
    count_old, count_new = Counter(old), Counter(new)
    assert by_record.same == (count_old & count_new).total()
    assert by_record.only_old == (count_old - count_new).total()
    assert by_record.only_new == (count_new - count_old).total()
