"""Guards: they call a function of the program so that an error costs the failing rows, not the batch.

A guarded UDF answers with a struct of the value and whether the call failed. Functions of whole columns or batches are
called with halves of them, until each failing row is alone.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark import SparkContext
from pyspark import cloudpickle as _cloudpickle
from pyspark.accumulators import Accumulator
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BooleanType, DataType, StructField, StructType
from pyspark.util import PythonEvalType

from penstock.spark.errors import reports
from penstock.spark.errors.origins import origin_names, origin_text
from penstock.spark.errors.reports import Reporter

VALUE: Final = "value"
FAILED: Final = "failed"
BY_ROW: Final = (PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF)
BY_COLUMN: Final = (PythonEvalType.SQL_SCALAR_PANDAS_UDF, PythonEvalType.SQL_SCALAR_ARROW_UDF)
cloudpickle: Final[Any] = _cloudpickle
"""Without its types, which it has only in part."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


def answer_type(value: DataType) -> StructType:
    """What a guarded function answers with."""
    return StructType([StructField(VALUE, value), StructField(FAILED, BooleanType())])


def guarded_command(command: bytes, eval_type: int, rule: str, channel: Accumulator[Any]) -> tuple[bytes, DataType]:
    """The pickled function of a UDF, guarded, and its new type. Its new first argument is the origin of the row.

    `command` is the UDF as Spark has it: the pickled pair of function and type. The function is not loaded here.
    """
    _, returned = cloudpickle.loads(command)
    make = _by_row if eval_type in BY_ROW else _by_column
    made = make(command, eval_type == PythonEvalType.SQL_SCALAR_PANDAS_UDF, rule, channel)
    answer = answer_type(returned)
    return cloudpickle.dumps((made, answer)), answer


def _by_row(command: bytes, _: bool, rule: str, channel: Accumulator[Any]) -> Callable[..., tuple[Any, bool]]:
    opened: list[tuple[Callable[..., Any], Reporter]] = []

    def call(origin: str | None, *args: Any, **named: Any) -> tuple[Any, bool]:
        if not opened:
            opened.append((cloudpickle.loads(command)[0], Reporter.of_task(rule, channel)))
        function, reporter = opened[0]
        reporter.count.seen += 1
        try:
            return function(*args, **named), False
        except Exception as error:
            reporter.failed(error, origin, arguments_text([*args, *named.values()]))
            return None, True

    return call


def _by_column(command: bytes, is_pandas: bool, rule: str, channel: Accumulator[Any]) -> Callable[..., Any]:
    opened: list[tuple[Callable[..., Any], pa.DataType, Reporter]] = []

    def call(origins: Any, *columns: Any, **named: Any) -> Any:
        if not opened:
            function, returned = cloudpickle.loads(command)
            opened.append((function, to_arrow_type(returned, timezone="UTC"), Reporter.of_task(rule, channel)))
        function, kind, reporter = opened[0]
        rows = len(origins)
        reporter.count.seen += rows
        names = list(named)
        given = [*columns, *named.values()]

        def attempt(low: int, high: int) -> Any:
            parts = given if high - low == rows else [slice_of(each, low, high) for each in given]
            answer = function(*parts[: len(columns)], **dict(zip(names, parts[len(columns) :], strict=True)))
            if len(answer) != high - low:
                raise ValueError(f"the function gave {len(answer)} values for {high - low} rows")
            return answer if is_pandas else _whole(answer).cast(kind)

        parts, errors = bisected(attempt, rows)
        failed = {low for low, _ in errors}
        for low, error in errors:
            text = arguments_text([slice_of(each, low, low + 1).tolist()[0] for each in given])
            reporter.failed(error, slice_of(origins, low, low + 1).tolist()[0], text)
        return (_pandas_answer if is_pandas else functools.partial(_arrow_answer, kind))(parts, failed, rows)

    return call


def _whole(answer: Any) -> Any:
    return answer.combine_chunks() if isinstance(answer, pa.ChunkedArray) else answer


