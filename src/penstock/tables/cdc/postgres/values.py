"""PostgreSQL's text form of each type as JSON, without loss. docs/how-to/change-data-capture.md has the table.

Sessions are set so that the text does not depend on the server's settings: see `connections.SESSION`.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.databases.postgres import psycopg
from penstock.errors import UnsupportedTypeError
from penstock.tables.cdc.records import UNPLAIN, quoted_json, text_json

Converter = Callable[[bytes], bytes]
"""From PostgreSQL's text to JSON."""

_FINITE: Final = re.compile(rb"[-+0-9.eE]+\Z").match
_LIST_TYPES: Final = """
SELECT t.oid, n.nspname, t.typname, t.typtype, t.typelem, t.typbasetype, t.typcategory, t.typdelim
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace"""


def plain(text: bytes) -> bytes:
    return text


def boolean(text: bytes) -> bytes:
    return b"true" if text == b"t" else b"false"


def floating(text: bytes) -> bytes:
    """NaN and the infinities have no JSON numbers."""
    return text if _FINITE(text) else quoted_json(text)


def binary(text: bytes) -> bytes:
    return b'"%b"' % binascii.b2a_base64(binascii.unhexlify(text[2:]), newline=False)


def timestamp(text: bytes) -> bytes:
    """RFC 3339 without a zone. Years before Christ and the infinities stay as they are."""
    return b'"%b"' % (text if text.endswith(b"BC") else text.replace(b" ", b"T", 1))


def timestamptz(text: bytes) -> bytes:
    """RFC 3339 in UTC, the time zone of the session."""
    if text.endswith(b"+00"):
        return b'"%bZ"' % text[:-3].replace(b" ", b"T", 1)
    return b'"%b"' % text


def timetz(text: bytes) -> bytes:
    """With minutes in the offset: 12:00:00+02:00."""
    return b'"%b"' % (text + b":00" if text[-3:-2] in (b"+", b"-") else text)


def column_json(texts: list[bytes | None], convert: Converter) -> list[bytes]:
    """The values of one column as JSON. Common types are converted together, in a fraction of the time."""
    together = _TOGETHER.get(convert, _one_by_one)
    if None not in texts:
        return together(texts, convert)  # type: ignore[arg-type]  # none is None
    found = iter(together([each for each in texts if each is not None], convert))
    return [b"null" if each is None else next(found) for each in texts]


def _one_by_one(texts: list[bytes], convert: Converter) -> list[bytes]:
    return list(map(convert, texts))


def _unchanged(texts: list[bytes], convert: Converter) -> list[bytes]:
    return texts


def _quoted(texts: list[bytes], convert: Converter) -> list[bytes]:
    return [b'"' + text + b'"' for text in texts]


def _texts(texts: list[bytes], convert: Converter) -> list[bytes]:
    joined = b"".join(texts)
    if len(joined.translate(None, UNPLAIN)) == len(joined):
        return _quoted(texts, convert)
    return _one_by_one(texts, convert)


def _timestamps(texts: list[bytes], convert: Converter) -> list[bytes]:
    joined = b"\n".join(texts)
    if b"BC" in joined:
        return _one_by_one(texts, convert)
    return _quoted(joined.replace(b" ", b"T").split(b"\n"), convert)


def _timestamptzs(texts: list[bytes], convert: Converter) -> list[bytes]:
    ended = b"\n".join([*texts, b""])
    if ended.count(b"+00\n") != len(texts):  # some are before Christ, or infinite
        return _one_by_one(texts, convert)
    return _quoted(ended.replace(b" ", b"T").replace(b"+00\n", b"Z\n").split(b"\n")[:-1], convert)


_TOGETHER: Final[dict[Converter, Callable[[list[bytes], Converter], list[bytes]]]] = {
    plain: _unchanged,
    quoted_json: _quoted,
    text_json: _texts,
    timestamp: _timestamps,
    timestamptz: _timestamptzs,
}

