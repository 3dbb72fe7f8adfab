"""Each event has the aggregates of the time before it, as a loop over all events computes them."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import math
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.late.gate import OnTimeGate
from penstock.spark.patterns import moving
from penstock.spark.patterns.moving import AT, RECENT, Aggregate, Sliding
from penstock.spark.patterns.ordering import WAITING, InOrder
from penstock.spark.state.stateful_functions import simulate
from tests.seeds import seed_of
from tests.spark.time.batches import START, Batches, Collected, at, seconds

PAYMENTS = "id int, card string, cents long, price double, shop string, at timestamp"
SECOND = datetime.timedelta(seconds=1)


@dataclasses.dataclass
class Payment:
    id: int
    card: str
    cents: int | None
    price: float
    shop: str
    at: float

    def row(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"at": at(self.at)}


def before(payment: Payment, payments: list[Payment], size: float) -> tuple[Any, ...]:
    """The plain model: sum and largest of cents, sum of prices, payments, shops of the window."""
    window = [it for it in payments if it.card == payment.card and payment.at - size < it.at <= payment.at]
    cents = [it.cents for it in window if it.cents is not None]
    return (
        sum(cents) if cents else None,
        max(cents, default=None),
        math.fsum(it.price for it in window),
        len(window),
        len({it.shop for it in window}),
    )


def test_each_payment_has_the_ten_seconds_before_it_across_batches_and_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    rng = random.Random(seed_of())
    feed = Batches(spark, tmp_path / "in", PAYMENTS)
    made: dict[int, Payment] = {}
    for batch in range(5):
        rows = []
        for number in range(batch * 12, batch * 12 + 12):
            when = batch * 10 + rng.randrange(-14, 10)
            cents = rng.choice([None, rng.randrange(1_000)])
            made[number] = Payment(number, rng.choice("ab"), cents, rng.uniform(-1e9, 1), rng.choice("xyz"), when)
            rows.append(made[number].row())
        feed.put(rows)
    feed.put([Payment(-1, "end", 0, 0, "x", 1_000).row(), Payment(-2, "none", 7, 0, "x", 0).row() | {"at": None}])
    gate = OnTimeGate("late", "at", grace="8 seconds", side=str(tmp_path / "side"))
    frame = gate.apply(feed.stream())
    found = moving(
        frame,
        "card",
        "at",
        "10 seconds",
        {
            "spent": ("sum", "cents"),
            "largest": ("max", F.col("cents")),
            "total": ("sum", "price * 1"),
            "payments": ("count", "*"),
            "shops": ("distinct", "shop"),
        },
    )
    assert found.columns == [*frame.columns, "spent", "largest", "total", "payments", "shops"]
    collected = Collected(tmp_path / "ck", [gate])
    with pytest.raises(StreamingQueryException):
        collected.run(found, fail_at=2)
    collected.run(found)
    late = {row.id for row in collected.late}
    on_time = [payment for number, payment in made.items() if number not in late]
    left = {row.id: row for row in collected.rows if row.id >= 0}
    assert sorted(left) == sorted(payment.id for payment in on_time)
    for payment in on_time:
        row = left[payment.id]
        found_of_it = (row.spent, row.largest, row.total, row.payments, row.shops)
        assert found_of_it == before(payment, on_time, 10), payment
    for card in "ab":
        times = [seconds(row.at) for row in collected.rows if row.card == card]
        assert times == sorted(times)
    assert collected.dropped == 0


def window_of(function: str, kind: DataType) -> tuple[Any, Aggregate]:
    aggregate = Aggregate("found", function, kind)
    row = StructType([StructField("id", IntegerType()), StructField("at", TimestampType())])
    sliding = Sliding(InOrder("at", "id"), "at", row.names, [aggregate], 10 * SECOND)
    argument = StructField("_of_found", kind)
    simulated = simulate(
        sliding.arrived,
        StructType([*row.fields, StructField("found", aggregate.result)]),
        lists={
            WAITING: StructType([*row.fields, argument]),
            RECENT: StructType([StructField(AT, TimestampType()), argument]),
        },
        timers="event",
        on_timer=sliding.due,
        time="at",
    )
    return simulated, aggregate


def by_hand(function: str, values: list[Any]) -> Any:
    if function in ("count", "distinct"):
        return len(values if function == "count" else set(values))
    if not values:
        return None
    if function in ("min", "max"):
        return min(values) if function == "min" else max(values)
    if function == "average":
        return float(sum(map(Fraction, values)) / len(values))
    return math.fsum(values) if isinstance(values[0], float) else sum(values)


@pytest.mark.parametrize("function", ["count", "sum", "average", "min", "max", "distinct"])
@pytest.mark.parametrize("kind", [LongType(), DoubleType(), DecimalType(20, 4)], ids=["long", "double", "decimal"])
def test_every_function_is_exact_in_whatever_pieces_rows_come(function: str, kind: DataType) -> None:
    rng = random.Random(seed_of())
    simulated, _ = window_of(function, kind)
    choices: dict[type[DataType], Callable[[], Any]] = {
        LongType: lambda: rng.randrange(-(2**40), 2**40),
        DoubleType: lambda: rng.choice([1e300, 1e-300, 0.1]) * rng.randrange(-3, 4),
        DecimalType: lambda: decimal.Decimal(rng.randrange(-(10**9), 10**9)).scaleb(-4),
    }
    values = choices[type(kind)]
    rows = [
        Row(id=number, at=START + rng.randrange(60) * SECOND, _of_found=rng.choice([None, values()]))
        for number in range(80)
    ]
    found = []
    waiting = rows
    for until in [*sorted(rng.sample(range(60), 5)), 70]:
        came = [row for row in waiting if row.at <= START + (until + 6) * SECOND]
        waiting = [row for row in waiting if row not in came]
        found += simulated.rows("a", rng.sample(came, len(came)))
        found += simulated.watermark(START + until * SECOND)
    assert [row.id for row in found] == [row.id for row in sorted(rows, key=lambda row: (row.at, row.id))]
    for row in found:
        window = [each._of_found for each in rows if row.at - 10 * SECOND < each.at <= row.at]
        assert row.found == by_hand(function, [value for value in window if value is not None])
    assert simulated.watermark(START + 200 * SECOND) == []
    assert simulated._tester.peekListState(RECENT, "a") == [], "the state of a key without events is dropped"


def test_what_is_no_number_spoils_only_the_windows_that_it_is_in() -> None:
    for function, values, wanted in (
        ("sum", [1.0, math.inf, -math.inf, 2.0], ["1.0", "inf", "nan", "2.0"]),
        ("sum", [1e308, 1e308, -1e308, math.nan], ["1e+308", "inf", "1e+308", "nan"]),
        ("max", [1.0, math.nan, 2.0, 3.0], ["1.0", "nan", "nan", "3.0"]),
        ("min", [math.nan, math.nan, -2.0, 3.0], ["nan", "nan", "-2.0", "3.0"]),
        ("distinct", [math.nan, math.nan, 0.0, -0.0], ["1", "1", "2", "1"]),
    ):
        simulated, _ = window_of(function, DoubleType())
        for number, (value, when) in enumerate(zip(values, [1, 2, 3, 13], strict=True)):
            simulated.rows("a", [Row(id=number, at=START + when * SECOND, _of_found=value)])
        found = simulated.watermark(START + 100 * SECOND)
        assert [str(row.found) for row in found] == wanted, function


def test_aggregates_that_make_no_sense_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    payments = Batches(spark, tmp_path / "in", PAYMENTS).stream()

    def move(frame: DataFrame = payments, key: Any = "card", size: str = "1 minute", **aggregates: Any) -> DataFrame:
        return moving(frame, key, "at", size, aggregates, grace="1 second")

    assert dict(move(mean=("average", "cents"), first=("min", "shop")).dtypes)["mean"] == "double"
    with pytest.raises(ConfigError, match="there are no aggregates"):
        move()
    with pytest.raises(ConfigError, match=r"'median', 'cents'\) is not allowed: give a pair of a function, one of"):
        move(middle=("median", "cents"))
    with pytest.raises(ConfigError, match=r"only count takes '\*': name a column for sum"):
        move(all=("sum", "*"))
    with pytest.raises(SchemaMismatchError, match="sum cannot take string: cast the column"):
        move(all=("sum", "shop"))
    with pytest.raises(SchemaMismatchError, match="distinct cannot take array<string>"):
        move(all=("distinct", F.array("shop")))
    with pytest.raises(SchemaMismatchError, match="already has a column shop"):
        move(shop=("count", "*"))
    with pytest.raises(SchemaMismatchError, match="no column 'user' for the key"):
        move(key="user", all=("count", "*"))
    with pytest.raises(ConfigError, match="size"):
        move(size="0 seconds", all=("count", "*"))
    with pytest.raises(SchemaMismatchError, match="set grace="):
        moving(payments, "card", "at", "1 minute", {"all": ("count", "*")})
