"""Sliding windows that are exact: for each event, aggregates of the events of its key in the time before it."""

from __future__ import annotations

import datetime
import decimal
import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Protocol

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FractionalType,
    IntegralType,
    LongType,
    MapType,
    NumericType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.durations import Duration, microseconds
from penstock.spark.late.watermarks import without_watermarks
from penstock.spark.patterns.ordering import WAITING, InOrder, pointer_of, with_watermark
from penstock.spark.state.context import KeyContext
from penstock.spark.state.stateful_functions import stateful
from penstock.spark.values.columns import require_columns

FUNCTIONS: Final = ("count", "sum", "average", "min", "max", "distinct")
RECENT: Final = "recent"
"""What aggregates need of the rows in the window that ends at the watermark."""
AT: Final = "_at"
_DIGITS: Final = 38
_POWER: Final = 1_074
"""Every finite double is a whole number divided by two to this power."""
_EXACT: Final = decimal.Context(prec=100)


def moving(
    frame: DataFrame,
    key: str | Sequence[str],
    time: str,
    size: Duration,
    aggregates: Mapping[str, tuple[str, str | Column]],
    *,
    grace: Duration | None = None,
) -> DataFrame:
    """The rows, each with aggregates of the rows of its key in the `size` before it, itself included.

    `aggregates` has a function and its argument for each new column:

        moving(payments, "card", "at", "10 minutes", {"spent": ("sum", "cents"), "payments": ("count", "*")})

    The functions are count, sum, average, min, max and distinct (the number of distinct values); the argument is a
    column or an expression. As in SQL, nulls do not count: without a value, the count is 0 and the others are null.
    Sums of doubles are exact, rounded once; a sum of whole numbers beyond 64 bits fails the query.

    The window of a row at time t has the rows after t - `size`, up to and including t. So a row exactly `size` earlier
    is out, and rows with equal times are in each other's windows. Unlike `window(time, size, slide)`, whose hopping
    windows begin at fixed times, each row has a window of its own.

    Rows are emitted in the order of their time, once the watermark reaches it: all rows of their windows have then
    arrived, or are late and count nowhere. `grace` sets the watermark unless the frame has one, as after
    `Pipeline.on_time` (without a window). A row without a time has no window; it is emitted at once, with null
    aggregates. State has the rows that wait, and the arguments of those in the last window.
    """
    keys = [key] if isinstance(key, str) else list(key)
    require_columns(frame.columns, keys, " for the key", at_least_one=True)
    if not aggregates:
        raise ConfigError("there are no aggregates: give at least one, such as {'total': ('sum', 'cents')}")
    taken = ", ".join(name for name in aggregates if name in frame.columns)
    if taken:
        raise SchemaMismatchError(f"the frame already has a column {taken}: give the aggregate another name")
    size_us = microseconds(size, "size")
    timely = with_watermark(frame, time, grace)
    schema = without_watermarks(timely.schema)
    given = timely.select("*", *(_argument(timely, name, *_pair(name, each)) for name, each in aggregates.items()))
    arguments = [StructField(_given(name), given.schema[_given(name)].dataType) for name in aggregates]
    kinds = [
        Aggregate(name, function, argument.dataType)
        for (name, (function, _)), argument in zip(aggregates.items(), arguments, strict=True)
    ]
    sliding = Sliding(
        InOrder(time, pointer_of(timely)), time, schema.names, kinds, datetime.timedelta(microseconds=size_us)
    )
    return stateful(
        given,
        keys,
        sliding.arrived,
        StructType([*schema.fields, *(StructField(each.name, each.result) for each in kinds)]),
        lists={
            WAITING: StructType([*schema.fields, *arguments]),
            RECENT: StructType([StructField(AT, TimestampType()), *arguments]),
        },
        timers="event",
        on_timer=sliding.due,
    )


def _given(name: str) -> str:
    return f"_of_{name}"


def _pair(name: str, each: Any) -> tuple[str, str | Column]:
    if not isinstance(each, tuple | list) or len(each) != 2 or each[0] not in FUNCTIONS:
        raise ConfigError(
            f"aggregate {name!r}: {each!r} is not allowed: give a pair of a function, one of {', '.join(FUNCTIONS)}, "
            "and a column, such as ('sum', 'cents')"
        )
    return each[0], each[1]


def _argument(frame: DataFrame, name: str, function: str, argument: str | Column) -> Column:
    if isinstance(argument, Column):
        column = argument
    elif argument == "*":
        if function != "count":
            raise ConfigError(f"aggregate {name!r}: only count takes '*': name a column for {function}")
        column = F.lit(True)
    else:
        column = F.col(f"`{argument}`") if argument in frame.columns else F.expr(argument)
    if function == "count":
        column = F.when(column.isNotNull(), F.lit(True))
    return column.alias(_given(name), metadata={})


