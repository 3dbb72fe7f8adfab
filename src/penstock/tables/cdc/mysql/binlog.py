"""The events of a binlog, as MySQL 8 and MariaDB 10.5 and newer write them."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigError, SourceUnavailableError
from penstock.tables.cdc.mysql.charsets import Charsets

QUERY: Final = 2
ROTATE: Final = 4
FORMAT: Final = 15
XID: Final = 16
LOAD: Final = 18
"""LOAD DATA as a statement."""
TABLE_MAP: Final = 19
INCIDENT: Final = 26
HEARTBEAT: Final = 27
GTID: Final = 33
BETWEEN: Final = frozenset({35, 161, 163})
"""Lists of transaction ids, and checkpoints of MariaDB: they stand between transactions."""
XA_PREPARE: Final = 38
PARTIAL_UPDATE: Final = 39
TRANSACTION_PAYLOAD: Final = 40
MARIADB_GTID: Final = 162
QUERY_COMPRESSED: Final = 165
INSERTS: Final = frozenset({23, 30, 166, 169})
UPDATES: Final = frozenset({24, 31, 167, 170})
DELETES: Final = frozenset({25, 32, 168, 171})
ROWS: Final = INSERTS | UPDATES | DELETES
_COMPRESSED_ROWS: Final = frozenset(range(166, 172))
_VERSION_2_ROWS: Final = frozenset({30, 31, 32, 169, 170, 171})
ARTIFICIAL: Final = 0x20
"""The flag of an event that the server made up for this connection: it is not in the file."""
HEADER: Final = 20
"""Bytes before the body: the packet's first one, and the header of the event."""
CHECKSUM: Final = 4
TABLE_ID: Final = 6
"""Bytes of the number that a table map begins with."""
UNREADABLE: Final = {
    PARTIAL_UPDATE: "parts of JSON values (binlog_row_value_options)",
    TRANSACTION_PAYLOAD: "compressed transactions (binlog_transaction_compression)",
}
STANDALONE: Final = 1
PREPARED_XA: Final = 64
"""Flags of MariaDB's GTID event: the transaction is one statement; it is only prepared."""

_header = struct.Struct("<IBIIIH").unpack_from
_QUERY: Final = struct.Struct("<IIBHH")
_LOAD_BYTES: Final = 13
"""The number of the file, and where its name stands in the statement."""

# The optional metadata of a table map.
_SIGNEDNESS: Final = 1
_DEFAULT_CHARSET: Final = 2
_COLUMN_CHARSET: Final = 3
_COLUMN_NAME: Final = 4
_SET_VALUES: Final = 5
_ENUM_VALUES: Final = 6
_KEY: Final = 8
_KEY_WITH_PREFIX: Final = 9
_ENUM_SET_DEFAULT_CHARSET: Final = 10
_ENUM_SET_COLUMN_CHARSET: Final = 11

# Types of columns.
DECIMAL, TINY, SHORT, LONG, FLOAT, DOUBLE, NULL, TIMESTAMP, LONGLONG, INT24, DATE, TIME, DATETIME, YEAR = range(14)
VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = range(15, 20)
TYPED_ARRAY, VECTOR, JSON, NEWDECIMAL, ENUM, SET = 20, 242, 245, 246, 247, 248
BLOB, VAR_STRING, STRING, GEOMETRY = 252, 253, 254, 255
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
_TWO_BYTES: Final = frozenset({VARCHAR, BIT, NEWDECIMAL, ENUM, SET, VAR_STRING, STRING, DECIMAL, VARCHAR_COMPRESSED})
_ONE_BYTE: Final = frozenset(
    {FLOAT, DOUBLE, BLOB, JSON, GEOMETRY, TIMESTAMP2, DATETIME2, TIME2, BLOB_COMPRESSED, VECTOR}
)
_NUMERIC: Final = frozenset({DECIMAL, TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, NEWDECIMAL, YEAR})
_CHARACTER: Final = frozenset({VARCHAR, VAR_STRING, STRING, BLOB, BLOB_COMPRESSED, VARCHAR_COMPRESSED})


@dataclass(frozen=True, slots=True)
class Header:
    """What every event begins with."""

    time_s: int
    kind: int
    server_id: int
    size: int
    end: int
    """The position after the event in the file, without what is above 32 bits. 0: it is not in the file."""
    flags: int


