"""Two tables, joined: what the changes lead to is what a database would answer after every batch."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.patterns import join_tables
from penstock.spark.tables import as_changelog, debezium
from tests.seeds import seed_of
from tests.spark.time.batches import Batches, Collected

ORDERS = "order int, customer string, cents int, pointer long"
CUSTOMERS = "id string, city string, pointer long"
BATCHES, A_BATCH = 5, 8

Table = dict[Any, tuple[Any, ...]]


def joined_with_customers(orders: Table, customers: Table, how: str) -> Table:
    """The plain model: orders by number, each with the city of its customer."""
    rows = {number: (*order, *customers.get(order[0], (None,))) for number, order in orders.items()}
    return rows if how == "left" else {number: row for number, row in rows.items() if orders[number][0] in customers}


@pytest.mark.parametrize("how", ["inner", "left"])
def test_orders_follow_their_customers_and_their_references(spark: SparkSession, tmp_path: Path, how: Any) -> None:
    rng = random.Random(seed_of())
    orders, customers = Batches(spark, tmp_path / "o", ORDERS), Batches(spark, tmp_path / "c", CUSTOMERS)
    all_orders: Table = {}
    all_customers: Table = {}
    expected = []
    for batch in range(BATCHES):
        changed_orders: list[dict[str, Any]] = []
        changed_customers: list[dict[str, Any]] = []
        for number in range(batch * A_BATCH, (batch + 1) * A_BATCH):
            order, name = rng.randrange(6), rng.choice("abc")
            if rng.random() < 0.25:
                all_orders.pop(order, None)
                changed_orders.append({"order": order, "pointer": number})
            else:
                customer, cents = rng.choice(["a", "b", "c", None]), rng.randrange(3)
                all_orders[order] = (customer, cents)
                changed_orders.append({"order": order, "customer": customer, "cents": cents, "pointer": number})
            if rng.random() < 0.4:
                city = rng.choice(["Oslo", "Rome", None])
                all_customers.pop(name, None)
                if city is not None:
                    all_customers[name] = (city,)
                changed_customers.append({"id": name, "city": city, "pointer": number})
        orders.put(rng.sample(changed_orders, len(changed_orders)))
        customers.put(changed_customers)
        expected.append(joined_with_customers(all_orders, all_customers, how))
    # An order with neither customer nor cents would look deleted.
    found = join_tables(orders.stream(), customers.stream(), {"customer": "id"}, how, key="order")
    assert found.columns == ["order", "customer", "cents", "city", "deleted"]
    collected = Collected(tmp_path / "ck")
    with pytest.raises(StreamingQueryException):
        collected.run(found, fail_at=2)
    collected.run(found)
    assert after_each_batch(collected, keys=1) == expected


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_tables_with_equal_keys_are_one(spark: SparkSession, tmp_path: Path, how: Any) -> None:
    rng = random.Random(seed_of())
    sides = [Batches(spark, tmp_path / name, f"shop int, day int, {name} string, pointer long") for name in "xy"]
    tables: list[Table] = [{}, {}]
    expected = []
    for batch in range(BATCHES):
        for side, (name, table) in enumerate(zip("xy", tables, strict=True)):
            changes = []
            for number in range(batch * A_BATCH, (batch + 1) * A_BATCH):
                key, value = (rng.randrange(2), rng.randrange(3)), rng.choice(["one", "two", None])
                table.pop(key, None)
                if value is not None:
                    table[key] = (value,)
                changes.append({"shop": key[0], "day": key[1], name: value, "pointer": number})
            sides[side].put(rng.sample(changes, len(changes)))
        left, right = tables
        wanted = {"inner": left.keys() & right.keys(), "left": left.keys(), "outer": left.keys() | right.keys()}[how]
        expected.append({key: (*left.get(key, (None,)), *right.get(key, (None,))) for key in wanted})
    found = join_tables(sides[0].stream(), sides[1].stream(), ["shop", "day"], how, key=["day", "shop"], prefix="its_")
    assert found.columns == ["shop", "day", "x", "its_y", "deleted"]
    collected = Collected(tmp_path / "ck")
    with pytest.raises(StreamingQueryException):
        collected.run(found, fail_at=1)
    collected.run(found)
    assert after_each_batch(collected, keys=2) == expected


def after_each_batch(collected: Collected, keys: int) -> list[Table]:
    """The table that the changes of each batch lead to. Each of them changes something, and no two the same row."""
    table: Table = {}
    found = []
    for _, rows in sorted(collected.batches.items()):
        changed = [tuple(row[:keys]) for row in rows]
        assert len(set(changed)) == len(changed)
        for row in rows:
            key = row[0] if keys == 1 else tuple(row[:keys])
            if row.deleted:
                assert row[keys:-1] == (None,) * (len(row) - keys - 1)
                table.pop(key, None)
            else:
                assert table.get(key) != tuple(row[keys:-1])
                table[key] = tuple(row[keys:-1])
        found.append(dict(table))
    return found


def test_a_join_is_a_changelog_that_can_be_joined_again(spark: SparkSession, tmp_path: Path) -> None:
    """Orders with their customers, from change data capture, with the countries of these."""
    orders, customers = (
        Batches(spark, tmp_path / "o", ORDERS),
        Batches(spark, tmp_path / "c", "value string, key string"),
    )
    countries = Batches(spark, tmp_path / "n", "city string, country string, pointer long")

    def captured(op: str, before: Any, after: Any) -> dict[str, Any]:
        return {"value": json.dumps({"op": op, "before": before, "after": after, "source": {"ts_ms": 1}})}

    ada, ann = {"id": "a", "city": "Oslo"}, {"id": "b", "city": "Rome"}
    orders.put([{"order": 1, "customer": "a", "cents": 5, "pointer": 0}])
    customers.put([captured("r", None, ada), captured("r", None, ann), {"value": "{}"}])
    countries.put([{"city": "Oslo", "country": "NO", "pointer": 0}])
    orders.put([{"order": 2, "customer": "b", "cents": 6, "pointer": 1}])
    customers.put([captured("u", ada, ada | {"city": "Rome"})])
    countries.put([{"city": "Rome", "country": "IT", "pointer": 1}])
    orders.put([{"order": 3, "customer": "c", "cents": 6, "pointer": 2}])
    customers.put([captured("d", ann, None)])
    countries.put([{"city": "Oslo", "country": None, "pointer": 2}])

    rows = debezium(customers.stream(), spark.createDataFrame([], "id string, city string").schema)
    first = join_tables(orders.stream(), rows, {"customer": "id"}, key="order")
    both = join_tables(first, countries.stream(), "city", "left", key="order")
    collected = Collected(tmp_path / "ck")
    collected.run(as_changelog(both, "order"))

    def records(batch: int) -> dict[str, Any]:
        found = collected.batches[batch]
        return {bytes(row.key).decode(): row.value and json.loads(bytes(row.value)) for row in found}

    one = {"order": 1, "customer": "a", "cents": 5, "city": "Oslo", "country": "NO"}
    assert records(0) == {"1": one}
    assert records(1) == {
        "1": one | {"city": "Rome", "country": "IT"},
        "2": {"order": 2, "customer": "b", "cents": 6, "city": "Rome", "country": "IT"},
    }
    assert records(2) == {"2": None}


def test_tables_that_cannot_be_joined_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    orders = Batches(spark, tmp_path / "o", ORDERS).stream()
    customers = Batches(spark, tmp_path / "c", CUSTOMERS).stream()

    def join(left: DataFrame = orders, right: DataFrame = customers, on: Any = "", **options: Any) -> DataFrame:
        return join_tables(left, right, on or {"customer": "id"}, **options)

    with pytest.raises(ConfigError, match="how='right' is not allowed: use inner, left, outer"):
        join(how="right")
    with pytest.raises(ConfigError, match="an outer join needs equal keys"):
        join(how="outer", key="order")
    with pytest.raises(ConfigError, match="the right table is no stream"):
        join(right=spark.createDataFrame([], CUSTOMERS))
    with pytest.raises(SchemaMismatchError, match="no column 'number' for the key; the left table has"):
        join(key="number")
    with pytest.raises(SchemaMismatchError, match="'customer' of the left table is string, and 'pointer' of the right"):
        join(on={"customer": "pointer"})
    with pytest.raises(SchemaMismatchError, match="both sides have cents: choose others with columns="):
        join(right=customers.withColumnRenamed("city", "cents"))
    with pytest.raises(SchemaMismatchError, match="the right table has no columns beside its key"):
        join(columns=[])
    with pytest.raises(SchemaMismatchError, match="topic is about a record"):
        join(left=orders.withColumn("topic", F.lit("x")), on={"topic": "id"}, key="order")
    with pytest.raises(SchemaMismatchError, match="no column 'deleted'"):
        as_changelog(orders, "order")