class Running(Protocol):
    """An aggregate of the values in a window. Values leave it in the order in which they came."""

    def add(self, value: Any) -> None: ...

    def remove(self, value: Any) -> None: ...

    def result(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A column of the result. Raises SchemaMismatchError if its function cannot take such values."""

    name: str
    function: str
    argument: DataType

    def __post_init__(self) -> None:
        kind = self.argument
        is_right = isinstance(kind, NumericType)
        if self.function not in ("sum", "average"):
            is_right = not isinstance(kind, ArrayType | MapType | StructType | VariantType)
        if not is_right:
            raise SchemaMismatchError(
                f"aggregate {self.name!r}: {self.function} cannot take {kind.simpleString()}: cast the column"
            )

    @property
    def result(self) -> DataType:
        if self.function in ("min", "max"):
            return self.argument
        if self.function in ("count", "distinct"):
            return LongType()
        if self.function == "sum" and isinstance(self.argument, DecimalType):
            return DecimalType(min(_DIGITS, self.argument.precision + 10), self.argument.scale)
        return LongType() if self.function == "sum" and isinstance(self.argument, IntegralType) else DoubleType()

    def running(self) -> Running:
        if self.function in ("min", "max"):
            return Extreme(greatest=self.function == "max")
        if self.function == "distinct":
            return Distinct()
        if self.function == "count":
            return Count()
        scale = self.argument.scale if isinstance(self.argument, DecimalType) else None
        is_binary = isinstance(self.argument, FractionalType) and scale is None
        return Sum(averages=self.function == "average", scale=scale, is_binary=is_binary)


class Count:
    def __init__(self) -> None:
        self._count = 0

    def add(self, value: Any) -> None:
        self._count += 1

    def remove(self, value: Any) -> None:
        self._count -= 1

    def result(self) -> int:
        return self._count


class Distinct:
    def __init__(self) -> None:
        self._counts: Counter[Any] = Counter()

    def add(self, value: Any) -> None:
        self._counts[_comparable(value)] += 1

    def remove(self, value: Any) -> None:
        known = _comparable(value)
        self._counts[known] -= 1
        if not self._counts[known]:
            del self._counts[known]

    def result(self) -> int:
        return len(self._counts)


class Extreme:
    """The least or greatest value: only values that no later one exceeds can become it."""

    def __init__(self, *, greatest: bool) -> None:
        self._greatest = greatest
        self._values: deque[tuple[Any, Any]] = deque()

    def add(self, value: Any) -> None:
        known = _comparable(value)
        while self._values and (self._values[-1][0] < known if self._greatest else self._values[-1][0] > known):
            self._values.pop()
        self._values.append((known, value))

    def remove(self, value: Any) -> None:
        if self._values[0][0] == _comparable(value):
            self._values.popleft()

    def result(self) -> Any:
        return self._values[0][1] if self._values else None


class Sum:
    """A sum or average of whole numbers: decimals and doubles are counted in their smallest unit, so nothing drifts."""

    def __init__(self, *, averages: bool, scale: int | None, is_binary: bool) -> None:
        self._averages = averages
        self._scale = scale
        self._is_binary = is_binary
        self._total = 0
        self._count = 0
        self._not_finite: Counter[str] = Counter()

    def add(self, value: Any) -> None:
        self._change(value, 1)

    def remove(self, value: Any) -> None:
        self._change(value, -1)

    def result(self) -> Any:
        if not self._count:
            return None
        if self._is_binary:
            kinds = {kind for kind, count in self._not_finite.items() if count}
            if kinds:
                return float(kinds.pop()) if len(kinds) == 1 else math.nan
            return _quotient(self._total, (self._count if self._averages else 1) << _POWER)
        if self._averages:
            return _quotient(self._total, self._count * 10 ** (self._scale or 0))
        return self._total if self._scale is None else decimal.Decimal(self._total).scaleb(-self._scale, _EXACT)

    def _change(self, value: Any, by: int) -> None:
        self._count += by
        if self._scale is not None:
            self._total += by * int(value.scaleb(self._scale, _EXACT))
        elif not self._is_binary:
            self._total += by * int(value)
        elif math.isfinite(value):
            numerator, denominator = float(value).as_integer_ratio()
            self._total += by * (numerator << (_POWER + 1 - denominator.bit_length()))
        else:
            self._not_finite[str(float(value))] += by


def _quotient(numerator: int, denominator: int) -> float:
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


def _comparable(value: Any) -> Any:
    """The value for comparisons: NaN equals itself and is greater than any other, as in Spark."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return bytes(value) if isinstance(value, bytearray) else value


class Sliding:
    """The stateful functions of one key."""

    def __init__(
        self,
        order: InOrder,
        time: str,
        columns: Sequence[str],
        aggregates: Sequence[Aggregate],
        size: datetime.timedelta,
    ) -> None:
        self._order = order
        self._time = time
        self._width = len(columns)
        self._row_of = Row(*columns, *(each.name for each in aggregates))
        self._kept_as = Row(AT, *(_given(each.name) for each in aggregates))
        self._aggregates = aggregates
        self._size = size

    def arrived(self, key: Any, rows: Iterator[Row], ctx: KeyContext) -> Iterator[Row]:
        for row in self._order.arrived(key, rows, ctx):
            yield self._row_of(*row[: self._width], *[None] * len(self._aggregates))

    def due(self, key: Any, at: datetime.datetime, ctx: KeyContext) -> Iterator[Row]:
        recent = list(ctx.list(RECENT))
        window = deque(recent)
        running = [each.running() for each in self._aggregates]
        for kept in recent:
            _change(running, kept[1:], added=True)
        for when, equal in groupby(self._order.due(key, at, ctx), key=lambda row: row[self._time]):
            rows = list(equal)
            for row in rows:
                window.append(self._kept_as(when, *row[self._width :]))
                _change(running, row[self._width :], added=True)
            while window[0][AT] <= when - self._size:
                _change(running, window.popleft()[1:], added=False)
            results = [each.result() for each in running]
            for row in rows:
                yield self._row_of(*row[: self._width], *results)
        # Rows to come are after the watermark.
        needed = [kept for kept in window if kept[AT] > ctx.watermark - self._size]
        if needed != recent:
            ctx.list(RECENT).replace(needed)
        if needed:
            self._order.wake(needed[-1][AT] + self._size, ctx)


def _change(running: Sequence[Running], values: Sequence[Any], *, added: bool) -> None:
    for each, value in zip(running, values, strict=True):
        if value is not None:
            (each.add if added else each.remove)(value)
