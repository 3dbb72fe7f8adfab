"""What tasks report about rows, and how guards find the rows that fail, without a session."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.types import LongType
from pyspark.util import PythonEvalType

from penstock.errors import BadRowsError, ConfigError
from penstock.spark.errors.batch_rows import check_limit, runs_of
from penstock.spark.errors.expectations import expectation
from penstock.spark.errors.guards import bisected, guarded, guarded_command
from penstock.spark.errors.reports import BadRow, Batch, Reporter, ReportStore, RuleCount, TaskReport, combined
from tests.seeds import seed_of

BATCH: Batch = ("query", 3)


def bad(origin: str | None, rule: str = "function f") -> BadRow:
    return BadRow(rule, origin, "{}", "ValueError: no", "ValueError", "")


def report(rule: str, seen: int, *rows: BadRow, dropped: int = 0) -> TaskReport:
    return TaskReport(rule, RuleCount(seen, dropped, len(rows)), list(rows))


def test_a_partition_that_was_computed_twice_counts_once() -> None:
    first, second = bad("0/1/orders"), bad("1/1/orders")
    found = combined(
        [
            ((7, 0, 100), report("function f", 10, first)),
            ((7, 0, 101), report("function f", 10, first)),  # a speculative attempt
            ((7, 1, 102), report("function f", 5, second)),
            ((9, 0, 103), report("function f", 10, first)),  # computed again, without the other partition
        ]
    )
    assert found.bad == (first, second)
    assert found.counts == {"function f": RuleCount(15, 0, 2)}
    assert found.seen == 15


def test_a_row_that_failed_in_any_evaluation_has_a_letter() -> None:
    only_first, only_second = bad("0/1/orders"), bad("0/2/orders")
    found = combined(
        [((7, 0, 1), report("function f", 10, only_first)), ((8, 0, 2), report("function f", 10, only_second))]
    )
    assert set(found.bad) == {only_first, only_second}


def test_rules_of_one_task_are_counted_each_by_itself() -> None:
    found = combined(
        [
            ((7, 0, 1), report("expectation a", 10, dropped=4)),
            ((7, 0, 1), report("expectation b", 6, bad(None), bad(None))),
        ]
    )
    assert found.counts == {"expectation a": RuleCount(10, 4, 0), "expectation b": RuleCount(6, 0, 2)}
    assert len(found.bad) == 2, "rows of unknown origin are not taken for one"


def test_the_reports_of_a_batch_are_taken_once_and_those_of_failed_batches_are_dropped() -> None:
    store = ReportStore()
    other, failed = ("other", 3), ("query", 2)
    for batch in (BATCH, failed, other):
        store.add({(batch, (1, 0, 1), "id"): report("function f", 1)})
    assert len(store.take(BATCH)) == 1
    assert store.take(BATCH) == []
    assert store.take(failed) == []
    assert len(store.take(other)) == 1


def test_a_task_with_too_many_bad_rows_fails() -> None:
    made = TaskReport("function f")
    reporter = Reporter("function f", made, 2)
    for number in range(2):
        reporter.failed(ValueError("no"), f"0/{number}/orders", None)
    with pytest.raises(BadRowsError, match="more than 2 rows of one task are bad, the last because of ValueError: no"):
        reporter.failed(ValueError("no"), "0/2/orders", None)
    assert [row.origin for row in made.bad] == ["0/0/orders", "0/1/orders"]


def test_exactly_the_rows_that_fail_are_found() -> None:
    chance = random.Random(seed_of())
    wrong = set(chance.sample(range(200), 9))

    def attempt(low: int, high: int) -> list[int]:
        if hit := wrong.intersection(range(low, high)):
            raise ValueError(str(sorted(hit)))
        return list(range(low, high))

    done, errors = bisected(attempt, 200)
    assert sorted(row for _, rows in done for row in rows) == sorted(set(range(200)) - wrong)
    assert {low for low, _ in errors} == wrong
    assert all(str(error) == f"[{low}]" for low, error in errors)


def test_outside_of_a_pipeline_a_guarded_function_raises_its_error() -> None:
    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            raise KeyError("mine")
        yield from ()

    with pytest.raises(KeyError, match="mine"):
        list(guarded(fails)(iter([pa.RecordBatch.from_pydict({"a": [1]})])))
    assert fails.__name__ == guarded(fails).__name__

    def divide(number: int) -> int:
        return 1 // number

    command, _ = guarded_command(dumps((divide, LongType())), 100, "function divide", None)  # type: ignore[arg-type, no-untyped-call]
    call, _ = loads(command)
    assert call("0/1/orders", 1) == (1, False)
    with pytest.raises(ZeroDivisionError):
        call("0/1/orders", 0)


def test_a_guarded_function_of_columns_answers_for_the_rows_that_do_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def inverse(numbers: pa.Array) -> pa.Array:
        return pc.divide(60, numbers)

    made = TaskReport("function inverse")
    monkeypatch.setattr(Reporter, "of_task", lambda *_: Reporter("function inverse", made, 10))
    kind = PythonEvalType.SQL_SCALAR_ARROW_UDF
    command, _ = guarded_command(dumps((inverse, LongType())), kind, "function inverse", None)  # type: ignore[arg-type, no-untyped-call]
    call, _ = loads(command)
    answer = call(pa.array(["0/0/t", "0/1/t", "0/2/t"]), pa.array([6, 0, 5], pa.int32()))
    assert answer.to_pylist() == [
        {"value": 10, "failed": False},
        {"value": None, "failed": True},
        {"value": 12, "failed": False},
    ]
    assert [(row.origin, row.row, row.error_kind) for row in made.bad] == [("0/1/t", "[0]", "ArrowInvalid")]
    assert made.count == RuleCount(3, 0, 1)


def test_records_that_are_close_to_each_other_are_read_at_once() -> None:
    assert list(runs_of([1, 2, 102, 203, 5_000])) == [[1, 2, 102], [203], [5_000]]
    assert list(runs_of([])) == []


@pytest.mark.parametrize("limit", [-1, 1.0, 0.0, True, "many", None, 200_000])
def test_a_limit_that_is_neither_a_count_nor_a_share_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="max_bad_rows"):
        check_limit(limit, "pipeline 'p'")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"otherwise": "ignore"}, "drop, dead_letter, fail"),
        ({"name": ""}, "needs a name"),
        ({"condition": ""}, "needs a condition"),
    ],
)
def test_an_expectation_that_cannot_be_is_refused(wrong: dict[str, Any], told: str) -> None:
    given = {"name": "positive", "condition": "cents > 0", "otherwise": "drop"} | wrong
    with pytest.raises(ConfigError, match=told):
        expectation(what="pipeline 'p'", **given)
