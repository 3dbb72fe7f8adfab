"""Stateful functions that fail for a row: the state is as if the row had not arrived, and the row is a letter."""

from __future__ import annotations

import datetime
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

import penstock as ps
from penstock.errors import BadRowsError
from penstock.spark import Restart, stateful
from penstock.spark.errors.reports import Reporter, TaskReport
from penstock.spark.pipeline import Pipeline
from penstock.spark.state import guarded_calls, stateful_functions
from penstock.spark.state.context import KeyContext
from penstock.spark.state.stateful_functions import Simulation, simulate
from tests.seeds import seed_of
from tests.spark.errors.shops import COUNT, ORDERS, Order, cents_of, letters, values

SECOND = datetime.timedelta(seconds=1)
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SUM = StructType([StructField("key", StringType()), StructField("sum", LongType())])


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> dict[str, TaskReport]:
    """Guards functions outside of a query; their reports, by rule."""
    found: dict[str, TaskReport] = {}

    def of_task(rule: str, _: Any) -> Reporter:
        return Reporter(rule, found.setdefault(rule, TaskReport(rule)), 1_000)

    monkeypatch.setattr(Reporter, "of_task", of_task)
    monkeypatch.setattr(stateful_functions, "is_guarded", lambda: True)
    return found


def test_a_row_that_fails_leaves_no_trace_in_any_kind_of_state(reported: dict[str, TaskReport]) -> None:
    chance = random.Random(seed_of())

    def function(key: str, rows: Iterator[Row], ctx: KeyContext) -> Iterator[tuple[str, int]]:
        for row in rows:
            ctx.state.put(ctx.state.get(0) + row.n)
            ctx.list("all").append(row.n)
            if row.n % 5 == 0:
                ctx.list("all").replace([each for each in ctx.list("all") if each % 2])
            ctx.map("by").put(START + row.n % 3 * SECOND, ctx.map("by").get(START + row.n % 3 * SECOND, 0) + row.n)
            if row.n % 4 == 0 and START in ctx.map("by"):
                ctx.map("by").delete(START)
            ctx.timer(START + row.n * SECOND)
            ctx.cancel(START + (row.n + 1) * SECOND)
            if row.fails:
                raise ValueError(f"no {row.n}")
        yield key, ctx.state.get(0)

    def content(key: str, at: datetime.datetime, ctx: KeyContext) -> Iterator[tuple[str, int]]:
        yield "state", ctx.state.get()
        yield from (("list", each) for each in ctx.list("all"))
        yield from sorted(("map", value) for _, value in ctx.map("by").items())
        yield from (("timer", int((each - START).total_seconds())) for each in ctx.timers())

    def simulated() -> Simulation:
        made: Callable[..., Simulation] = simulate
        return made(
            function,
            SUM,
            state=int,
            lists={"all": int},
            maps={"by": (datetime.datetime, int)},
            timers="processing",
            on_timer=content,
        )

    guarded, clean = simulated(), simulated()
    for each in (guarded, clean):
        each.clock(START - SECOND)
    failed = []
    for _ in range(8):
        rows = [Row(n=chance.randrange(60), fails=chance.random() < 0.3) for _ in range(chance.randrange(1, 7))]
        good = [row for row in rows if not row.fails]
        failed += [row.n for row in rows if row.fails]
        given = guarded.rows("a", rows)
        assert given == (clean.rows("a", good) if good else [])
    assert guarded.clock(START + 100 * SECOND) == clean.clock(START + 100 * SECOND)
    report = reported["function function"]
    assert [row.error for row in report.bad] == [f"ValueError: no {number}" for number in failed]
    assert all(json.loads(row.row or "")["fails"] for row in report.bad)


def test_rows_that_fail_only_together_are_as_if_each_came_in_a_batch_of_its_own(
    reported: dict[str, TaskReport],
) -> None:
    def function(key: str, rows: Iterator[Row], ctx: KeyContext) -> Iterator[tuple[str, int]]:
        numbers = [row.n for row in rows]
        if len(numbers) > 1:
            raise ValueError("one at a time")
        ctx.state.put(ctx.state.get(0) + numbers[0])
        yield key, ctx.state.get()

    simulated = simulate(function, SUM, state=int)
    assert [row.sum for row in simulated.rows("a", [Row(n=1), Row(n=2), Row(n=3)])] == [1, 3, 6]
    assert reported["function function"].bad == []