@dataclass(slots=True)
class Column:
    """A column as a table map describes it."""

    name: str
    kind: int
    meta: int
    is_unsigned: bool = False
    collation: int = 63
    """That of MySQL with this number; 63 is binary."""
    labels: tuple[str, ...] = ()
    """The values of an ENUM or SET."""

    @property
    def is_binary(self) -> bool:
        return self.collation == 63


@dataclass(frozen=True, slots=True)
class TableMap:
    """The columns of a table, as they are for the row events that follow."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """The columns of the primary key, in its order."""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class RowsEvent:
    """The rows of an event, not parsed yet."""

    table_id: int
    width: int
    present: bytes
    """A bit for each column that the rows have; of an update, the row before it."""
    present_after: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Query:
    """A statement, which in a row binlog is DDL or the frame of a transaction."""

    schema: str
    text: str


@dataclass(slots=True)
class _Reader:
    data: bytes
    at: int = 0

    def take(self, size: int) -> bytes:
        found = self.data[self.at : self.at + size]
        if len(found) != size:
            raise SourceUnavailableError("an event of the binlog was cut short: read it again")
        self.at += size
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def packed(self) -> int:
        """A number of 1 to 9 bytes."""
        first = self.number(1)
        if first < 251:
            return first
        return self.number({252: 2, 253: 3, 254: 8}.get(first, 8))

    def text(self) -> bytes:
        return self.take(self.packed())


def parse_header(packet: bytes) -> Header:
    return Header(*_header(packet, 1))


def is_checked(packet: bytes) -> bool:
    """Whether the event ends with its checksum."""
    return zlib.crc32(memoryview(packet)[1:-CHECKSUM]) == int.from_bytes(packet[-CHECKSUM:], "little")


def has_checksums(packet: bytes) -> bool:
    """Whether the events after this description have checksums. It always has one itself."""
    return packet[-CHECKSUM - 1] == 1


def parse_rotate(body: bytes) -> tuple[str, int]:
    """The file that follows, and the position in it."""
    return body[8:].decode(), int.from_bytes(body[:8], "little")


def parse_mariadb_gtid(body: bytes) -> tuple[int, int, int]:
    """Domain, sequence number, flags."""
    sequence, domain, flags = struct.unpack_from("<QIB", body)
    return domain, sequence, flags


def parse_gtid(body: bytes) -> str:
    """MySQL's global transaction id."""
    text = body[1:17].hex()
    (number,) = struct.unpack_from("<q", body, 17)
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}:{number}"


def parse_query(body: bytes, kind: int, charsets: Charsets) -> Query:
    _, _, schema_size, _, status_size = _QUERY.unpack_from(body)
    at = _QUERY.size + (_LOAD_BYTES if kind == LOAD else 0)
    status = body[at : at + status_size]
    at += status_size
    schema = body[at : at + schema_size].decode()
    text = body[at + schema_size + 1 :]
    if kind == QUERY_COMPRESSED:
        text = uncompressed(text)
    return Query(schema, charsets.decoder(_client_collation(status))(text))


def _client_collation(status: bytes) -> int:
    """The collation of the client's text, by which the statement is encoded. 45, utf8mb4, if it is not told."""
    at = 0
    while at < len(status):
        code = status[at]
        if code == 4:
            return int.from_bytes(status[at + 1 : at + 3], "little")
        sizes = {0: 4, 1: 8, 3: 4}
        if code in sizes:
            at += 1 + sizes[code]
        elif code in (2, 6):  # the catalog; the older form ends with a zero
            at += 2 + status[at + 1] + (code == 2)
        else:
            break
    return 45


def uncompressed(data: bytes) -> bytes:
    """What MariaDB compresses with log_bin_compress: a byte with the size of the size, the size, zlib's data."""
    return zlib.decompress(data[1 + (data[0] & 7) :])


