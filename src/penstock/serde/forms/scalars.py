"""The forms of scalar types."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from penstock.model.times import EPOCH
from penstock.serde.forms.form import ScalarForm

_EXACT: Final = decimal.Context(prec=76)
_ZONED: Final = pa.timestamp("us", "UTC")


def _timestamps_tz(values: Sequence[Any]) -> pa.Array:
    """Times with a zone; TypeError for one without. Several times faster than Arrow's conversion of datetimes."""
    since = [None if value is None else value - EPOCH for value in values]
    return pa.array(since, pa.duration("us")).cast(pa.int64()).cast(_ZONED)


def _timestamps(values: Sequence[Any]) -> pa.Array:
    if any(value is not None and value.tzinfo is not None for value in values):
        raise TypeError("a time with a zone does not fit a column of times without one")
    return pa.array(values, pa.timestamp("us"))


def _texts(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _times(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else value.isoformat() for value in values], pa.string())


def _bytes(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else bytes(value) for value in values], pa.binary())


def _without_zeros(value: decimal.Decimal) -> decimal.Decimal:
    """The number without trailing zeros after the point, and never as 1E+3."""
    short = value.normalize(_EXACT)
    return short.quantize(decimal.Decimal(1), context=_EXACT) if short.as_tuple().exponent > 0 else short  # type: ignore[operator]


BOOLEAN: Final = ScalarForm(pa.bool_())
INTEGER: Final = ScalarForm(pa.int64())
SHORT_INTEGER: Final = ScalarForm(pa.int32())
FLOAT: Final = ScalarForm(pa.float64())
SHORT_FLOAT: Final = ScalarForm(pa.float32())
TEXT: Final = ScalarForm(pa.string())
BYTES: Final = ScalarForm(pa.binary())
BYTEARRAY: Final = ScalarForm(pa.binary(), _bytes)
TIMESTAMP_TZ: Final = ScalarForm(_ZONED, _timestamps_tz)
"""A date and time with a zone."""
TIMESTAMP: Final = ScalarForm(pa.timestamp("us"), _timestamps)
"""A date and time without a zone."""
DATE: Final = ScalarForm(pa.date32())
TIME: Final = ScalarForm(pa.string(), _times, datetime.time.fromisoformat)
"""Text in ISO 8601."""
TIMESPAN: Final = ScalarForm(pa.duration("us"))
UUID: Final = ScalarForm(pa.string(), _texts, uuid.UUID)
DECIMAL: Final = ScalarForm(pa.decimal128(38, 18), back=_without_zeros)
UNSIGNED: Final = ScalarForm(pa.decimal128(20, 0), back=int)
"""An unsigned 64-bit integer."""


def decimal_of(precision: int, scale: int) -> ScalarForm:
    return ScalarForm(pa.decimal128(precision, scale))


def enum_form(form: type[enum.Enum]) -> ScalarForm | None:
    """The form of an Enum if its values are all text or all integers, else None."""
    plain = of_values([member.value for member in form])
    if plain is None:
        return None

    def into(values: Sequence[Any]) -> pa.Array:
        return pa.array([None if value is None else value.value for value in values], plain.column)

    return ScalarForm(plain.column, into, form)


def of_values(values: Sequence[Any]) -> ScalarForm | None:
    """The form of a choice of values."""
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return TEXT
    return INTEGER if kinds == {int} else None
