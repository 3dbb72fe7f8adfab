"""JSON values of captured rows as parameters of a database, without loss. What would lose something is refused."""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from penstock.databases.statements import affinity_of

Convert = Callable[[Any], Any]
"""From a JSON value that is not null to a parameter. Raises ValueError that says what would be lost."""

_LIMITED: Final = re.compile(r"(?P<base>[a-z ]+?)\s*\((?P<digits>\d+)(,(?P<scale>-?\d+))?\)(?P<rest>.*)")
_ZONE: Final = re.compile(r"(Z|[+-]\d\d(:?\d\d)?)$")
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]*")
_POSTGRES_NUMBERS: Final = ("smallint", "integer", "bigint", "numeric", "real", "double precision")
_FRACTION: Final = re.compile(r"\.(\d+)")


def postgres_converter(declared: str) -> Convert:
    """For a column of this type. PostgreSQL parses text strictly; this refuses what it would round or cut."""
    if declared.endswith("[]"):
        return _array(postgres_converter(declared[:-2]))
    if declared in ("json", "jsonb"):
        return lambda value: value if isinstance(value, str) else json.dumps(value)
    if declared == "bytea":
        return lambda value: "\\x" + _bytes(value).hex()
    limited = _LIMITED.fullmatch(declared)
    base = declared if limited is None else (limited["base"] + limited["rest"]).strip()
    if base == "numeric" and limited is not None:
        return _numeric(int(limited["scale"] or 0))
    if base == "real":
        return _real
    if base == "date":
        return _without("T", "the time of day")
    if base.startswith(("timestamp", "time")):
        return _moment(base, None if limited is None else int(limited["digits"]))
    return _text


def sqlite_converter(declared: str) -> Convert:
    """For a column of this declared type, whose affinity may change values."""
    affinity = affinity_of(declared)
    if affinity == "BLOB" and declared:
        return _bytes
    if affinity == "REAL":
        return _sqlite_real
    if affinity in ("INTEGER", "NUMERIC"):
        return _sqlite_number
    return _sqlite_plain


def key_converter(convert: Convert, declared: str, *, is_sqlite: bool) -> Convert:
    """For the key column of this type, whose values are text: two texts must not become one number."""
    if is_sqlite:
        is_number = affinity_of(declared) in ("INTEGER", "NUMERIC", "REAL")
    else:
        is_number = declared.partition("(")[0] in _POSTGRES_NUMBERS

    def number(value: Any) -> Any:
        if not isinstance(value, str):
            return convert(value)
        if _INTEGER.fullmatch(value) is not None:
            return convert(int(value))
        if is_sqlite:
            return convert(value)
        raise ValueError("the key is not written like a whole number, and the column has only numbers: declare it text")

    return number if is_number else convert


def type_of(value: Any, *, is_sqlite: bool, is_key: bool) -> str:
    """The type of a new column for a JSON value."""
    if isinstance(value, bool):
        return "INTEGER" if is_sqlite else "boolean"
    if isinstance(value, int) and is_key:
        return "INTEGER" if is_sqlite else "bigint"
    if isinstance(value, int | float):  # a later value may have a fraction, or need more digits
        return "NUMERIC" if is_sqlite else "numeric"
    if isinstance(value, list | dict):
        return "TEXT" if is_sqlite else "jsonb"
    return "TEXT" if is_sqlite else "text"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return value if isinstance(value, str) else repr(value)


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, binascii.Error) as error:
        raise ValueError(f"it is not base64: {error}") from None


def _numeric(scale: int) -> Convert:
    def convert(value: Any) -> str:
        text = _text(value)
        try:
            number = Decimal(text)
        except InvalidOperation:
            return text  # PostgreSQL says what is wrong with it
        if number.is_finite() and number != round(number, scale):
            raise ValueError(f"the column keeps {scale} digits after the point")
        return text

    return convert


def _real(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            (short,) = struct.unpack("f", struct.pack("f", value))
        except OverflowError:
            raise ValueError("it is too large for 32 bits") from None
        if not any(float(f"{short:.{digits}g}") == value for digits in (6, 7, 8, 9, 17)):
            raise ValueError("the column keeps 32 bits")
    return _text(value)


def _without(mark: str, what: str) -> Convert:
    def convert(value: Any) -> str:
        text = _text(value)
        if mark in text:
            raise ValueError(f"{what} would be lost")
        return text

    return convert


def _moment(base: str, digits: int | None) -> Convert:
    has_zone = base.endswith("with time zone")

    def convert(value: Any) -> str:
        text = _text(value)
        is_finite = text[:1].isdigit()
        # A date alone ends with what looks like an offset.
        zoned = _ZONE.search(text, 10 if base.startswith("timestamp") else 0) is not None
        if is_finite and zoned and not has_zone:
            raise ValueError("its time zone would be lost")
        if is_finite and not zoned and has_zone and not text.endswith("BC"):
            raise ValueError("it has no time zone, and the column needs one")
        fraction = _FRACTION.search(text)
        if digits is not None and fraction is not None and len(fraction[1].rstrip("0")) > digits:
            raise ValueError(f"the column keeps {digits} digits of a second")
        return text

    return convert


def _array(element: Convert) -> Convert:
    def literal(value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, list):
            return "{" + ",".join(map(literal, value)) + "}"
        text = str(element(value)).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{text}"'

    return lambda value: literal(value) if isinstance(value, list) else _text(value)


def _sqlite_plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("SQLite's integers have 64 bits")
    return value


def _sqlite_number(value: Any) -> Any:
    if isinstance(value, str):
        if value in ("Infinity", "-Infinity"):
            return float(value)
        if _is_number(value):
            raise ValueError("the column would turn this text into a number, and lose its digits: declare it TEXT")
    return _sqlite_plain(value)


def _sqlite_real(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and int(float(value)) != value:
        raise ValueError("the column keeps 53 bits: declare it INTEGER")
    return _sqlite_number(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