def parse_rows(body: bytes, kind: int) -> RowsEvent:
    table_id = table_of(body)
    reader = _Reader(body, 8)
    if kind in _VERSION_2_ROWS:
        reader.take(reader.number(2) - 2)
    width = reader.packed()
    present = reader.take((width + 7) // 8)
    present_after = reader.take((width + 7) // 8) if kind in UPDATES else present
    data = body[reader.at :]
    if kind in _COMPRESSED_ROWS:
        data = uncompressed(data)
    return RowsEvent(table_id, width, present, present_after, data)


def table_of(body: bytes) -> int:
    """The number that a table map gave to its table."""
    return int.from_bytes(body[:6], "little")


def table_name(described: bytes) -> str:
    """The name in a table map after its number, without parsing the rest."""
    reader = _Reader(described, 2)
    schema = reader.take(reader.number(1)).decode()
    reader.take(1)
    return f"{schema}.{reader.take(reader.number(1)).decode()}"


def parse_table_map(body: bytes, charsets: Charsets) -> TableMap:
    """Raises ConfigError if it does not have the names of the columns."""
    reader = _Reader(body, 8)
    schema = reader.take(reader.number(1)).decode()
    reader.take(1)
    name = reader.take(reader.number(1)).decode()
    reader.take(1)
    width = reader.packed()
    kinds = reader.take(width)
    metas = _Reader(reader.text())
    columns = [_column(kind, metas) for kind in kinds]
    reader.take((width + 7) // 8)
    options: dict[int, bytes] = {}
    while reader.at < len(body):
        option = reader.number(1)
        options[option] = reader.text()
    if _COLUMN_NAME not in options:
        raise ConfigError(
            f"a change of table {schema}.{name} was logged without the names of its columns: SET GLOBAL "
            "binlog_row_metadata = FULL, then take a new snapshot with --snapshot again"
        )
    names = _Reader(options[_COLUMN_NAME])
    for column in columns:
        column.name = names.text().decode()
    bits = options.get(_SIGNEDNESS, b"")
    for index, column in enumerate(each for each in columns if each.kind in _NUMERIC):
        column.is_unsigned = bool(index // 8 < len(bits) and bits[index // 8] & (0x80 >> index % 8))
    _set_collations([each for each in columns if each.kind in _CHARACTER], options, _DEFAULT_CHARSET, _COLUMN_CHARSET)
    labelled = [each for each in columns if each.kind in (ENUM, SET)]
    _set_collations(labelled, options, _ENUM_SET_DEFAULT_CHARSET, _ENUM_SET_COLUMN_CHARSET)
    for kind, option in ((ENUM, _ENUM_VALUES), (SET, _SET_VALUES)):
        lists = _Reader(options.get(option, b""))
        for column in (each for each in columns if each.kind == kind):
            decode = charsets.decoder(column.collation)
            column.labels = tuple(decode(lists.text()) for _ in range(lists.packed()))
    return TableMap(schema, name, tuple(columns), _key([each.name for each in columns], options))


def _key(names: list[str], options: dict[int, bytes]) -> tuple[str, ...]:
    reader = _Reader(options.get(_KEY) or options.get(_KEY_WITH_PREFIX, b""))
    found: list[str] = []
    while reader.at < len(reader.data):
        found.append(names[reader.packed()])
        if _KEY not in options:
            reader.packed()  # the length of the prefix
    return tuple(found)


def _column(kind: int, metas: _Reader) -> Column:
    if kind in _TWO_BYTES:
        first, second = metas.take(2)
        if kind == STRING:
            if first & 0x30 != 0x30:  # a CHAR that is longer than 255 bytes: two bits of its size are here
                return Column("", STRING, second | ((first & 0x30) ^ 0x30) << 4)
            return Column("", first, second)  # ENUM and SET are STRING in the list of types
        return Column("", kind, first << 8 | second if kind in (NEWDECIMAL, BIT) else second << 8 | first)
    return Column("", kind, metas.number(1) if kind in _ONE_BYTE else 0)


def _set_collations(columns: list[Column], options: dict[int, bytes], default: int, each: int) -> None:
    if default in options:
        reader = _Reader(options[default])
        usual = reader.packed()
        others: dict[int, int] = {}
        while reader.at < len(reader.data):
            index = reader.packed()
            others[index] = reader.packed()
        for index, column in enumerate(columns):
            column.collation = others.get(index, usual)
    elif each in options:
        reader = _Reader(options[each])
        for column in columns:
            column.collation = reader.packed()
