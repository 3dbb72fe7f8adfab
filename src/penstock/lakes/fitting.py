"""Rows of Python into the columns of a table: each row fits, or it is known why not."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import SerdeError

_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=.")
_PLAIN: Final = (
    (pa.types.is_signed_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_boolean, bool),
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),
)
"""Columns that take exactly the values of a Python type."""
_KEPT: Final = (bytes, bytearray, datetime.datetime, datetime.date, datetime.time, decimal.Decimal)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Rows as a table, without those that do not fit."""

    table: pa.Table
    misfits: dict[int, str]
    """By the index of a row: why it does not fit."""


def row_of(value: object) -> Mapping[str, Any]:
    """A row from a dict, an object of a class with fields, or a JSON object as bytes. SerdeError for anything else."""
    if isinstance(value, bytes | str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise SerdeError(f"the value is not JSON ({error}): say what its row is, rows=...") from error
    elif hasattr(value, "model_dump"):
        value = value.model_dump()
    elif isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value) or hasattr(value, "__attrs_attrs__"):
        value = msgspec.to_builtins(value, builtin_types=_KEPT)
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise SerdeError(
            f"a row must be a dict of columns or an object with fields, not {_shown(value)}: say it with rows=..."
        )
    return value


def fit(rows: Sequence[Mapping[str, Any]], known: pa.Schema | None, *, key: Sequence[str], evolve: bool) -> Fitted:
    """Rows as a table with the columns of `known`, and new ones if `evolve`, whose types the values show."""
    misfits: dict[int, str] = {}
    fields = {} if known is None else {field.name: field for field in known}
    lower = {name.lower(): name for name in fields}
    for name in dict.fromkeys(name for row in rows for name in row):
        if name in fields:
            continue
        similar = lower.get(name.lower(), name)
        having = {index: row[name] for index, row in enumerate(rows) if row.get(name) is not None}
        if not having:
            continue
        if known is not None and not evolve:
            misfits.update(dict.fromkeys(having, f"the table has no column {name!r}, and evolve is off"))
            continue
        try:
            if similar != name:
                raise ValueError(f"it differs from {similar!r} only in case")
            fields[name] = pa.field(_checked_name(name), _type_shown(list(having.values())))
            lower[name.lower()] = name
        except ValueError as error:
            misfits.update(dict.fromkeys(having, f"column {name!r} is new: {error}"))
    if not fields:
        misfits.update(dict.fromkeys(range(len(rows)), "it has no values that could show the columns of a new table"))
    for index, row in enumerate(rows):
        missing = [name for name in key if row.get(name) is None]
        if missing:
            misfits.setdefault(index, f"the row has no {missing[0]!r}, a part of the key")
    arrays: dict[str, pa.Array] = {}
    for name, field in fields.items():
        values = [row.get(name) for row in rows]
        plain = _plain_array(values, field)
        if plain is not None:
            arrays[name] = plain
            continue
        check = _checker(field.type)
        for index, value in enumerate(values):
            try:
                if value is not None:
                    check(value)
                elif not field.nullable:
                    raise ValueError("it must not be null")
            except (ValueError, TypeError, OverflowError) as error:
                misfits.setdefault(index, f"column {name!r} is {field.type}: {error}")
    fitting = [index for index in range(len(rows)) if index not in misfits]
    taken = pa.array(fitting, pa.int64())
    columns = []
    for name, field in fields.items():
        if name in arrays:
            columns.append(arrays[name].take(taken) if misfits else arrays[name])
            continue
        convert = _converter(field.type)
        found = (rows[index].get(name) for index in fitting)
        columns.append(pa.array([None if value is None else convert(value) for value in found], field.type))
    return Fitted(pa.Table.from_arrays(columns, schema=pa.schema(list(fields.values()))), misfits)


def _plain_array(values: Sequence[Any], field: pa.Field) -> pa.Array | None:
    """The values, if all have the Python type of the column and fit; else each must be looked at."""
    kinds = set(map(type, values))
    if field.nullable:
        kinds.discard(type(None))
    if kinds - {kind for is_such, kind in _PLAIN if is_such(field.type)}:
        return None
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None


def converted(value: object, kind: pa.DataType) -> Any:
    """A value for a column of this type, also from text. ValueError if it is none."""
    if isinstance(value, str) and not _is_text(kind):
        if pa.types.is_integer(kind):
            value = int(value)
        elif pa.types.is_floating(kind):
            value = float(value)
        elif pa.types.is_boolean(kind):
            value = {"true": True, "false": False}.get(value.lower(), value)
    elif not isinstance(value, str | bytes) and _is_text(kind):
        value = str(value)
    _checker(kind)(value)
    return _converter(kind)(value)


