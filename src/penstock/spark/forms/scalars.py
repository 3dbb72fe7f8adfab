"""The scalars: what each Python type of one value is in a column."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from penstock.model.times import EPOCH
from penstock.spark.forms.form import ScalarForm

_EXACT: Final = decimal.Context(prec=76)
_TIMESTAMP: Final = pa.timestamp("us", "UTC")


def _moments(values: Sequence[Any]) -> pa.Array:
    """Times with a zone; one without is a TypeError. Several times faster than what Arrow does with datetimes."""
    since = [None if value is None else value - EPOCH for value in values]
    return pa.array(since, pa.duration("us")).cast(pa.int64()).cast(_TIMESTAMP)


def _wall_times(values: Sequence[Any]) -> pa.Array:
    if any(value is not None and value.tzinfo is not None for value in values):
        raise TypeError("a time with a zone has no place among times without one")
    return pa.array(values, pa.timestamp("us"))


def _texts(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _times(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else value.isoformat() for value in values], pa.string())


def _bytes(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else bytes(value) for value in values], pa.binary())


def _without_zeros(value: decimal.Decimal) -> decimal.Decimal:
    """The number without the zeros that its column has behind the point, and never as 1E+3."""
    short = value.normalize(_EXACT)
    return short.quantize(decimal.Decimal(1), context=_EXACT) if short.as_tuple().exponent > 0 else short  # type: ignore[operator]


BOOLEAN: Final = ScalarForm(BooleanType())
INTEGER: Final = ScalarForm(LongType())
SHORT_INTEGER: Final = ScalarForm(IntegerType())
FLOAT: Final = ScalarForm(DoubleType())
SHORT_FLOAT: Final = ScalarForm(FloatType())
TEXT: Final = ScalarForm(StringType())
BYTES: Final = ScalarForm(BinaryType())
BYTEARRAY: Final = ScalarForm(BinaryType(), _bytes)
MOMENT: Final = ScalarForm(TimestampType(), _moments)
"""A time with a zone, as the moment that it is."""
WALL_TIME: Final = ScalarForm(TimestampNTZType(), _wall_times)
"""A date and time without a zone."""
DATE: Final = ScalarForm(DateType())
TIME: Final = ScalarForm(StringType(), _times, datetime.time.fromisoformat)
"""As text, ISO 8601."""
TIMESPAN: Final = ScalarForm(DayTimeIntervalType())
UUID: Final = ScalarForm(StringType(), _texts, uuid.UUID)
DECIMAL: Final = ScalarForm(DecimalType(38, 18), back=_without_zeros)
UNSIGNED: Final = ScalarForm(DecimalType(20, 0), back=int)
"""A whole number of 64 bits without a sign."""


def decimal_of(precision: int, scale: int) -> ScalarForm:
    return ScalarForm(DecimalType(precision, scale))


def enum_form(form: type[enum.Enum]) -> ScalarForm | None:
    """The values of an Enum: all text, or all whole numbers; None for others."""
    plain = of_values([member.value for member in form])
    if plain is None:
        return None
    arrow = pa.string() if plain is TEXT else pa.int64()

    def into(values: Sequence[Any]) -> pa.Array:
        return pa.array([None if value is None else value.value for value in values], arrow)

    return ScalarForm(plain.column, into, form)


def of_values(values: Sequence[Any]) -> ScalarForm | None:
    """The form of a choice of values."""
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return TEXT
    return INTEGER if kinds == {int} else None