_CONVERTERS: Final[dict[str, Converter]] = {
    **dict.fromkeys(("int2", "int4", "int8", "oid", "xid", "cid", "xid8"), plain),
    **dict.fromkeys(("float4", "float8"), floating),
    "bool": boolean,
    "bytea": binary,
    "timestamp": timestamp,
    "timestamptz": timestamptz,
    "timetz": timetz,
    **dict.fromkeys(
        ("numeric", "date", "time", "interval", "uuid", "inet", "cidr", "macaddr", "macaddr8", "bit", "varbit"),
        quoted_json,
    ),
    "pg_lsn": quoted_json,
}
"""By the name of a type in pg_catalog. All others are text."""
_UNSUPPORTED: Final = {"money": "its text depends on the server's locale: change the column to numeric"}


@dataclass(frozen=True, slots=True)
class TypeRow:
    schema: str
    name: str
    kind: str
    """b base, c composite, d domain, e enum, r range, m multirange."""
    element: int
    base: int
    category: str
    delimiter: bytes

    @property
    def shown(self) -> str:
        return self.name if self.schema in ("pg_catalog", "public") else f"{self.schema}.{self.name}"


class TypeCatalog:
    """The types of one database, read when one is first met that is not known."""

    def __init__(self) -> None:
        self._types: dict[int, TypeRow] = {}
        self._converters: dict[int, Converter] = {}

    def converter(self, oid: int, table: str, column: str, connection: psycopg.Connection[Any]) -> Converter:
        """Raises UnsupportedTypeError that names the column."""
        found = self._converters.get(oid)
        if found is None:
            found = self._converters[oid] = self._find(oid, table, column, connection)
        return found

    def name_of(self, oid: int) -> str:
        """The name of a type that was met before."""
        found = self._types.get(oid)
        if found is None:
            return f"type {oid}"
        if found.element and found.category == "A":
            return f"{self.name_of(found.element)}[]"
        return found.shown

    def _find(self, oid: int, table: str, column: str, connection: psycopg.Connection[Any]) -> Converter:
        row = self._row(oid, connection)
        if row is None:  # it was dropped since: its text is all that is left
            return text_json
        if row.kind == "d":
            return self._find(row.base, table, column, connection)
        if row.element and row.category == "A":
            return array_converter(self._find(row.element, table, column, connection), row.delimiter)
        if row.schema != "pg_catalog":
            return text_json
        if row.name in _UNSUPPORTED:
            raise UnsupportedTypeError(
                f"column {column!r} of table {table} has the type {row.name}, which cannot be captured: "
                f"{_UNSUPPORTED[row.name]}, or leave the column out of the publication (since PostgreSQL 15: "
                f"CREATE PUBLICATION ... FOR TABLE {table} (columns)) and pass it with --publication"
            )
        return _CONVERTERS.get(row.name, text_json)

    def _row(self, oid: int, connection: psycopg.Connection[Any]) -> TypeRow | None:
        if oid not in self._types:
            for number, schema, name, kind, element, base, category, delimiter in connection.execute(_LIST_TYPES):
                self._types[number] = TypeRow(schema, name, kind, element, base, category, str(delimiter).encode())
        return self._types.get(oid)


def array_converter(element: Converter, delimiter: bytes) -> Converter:
    """JSON arrays, nested as the array is. An array whose indexes do not start at 1 stays text: `[0:1]={a,b}`."""
    mark = re.escape(delimiter)
    token = re.compile(rb'[{}]|"((?:[^"\\]|\\.)*)"|' + mark + rb'|([^{}"' + mark + rb"]+)", re.DOTALL)

    def convert(text: bytes) -> bytes:
        if not text.startswith(b"{"):
            return text_json(text)
        out: list[bytes] = []
        for found in token.finditer(text):
            quoted, bare = found.group(1), found.group(2)
            if quoted is not None:
                out.append(element(re.sub(rb"\\(.)", rb"\1", quoted, flags=re.DOTALL)))
            elif bare is not None:
                out.append(b"null" if bare == b"NULL" else element(bare))
            else:
                out.append({b"{": b"[", b"}": b"]"}.get(found.group(0), b","))
        return b"".join(out)

    return convert
