"""The binary form of MySQL's JSON as the text that MySQL itself makes of it. MariaDB keeps JSON as text."""

from __future__ import annotations

import base64
import struct
from decimal import Decimal
from typing import Final

import msgspec

from penstock.errors import UnsupportedTypeError
from penstock.tables.cdc.mysql.decimals import decimal_reader

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_OPAQUE: Final = 15
_LITERALS: Final = {0: "null", 1: "true", 2: "false"}
_NUMBERS: Final = {
    _INT16: struct.Struct("<h"), _UINT16: struct.Struct("<H"), _INT32: struct.Struct("<i"),
    _UINT32: struct.Struct("<I"), _INT64: struct.Struct("<q"), _UINT64: struct.Struct("<Q"),
}  # fmt: skip
_PLAIN_DIGITS: Final = 15
"""MySQL writes an exponent only for numbers with more places than this before or after the point."""
_DATE, _TIME, _DATETIME, _TIMESTAMP, _NEWDECIMAL = 10, 11, 12, 7, 246


def json_text(data: bytes) -> str:
    """MySQL writes an empty value where a row was inserted without one in a lax mode: it reads as null."""
    if not data:
        return "null"
    return _value(data[0], data, 1)


def _value(kind: int, data: bytes, at: int) -> str:
    if kind <= _LARGE_ARRAY:
        return _container(kind, data, at)
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind in _NUMBERS:
        return str(_NUMBERS[kind].unpack_from(data, at)[0])
    if kind == _DOUBLE:
        return _double(struct.unpack_from("<d", data, at)[0])
    if kind == _STRING:
        size, at = _size(data, at)
        return _quoted(data[at : at + size])
    if kind == _OPAQUE:
        size, begin = _size(data, at + 1)
        return _opaque(data[at], data[begin : begin + size])
    raise UnsupportedTypeError(f"a JSON column has a value of the unknown kind {kind}: upgrade Penstock")


def _container(kind: int, data: bytes, at: int) -> str:
    is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
    width = 2 if kind in (_SMALL_OBJECT, _SMALL_ARRAY) else 4

    def number(place: int, size: int = width) -> int:
        return int.from_bytes(data[place : place + size], "little")

    count = number(at)
    place = at + 2 * width
    keys: list[str] = []
    if is_object:
        for _ in range(count):
            begin, size = at + number(place), number(place + width, 2)
            keys.append(_quoted(data[begin : begin + size]))
            place += width + 2
    values: list[str] = []
    for _ in range(count):
        each = data[place]
        is_inline = each in (_LITERAL, _INT16, _UINT16) or (width == 4 and each in (_INT32, _UINT32))
        values.append(_value(each, data, place + 1 if is_inline else at + number(place + 1)))
        place += 1 + width
    if is_object:
        return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"
    return "[" + ", ".join(values) + "]"


def _size(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, and the index after it."""
    size = shift = 0
    while True:  # ends: the last group lacks the high bit
        group = data[at]
        at += 1
        size |= (group & 0x7F) << shift
        shift += 7
        if not group & 0x80:
            return size, at


def _quoted(text: bytes) -> str:
    return msgspec.json.encode(text.decode()).decode()


def _double(number: float) -> str:
    """As MySQL: 1.0, 0.00000015, 1e20."""
    exact = Decimal(repr(number)).normalize()
    sign, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)
    point = len(digits) + exponent
    if not number or -_PLAIN_DIGITS < point <= _PLAIN_DIGITS:
        text = f"{exact:f}"
        return text if "." in text else f"{text}.0"
    first, rest = str(digits[0]), "".join(map(str, digits[1:]))
    return f"{'-' if sign else ''}{first}{'.' if rest else ''}{rest}e{point - 1}"


def _opaque(kind: int, data: bytes) -> str:
    """Values that JSON has no type for."""
    if kind == _NEWDECIMAL:
        read, _ = decimal_reader(data[0], data[1])
        return read(data, 2)
    if kind in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
        return f'"{_moment(kind, int.from_bytes(data, "little", signed=True))}"'
    return f'"base64:type{kind}:{base64.b64encode(data).decode()}"'


def _moment(kind: int, packed: int) -> str:
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    micros, whole = packed & 0xFFFFFF, packed >> 24
    if kind == _TIME:
        return f"{sign}{whole >> 12 & 0x3FF:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}.{micros:06d}"
    days, time = whole >> 17, whole & 0x1FFFF
    months = days >> 5
    date = f"{months // 13:04d}-{months % 13:02d}-{days & 31:02d}"
    return date if kind == _DATE else f"{date} {time >> 12:02d}:{time >> 6 & 63:02d}:{time & 63:02d}.{micros:06d}"
