"""MySQL's values as JSON, without loss: the text of a query, and the bytes of the binlog. Both give the same.

docs/how-to/change-data-capture.md has the table of types.
"""

from __future__ import annotations

import binascii
import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import UnsupportedTypeError
from penstock.tables.cdc.mysql import binlog
from penstock.tables.cdc.mysql.binlog import Column
from penstock.tables.cdc.mysql.charsets import Charsets
from penstock.tables.cdc.mysql.decimals import decimal_reader
from penstock.tables.cdc.mysql.json_values import json_text
from penstock.tables.cdc.records import quoted_json, text_json

FromText = Callable[[bytes], bytes]
"""From the text of a query's value to JSON."""
FromBinlog = Callable[[bytes, int], tuple[bytes, int]]
"""From bytes of the binlog, from an index on, to JSON and the index after them."""

_INTEGERS: Final = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_TEXTS: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BYTES: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_SHAPES: Final = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection",
    "geomcollection",
)  # fmt: skip
_LABELLED: Final = ("enum", "set")
_EXACT: Final = ("float", "double")
_FRACTION_BYTES: Final = (0, 1, 1, 2, 2, 3, 3)
_DAY_S: Final = 86_400
_ZERO: Final = b'"0000-00-00T00:00:00'

_float = struct.Struct("<f")
_double = struct.Struct("<d")
_NUMBERS: Final = {
    (1, False): struct.Struct("<b"), (1, True): struct.Struct("<B"), (2, False): struct.Struct("<h"),
    (2, True): struct.Struct("<H"), (4, False): struct.Struct("<i"), (4, True): struct.Struct("<I"),
    (8, False): struct.Struct("<q"), (8, True): struct.Struct("<Q"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column as the catalog has it."""

    name: str
    """The bare type: varchar."""
    full: str
    """With its length or values: varchar(20)."""

    @property
    def is_number(self) -> bool:
        """Whether its text, as it is read for a key, is a number in SQL."""
        return self.name in (*_INTEGERS, *_LABELLED, *_EXACT, "bit", "decimal", "year")

    @property
    def is_bytes(self) -> bool:
        return self.name in (*_BYTES, *_SHAPES)

    def read_by(self, name: str) -> str:
        """The SQL that reads the quoted column so that nothing is lost."""
        if self.name == "bit":
            return f"{name} + 0"
        if self.name in _EXACT:  # without it, FLOAT is rounded to six digits
            return f"{name} + 0e0"
        return name

    def key_by(self, name: str) -> str:
        """The SQL that reads a column of the key so that it is in the order of the index."""
        return f"{name} + 0" if self.name in _LABELLED else self.read_by(name)


# From the text of a query


def from_text(kind: ColumnType, table: str, column: str) -> FromText:
    """Raises UnsupportedTypeError that names the column."""
    name = kind.name
    if name == "year" or (name in _INTEGERS and "zerofill" in kind.full):
        return lambda text: b"%d" % int(text)
    if name in _INTEGERS:
        return plain
    if name == "decimal" and "zerofill" in kind.full:
        return lambda text: quoted_json(re.sub(rb"^0+(?=[0-9])", b"", text))
    if name in _TEXTS or name in _LABELLED or name == "json":
        return text_json
    if name in _BYTES or name in _SHAPES:
        return base64_json
    if name in ("decimal", "date", "time"):
        return quoted_json
    if name == "datetime":
        return moment_json
    if name == "timestamp":
        return lambda text: moment_json(text)[:-1] + b'Z"'
    if name == "double":
        return lambda text: number_json(float(text))
    if name == "float":
        return lambda text: float_json(float(text))
    if name == "bit":
        size = int(kind.full[4:-1])
        return lambda text: bits_json(int(text), size)
    raise UnsupportedTypeError(
        f"column {column!r} of table {table} has the type {kind.full}, which cannot be captured: change it (uuid and "
        "inet6 to binary(16) or text, inet4 to int unsigned), or leave the table out"
    )


def plain(text: bytes) -> bytes:
    return text


def base64_json(data: bytes) -> bytes:
    return b'"%b"' % binascii.b2a_base64(data, newline=False)


def moment_json(text: bytes) -> bytes:
    return b'"%b"' % text.replace(b" ", b"T", 1)


def number_json(number: float) -> bytes:
    if not math.isfinite(number):  # MySQL stores none
        return quoted_json(repr(number).encode())
    return repr(number).encode()


def float_json(number: float) -> bytes:
    """The shortest number that a FLOAT distinguishes from its neighbours."""
    if not math.isfinite(number):
        return number_json(number)
    packed = _float.pack(number)
    for digits in (6, 7, 8, 9):
        short = float(f"{number:.{digits}g}")
        if _float.pack(short) == packed:
            return repr(short).encode()
    return repr(number).encode()


def bits_json(number: int, size: int) -> bytes:
    return b'"%b"' % f"{number:0{size}b}".encode()


def label_json(number: int, labels: Sequence[str]) -> bytes:
    """The value of an ENUM. 0 is the empty text that an invalid value became."""
    return text_json((labels[number - 1] if number else "").encode())


def labels_json(number: int, labels: Sequence[str]) -> bytes:
    return text_json(",".join(label for index, label in enumerate(labels) if number >> index & 1).encode())


# From the binlog


def from_binlog(column: Column, charsets: Charsets, table: str) -> FromBinlog:
    """Raises UnsupportedTypeError that names the column."""
    kind, meta = column.kind, column.meta
    sizes = {binlog.TINY: 1, binlog.SHORT: 2, binlog.LONG: 4, binlog.LONGLONG: 8}
    if kind in sizes:
        return _integers(sizes[kind], column.is_unsigned)
    if kind == binlog.INT24:
        return _integers_of_3(column.is_unsigned)
    if kind in (binlog.VARCHAR, binlog.VAR_STRING):
        return _sized(2 if meta > 255 else 1, _text_or_bytes(column, charsets))
    if kind == binlog.STRING:
        return _fixed_text(column, charsets)
    if kind == binlog.BLOB:
        return _sized(meta, _text_or_bytes(column, charsets))
    if kind == binlog.JSON:
        return _sized(meta, lambda data: text_json(json_text(data).encode()))
    if kind == binlog.GEOMETRY:
        return _sized(meta, base64_json)
    if kind == binlog.NEWDECIMAL:
        return _decimals(meta >> 8, meta & 255)
    if kind == binlog.FLOAT:
        return lambda data, at: (float_json(_float.unpack_from(data, at)[0]), at + 4)
    if kind == binlog.DOUBLE:
        return lambda data, at: (number_json(_double.unpack_from(data, at)[0]), at + 8)
    if kind == binlog.YEAR:
        return lambda data, at: (b"%d" % (data[at] + 1900 if data[at] else 0), at + 1)
    if kind == binlog.DATE:
        return _date
    if kind == binlog.DATETIME2:
        return _datetimes(meta)
    if kind == binlog.TIMESTAMP2:
        return _timestamps(meta)
    if kind == binlog.TIME2:
        return _times(meta)
    if kind == binlog.BIT:
        return _bits(meta & 255, meta >> 8)
    if kind in (binlog.ENUM, binlog.SET):
        return _labelled(column)
    raise UnsupportedTypeError(
        f"column {column.name!r} of table {table} has a type (number {kind} in the binlog) that cannot be captured: "
        "change it, or leave the table out (columns in the format of MySQL 5.5: ALTER TABLE ... FORCE; COMPRESSED "
        "columns: without it)"
    )


def _integers(size: int, is_unsigned: bool) -> FromBinlog:
    unpack = _NUMBERS[size, is_unsigned].unpack_from
    return lambda data, at: (b"%d" % unpack(data, at)[0], at + size)


def _integers_of_3(is_unsigned: bool) -> FromBinlog:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        return b"%d" % int.from_bytes(data[at : at + 3], "little", signed=not is_unsigned), at + 3

    return read


def _sized(width: int, convert: FromText) -> FromBinlog:
    """A value after its size."""

    def read_short(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + 1 + data[at]
        return convert(data[at + 1 : end]), end

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        begin = at + width
        end = begin + int.from_bytes(data[at:begin], "little")
        return convert(data[begin:end]), end

    return read_short if width == 1 else read


def _text_or_bytes(column: Column, charsets: Charsets) -> FromText:
    if column.is_binary:
        return base64_json
    return charsets.to_json(column.collation)


def _fixed_text(column: Column, charsets: Charsets) -> FromBinlog:
    size = column.meta
    convert = charsets.to_json(column.collation)
    if column.is_binary:  # zeros at the end are not logged

        def convert(data: bytes) -> bytes:
            return base64_json(data.ljust(size, b"\0"))

    return _sized(2 if size > 255 else 1, convert)


def _decimals(precision: int, scale: int) -> FromBinlog:
    read_text, size = decimal_reader(precision, scale)
    return lambda data, at: (b'"%b"' % read_text(data, at).encode(), at + size)


def _date(data: bytes, at: int) -> tuple[bytes, int]:
    packed = data[at] | data[at + 1] << 8 | data[at + 2] << 16
    return b'"%04d-%02d-%02d"' % (packed >> 9, packed >> 5 & 15, packed & 31), at + 3


def _fraction(data: bytes, at: int, digits: int) -> bytes:
    """The digits after the point, which are stored as an even number of them."""
    if not digits:
        return b""
    number = int.from_bytes(data[at : at + _FRACTION_BYTES[digits]], "big")
    return b".%0*d" % (digits, number // 10 if digits % 2 else number)


def _datetimes(digits: int) -> FromBinlog:
    width = 5 + _FRACTION_BYTES[digits]

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        packed = int.from_bytes(data[at : at + 5], "big") - 0x8000000000
        days, time = packed >> 17, packed & 0x1FFFF
        months = days >> 5
        return b'"%04d-%02d-%02dT%02d:%02d:%02d%b"' % (
            months // 13, months % 13, days & 31, time >> 12, time >> 6 & 63, time & 63,
            _fraction(data, at + 5, digits),
        ), at + width  # fmt: skip

    return read


def _timestamps(digits: int) -> FromBinlog:
    width = 4 + _FRACTION_BYTES[digits]

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        seconds = int.from_bytes(data[at : at + 4], "big")
        fraction = _fraction(data, at + 4, digits)
        if not seconds and not fraction.strip(b".0"):
            return b'%b%bZ"' % (_ZERO, fraction), at + width
        return b'"%bT%02d:%02d:%02d%bZ"' % (
            _day(seconds // _DAY_S), seconds % _DAY_S // 3600, seconds % 3600 // 60, seconds % 60, fraction,
        ), at + width  # fmt: skip

    return read


def _day(days: int) -> bytes:
    """The date that many days after the first of 1970."""
    era, rest = divmod(days + 719_468, 146_097)
    year = (rest - rest // 1460 + rest // 36_524 - rest // 146_096) // 365
    day = rest - (365 * year + year // 4 - year // 100)
    month = (5 * day + 2) // 153
    is_next = month >= 10
    return b"%04d-%02d-%02d" % (
        era * 400 + year + is_next,
        month - 9 if is_next else month + 3,
        day - (153 * month + 2) // 5 + 1,
    )


def _times(digits: int) -> FromBinlog:
    width = _FRACTION_BYTES[digits]
    zero = 1 << (23 + 8 * width)

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + 3 + width
        packed = int.from_bytes(data[at:end], "big") - zero
        sign, packed = (b"-", -packed) if packed < 0 else (b"", packed)
        time = packed >> 8 * width
        fraction = b""
        if digits:
            number = packed & (1 << 8 * width) - 1
            fraction = b".%0*d" % (digits, number // 10 if digits % 2 else number)
        return b'"%b%02d:%02d:%02d%b"' % (sign, time >> 12, time >> 6 & 63, time & 63, fraction), end

    return read


def _bits(size_bytes: int, size_bits: int) -> FromBinlog:
    width = size_bytes + (size_bits > 0)
    size = size_bytes * 8 + size_bits
    return lambda data, at: (bits_json(int.from_bytes(data[at : at + width], "big"), size), at + width)


def _labelled(column: Column) -> FromBinlog:
    labels, width = column.labels, column.meta
    convert = label_json if column.kind == binlog.ENUM else labels_json
    return lambda data, at: (convert(int.from_bytes(data[at : at + width], "little"), labels), at + width)