def _type_shown(values: Sequence[Any]) -> pa.DataType:
    """The type of a new column. ValueError if the values show none, or several."""
    values = [str(value) if isinstance(value, uuid.UUID) else value for value in values]
    problem: Exception | None = None
    for some in (values, *([value] for value in values)):  # if they differ, the first one decides, and others must fit
        try:
            return _stored(pa.array(some).type)
        except (pa.ArrowException, OverflowError, ValueError) as error:
            problem = problem or error
    raise ValueError(f"its values show no type that a table has: {problem}")


def _stored(kind: pa.DataType) -> pa.DataType:
    """The type in which tables of both formats keep such values."""
    if pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields):
        raise ValueError("empty lists and objects, and nulls, show no type: declare it with schema=...")
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_unsigned_integer(kind):
        return pa.int64()  # the largest values do not fit
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(_checked_name(each.name), _stored(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_stored(kind.value_type))
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)  # later values may be larger
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        raise ValueError(f"Delta has no type for {kind}: use text or a number")
    return kind


def _checked_name(name: str) -> str:
    """The name of a new column. ValueError for one that Delta or Iceberg could not have."""
    if not name or not _FORBIDDEN.isdisjoint(name) or name.startswith("__penstock"):
        raise ValueError(f"a column cannot have the name {name!r}: use letters, digits, _ and -")
    return name


def _checker(kind: pa.DataType) -> Callable[[Any], None]:
    """Raises ValueError for values that would be changed, or refused, in a column of this type."""
    if pa.types.is_boolean(kind):
        return _one_of(bool)
    if pa.types.is_signed_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return lambda value: _check_integer(value, most)
    if pa.types.is_floating(kind):
        return _check_float
    if _is_text(kind):
        return _check_text
    if pa.types.is_struct(kind):
        checks = {field.name: _checker(field.type) for field in kind}
        return lambda value: _check_struct(value, checks)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        check_item = _checker(kind.value_type)
        return lambda value: _check_list(value, check_item)
    convert = _converter(kind)

    def check(value: Any) -> None:
        try:
            pa.array([convert(value)], kind)
        except (pa.ArrowException, decimal.InvalidOperation) as error:
            raise ValueError(str(error)) from error

    return check


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_timestamp(kind):
        has_zone = kind.tz is not None
        return lambda value: _moment(value, has_zone)
    if pa.types.is_date(kind):
        return _day
    if pa.types.is_decimal(kind):
        return lambda value: decimal.Decimal(str(value)) if isinstance(value, str | int | float) else value
    if pa.types.is_struct(kind):
        fields = {field.name: _converter(field.type) for field in kind}
        return lambda value: {
            name: None if value.get(name) is None else convert(value[name]) for name, convert in fields.items()
        }
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        convert_item = _converter(kind.value_type)
        return lambda value: [None if each is None else convert_item(each) for each in value]
    if _is_text(kind):
        return lambda value: str(value) if isinstance(value, uuid.UUID) else value
    return lambda value: value


def _one_of(*types: type) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        if not isinstance(value, types):
            raise ValueError(f"{_shown(value)} does not fit")

    return check


def _check_integer(value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not -most <= value < most:
        raise ValueError(f"{_shown(value)} does not fit")


def _check_float(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or float(value) != value == value:
        raise ValueError(f"{_shown(value)} does not fit")


def _check_text(value: Any) -> None:
    if not isinstance(value, str | uuid.UUID):
        raise ValueError(f"{_shown(value)} does not fit")
    str(value).encode()  # a lone surrogate is no text


def _check_struct(value: Any, checks: Mapping[str, Callable[[Any], None]]) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{_shown(value)} does not fit")
    for name, each in value.items():
        if each is None:
            continue
        if name not in checks:
            raise ValueError(f"it has no field {name!r}")
        checks[name](each)


def _check_list(value: Any, check_item: Callable[[Any], None]) -> None:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{_shown(value)} does not fit")
    for each in value:
        if each is not None:
            check_item(each)


def _moment(value: Any, has_zone: bool) -> datetime.datetime:
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    if not isinstance(value, datetime.datetime):
        raise ValueError(f"{_shown(value)} is not a time: use a datetime or ISO 8601")
    if (value.tzinfo is not None) != has_zone:
        raise ValueError(f"{_shown(value)} has {'no' if has_zone else 'a'} time zone")
    return value.astimezone(datetime.UTC) if has_zone else value


def _day(value: Any) -> datetime.date:
    if isinstance(value, str):
        value = datetime.date.fromisoformat(value)
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise ValueError(f"{_shown(value)} is not a day: use a date or YYYY-MM-DD")
    return value


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _shown(value: object) -> str:
    return f"{type(value).__name__} {repr(value)[:100]}"
