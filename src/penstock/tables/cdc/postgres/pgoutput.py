"""The messages of pgoutput, PostgreSQL's own plugin for logical decoding (protocol version 1)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.errors import ChangesLostError

EPOCH_MS: Final = 946_684_800_000
"""PostgreSQL counts microseconds since 2000."""

BEGIN: Final = ord("B")
COMMIT: Final = ord("C")
RELATION: Final = ord("R")
INSERT: Final = ord("I")
UPDATE: Final = ord("U")
DELETE: Final = ord("D")
TRUNCATE: Final = ord("T")
IGNORED: Final = frozenset(b"OYM")
"""Origin, type, and logical message."""

_TEXT: Final = ord("t")
_NULL: Final = ord("n")
_UNCHANGED: Final = ord("u")
_KEY: Final = ord("K")
_OLD: Final = ord("O")
_NEW: Final = ord("N")

_u16 = struct.Struct(">H").unpack_from
_i32 = struct.Struct(">i").unpack_from
_u32 = struct.Struct(">I").unpack_from
_begin = struct.Struct(">QqI").unpack_from
_commit = struct.Struct(">BQQq").unpack_from


class Unchanged(Enum):
    """Stands for a large value that an update did not change, and that PostgreSQL therefore does not send."""

    UNCHANGED = 0


UNCHANGED: Final = Unchanged.UNCHANGED
Value = bytes | None | Unchanged
Values = list[Value]


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    is_key: bool
    """Part of the replica identity."""


@dataclass(frozen=True, slots=True)
class Relation:
    oid: int
    schema: str
    name: str
    identity: str
    """d default (the primary key), f full, i an index, n nothing."""
    columns: tuple[RelationColumn, ...]

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


def parse_begin(data: bytes) -> tuple[int, int, int]:
    """The LSN of the commit, its time in milliseconds, and the transaction's id."""
    lsn, time_us, transaction = _begin(data, 1)
    return lsn, time_us // 1000 + EPOCH_MS, transaction


def parse_commit(data: bytes) -> int:
    """The LSN after the transaction."""
    end: int = _commit(data, 1)[2]
    return end


def parse_relation(data: bytes) -> Relation:
    (oid,) = _u32(data, 1)
    schema, place = _name(data, 5)
    name, place = _name(data, place)
    identity = chr(data[place])
    (count,) = _u16(data, place + 1)
    place += 3
    columns = []
    for _ in range(count):
        is_key = bool(data[place] & 1)
        column, place = _name(data, place + 1)
        (type_oid,) = _u32(data, place)
        place += 8
        columns.append(RelationColumn(column, type_oid, is_key))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def relation_of(data: bytes) -> int:
    """The relation of an insert, update or delete."""
    oid: int = _u32(data, 1)[0]
    return oid


def parse_insert(data: bytes) -> Values:
    return _values(data, 6)[0]


def parse_update(data: bytes) -> tuple[Values | None, bool, Values]:
    """What is known of the old row, whether that is the whole row, and the new row.

    Of the old row nothing is known unless its key changed, or the replica identity is full.
    """
    kind = data[5]
    old, place = None, 5
    if kind in (_KEY, _OLD):
        old, place = _values(data, 6)
    if data[place] != _NEW:
        raise ChangesLostError(f"an update message without a new row: {data[:40]!r}")
    return old, kind == _OLD, _values(data, place + 1)[0]


def parse_delete(data: bytes) -> tuple[Values, bool]:
    """The old row, or only its key columns, and whether it is the whole row."""
    return _values(data, 6)[0], data[5] == _OLD


def parse_truncate(data: bytes) -> list[int]:
    """The relations."""
    (count,) = _u32(data, 1)
    return list(struct.unpack_from(f">{count}I", data, 6))


def _name(data: bytes, place: int) -> tuple[str, int]:
    end = data.index(0, place)
    return data[place:end].decode(), end + 1


def _values(data: bytes, place: int) -> tuple[Values, int]:
    (count,) = _u16(data, place)
    place += 2
    values: Values = []
    for _ in range(count):
        kind = data[place]
        if kind == _TEXT:
            start = place + 5
            place = start + _i32(data, place + 1)[0]
            values.append(data[start:place])
        elif kind == _NULL:
            values.append(None)
            place += 1
        elif kind == _UNCHANGED:
            values.append(UNCHANGED)
            place += 1
        else:
            raise ChangesLostError(f"a value of the unknown kind {chr(kind)!r}: is the server newer than Penstock?")
    return values, place