def _arrow_answer(kind: pa.DataType, parts: list[tuple[int, Any]], failed: set[int], rows: int) -> pa.StructArray:
    pieces = sorted([*parts, *((low, pa.nulls(1, kind)) for low in failed)], key=lambda part: part[0])
    values = pieces[0][1] if len(pieces) == 1 else pa.concat_arrays([each for _, each in pieces])
    flags = pa.array([low in failed for low in range(rows)], pa.bool_()) if failed else pa.array([False] * rows)
    return pa.StructArray.from_arrays([values, flags], [VALUE, FAILED])


def _pandas_answer(parts: list[tuple[int, Any]], failed: set[int], rows: int) -> Any:
    import pandas  # type: ignore[import-untyped]

    pieces = sorted([*parts, *((low, pandas.Series([None])) for low in failed)], key=lambda part: part[0])
    values = [value for _, piece in pieces for value in piece] if len(pieces) > 1 else pieces[0][1]
    column: Any = pandas.Series(values, dtype=object if len(pieces) > 1 else None).reset_index(drop=True)
    return pandas.DataFrame({VALUE: column, FAILED: [low in failed for low in range(rows)] if failed else False})


def bisected(
    attempt: Callable[[int, int], Any], rows: int
) -> tuple[list[tuple[int, Any]], list[tuple[int, Exception]]]:
    """The outcome of attempts at ranges of rows, by their first row, and the error of each row that fails alone."""
    done: list[tuple[int, Any]] = []
    errors: list[tuple[int, Exception]] = []
    spans = [(0, rows)]
    while spans:
        low, high = spans.pop()
        try:
            done.append((low, attempt(low, high)))
        except Exception as error:
            if high - low <= 1:
                errors.append((low, error))
            else:
                middle = (low + high) // 2
                spans += [(middle, high), (low, middle)]
    return done, errors


def slice_of(rows: Any, low: int, high: int) -> Any:
    """Some rows of an Arrow array or batch, or of something of pandas."""
    return rows.slice(low, high - low) if hasattr(rows, "slice") else rows.iloc[low:high]


def arguments_text(arguments: Sequence[Any]) -> str:
    """Arguments as JSON; what JSON does not have, as text."""
    return json.dumps(list(arguments), default=str)


def guarded(function: _Function) -> _Function:
    """Guard a function of `mapInArrow` or `mapInPandas`: rows for which it fails go to the dead letters.

    The function is called for one batch at a time, and again for parts of a batch in which it failed: what it answers
    may depend on the rows of one batch only. In a query that is not of a `Pipeline`, its errors are raised.
    """
    made = _GuardedMap(function)
    functools.update_wrapper(made, function)
    return made  # type: ignore[return-value]


class _GuardedMap:
    """Calls a function of batches of rows, batch by batch."""

    def __init__(self, function: Callable[..., Any], channel: Accumulator[Any] | None = None) -> None:
        self._function = function
        self._channel = channel

    def __reduce__(self) -> tuple[Any, ...]:
        # The function is sent when its frame is made: then there is a session, unlike when it is defined.
        context = SparkContext._active_spark_context
        channel = self._channel if context is None else reports.accumulator(context)
        return _GuardedMap, (self._function, channel)

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        name = getattr(self._function, "__name__", type(self._function).__name__)
        reporter = Reporter.of_task(f"function {name}", self._channel)
        if not reporter.is_collecting:
            yield from self._function(batches)
            return
        for batch in batches:
            yield from self._of_batch(batch, reporter)

    def _of_batch(self, batch: Any, reporter: Reporter) -> Iterator[Any]:
        reporter.count.seen += len(batch)

        def attempt(low: int, high: int) -> list[Any]:
            part = batch if high - low == len(batch) else slice_of(batch, low, high)
            return list(self._function(iter([part])))

        done, errors = bisected(attempt, len(batch)) if len(batch) else ([(0, attempt(0, 0))], [])
        for low, error in errors:
            (row,) = _rows_of(slice_of(batch, low, low + 1))
            names = origin_names(list(row))
            origin = None if names is None else origin_text(row[names[2]], row[names[0]], row[names[1]])
            reporter.failed(error, origin, json.dumps(row, default=str))
        for _, answer in sorted(done, key=lambda part: part[0]):
            yield from answer


def _rows_of(batch: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_pylist() if hasattr(batch, "to_pylist") else batch.to_dict("records")
    return rows