def test_a_timer_that_fails_is_a_letter_with_its_key_and_time(reported: dict[str, TaskReport]) -> None:
    def arrived(key: str, rows: Iterator[Row], ctx: KeyContext) -> None:
        for row in rows:
            ctx.timer(START + row.n * SECOND)

    def due(key: str, at: datetime.datetime, ctx: KeyContext) -> Iterator[tuple[str, int]]:
        ctx.state.put(ctx.state.get(0) + 1)
        yield key, ctx.state.get()
        if at == START + 2 * SECOND:
            raise LookupError("two")

    simulated = simulate(arrived, SUM, state=int, timers="processing", on_timer=due)
    simulated.clock(START)
    simulated.rows("a", [Row(n=number) for number in (1, 2, 3)])
    assert [row.sum for row in simulated.clock(START + 5 * SECOND)] == [1, 2]
    assert simulated.clock(START + 9 * SECOND) == [], "the timer is gone"
    (bad,) = reported["function due"].bad
    assert (bad.error, json.loads(bad.row or "")) == (
        "LookupError: two",
        {"key": "a", "timer": "2026-01-01T00:00:02+00:00"},
    )


def test_errors_that_are_not_of_a_row_fail_the_batch(
    reported: dict[str, TaskReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    def summed(key: str, rows: Iterator[Row], ctx: KeyContext) -> Iterator[tuple[str, int]]:
        kept = ctx.state.get(0)
        numbers = [row.n for row in rows]
        if 7 in numbers:
            raise ValueError("seven")
        yield key, kept + sum(numbers)

    def lost(rows: list[Row]) -> Iterator[Row]:
        yield from rows
        raise EOFError("the rows ended")

    simulated = simulate(summed, SUM, state=int)
    processor: Any = simulated._tester.processor
    with pytest.raises(EOFError, match="the rows ended"):
        processor.handleInputRows(("a",), lost([Row(n=1)]), None)

    monkeypatch.setattr(guarded_calls, "MOST_ROWS", 3)
    with pytest.raises(ValueError, match="seven"):
        simulated.rows("a", [Row(n=number) for number in (7, 1, 2, 3)])

    def broken(*_: Any) -> Any:
        raise ConnectionError("no state")

    monkeypatch.setattr(processor._guard._first.buffer.values[""], "_state", Row(get=broken))
    with pytest.raises(ConnectionError, match="no state"):
        simulated.rows("a", [Row(n=1)])
    assert reported["function summed"].bad == []


def totals(wrong: int) -> Callable[..., Iterator[dict[str, Any]]]:
    def total(customer: str, orders: Iterator[Row], ctx: KeyContext) -> Iterator[dict[str, Any]]:
        for order in orders:
            assert list(order.__fields__) == ["customer", "cents"], "functions do not see what is carried along"
            ctx.state.put(ctx.state.get(0) + order.cents)
            if order.cents % wrong == 0:
                raise ValueError(f"no {order.cents}")
        yield {"customer": customer, "total": ctx.state.get(0)}

    return total


def test_in_a_pipeline_the_letter_has_the_record_though_the_function_does_not_see_it(
    shop: Pipeline, connection: ps.Connection
) -> None:
    orders = shop.read(ORDERS).where(F.col("cents") != 3).select("customer", "cents")
    frame = stateful(orders, "customer", totals(10), "customer string, total long", state=int, mode="update")
    shop.write(frame, "totals", key="customer")
    shop.run(once=True)
    connection.send(ORDERS, Order("c1", 5))
    connection.send(ORDERS, Order("c1", 70))
    connection.flush(timeout_s=30)
    shop.run(once=True)
    wanted: Counter[str] = Counter()
    for number in range(COUNT):
        if number % 10 and number != 3:
            wanted[f"c{number % 7}"] += number
    wanted["c1"] += 5
    assert {row["customer"]: row["total"] for row in values(connection, "totals")} == wanted
    found = letters(connection)
    assert {cents_of(letter): letter.error for letter in found} == {
        number: f"ValueError: no {number}" for number in [*range(0, COUNT, 10), 70]
    }
    assert all(letter.record.topic == "orders" and "in total" in letter.traceback for letter in found)
    assert shop.progress()["totals"].bad_rows == {"function total": 7}


def test_without_guards_a_stateful_function_that_fails_stops_the_query(log_url: str, shop: Pipeline) -> None:
    with Pipeline("plain", log_url, spark=shop.spark, guard=False, restart=Restart(attempts=0)) as plain:
        orders = plain.read(ORDERS).select("customer", "cents")
        plain.write(stateful(orders, "customer", totals(10), "customer string, total long", state=int), "plain")
        with pytest.raises(Exception, match="ValueError: no"):
            plain.run(once=True)


def test_too_many_rows_that_fail_in_a_stateful_function_stop_the_query(log_url: str, shop: Pipeline) -> None:
    with Pipeline("limited", log_url, spark=shop.spark, max_bad_rows=3) as limited:
        orders = limited.read(ORDERS).select("customer", "cents")
        limited.write(stateful(orders, "customer", totals(10), "customer string, total long", state=int), "limited")
        with pytest.raises(Exception, match=r"more than (3 rows of one task are bad|max_bad_rows=3 allows)") as raised:
            limited.run(once=True)
        assert BadRowsError.__name__ in repr(raised.value) or isinstance(raised.value, BadRowsError)
