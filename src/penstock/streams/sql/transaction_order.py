"""Existing tables of PostgreSQL that keep the transaction of each row, read in the order of transactions.

The column is `xid8 NOT NULL DEFAULT pg_current_xact_id()`. All transactions before the oldest one that is open
(`pg_snapshot_xmin`) have ended, and no later one gets a smaller number. So whatever is not visible before it will never
come, in whichever order ids are given: this also holds for programs that draw ids ahead. The price: every transaction
of the server that has written something, to any table, holds readers up until it ends.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.errors import ConfigError
from penstock.model import Pointer
from penstock.streams.sql.existing_postgres import PostgresRows, text_bytes
from penstock.streams.sql.existing_tables import LOWEST, ExistingStream
from penstock.streams.sql.postgres_pool import Listener, PostgresSettings, TablePool, quoted
from penstock.streams.sql.row_batch import Row

ID_BITS: Final = 63
ID_MASK: Final = (1 << ID_BITS) - 1
FINAL: Final = "{column} < pg_snapshot_xmin(pg_current_snapshot())"


class TransactionRows(PostgresRows):
    """`RowSource` in the order of transactions. A pointer is the transaction's number, followed by the id."""

    def __init__(self, pool: TablePool, settings: PostgresSettings, listener: Listener) -> None:
        super().__init__(pool, settings, listener)
        self._transaction = quoted(settings.transaction_column)
        self._place = f"{self._transaction}::text::bigint, {self._id}"
        self._order = f"{self._transaction}, {self._id}"
        self._is_final = FINAL.format(column=self._transaction)

    def final_end(self, table: str, beyond: Pointer) -> Pointer:
        self.check_table(table)
        backwards = f"{self._transaction} DESC, {self._id} DESC"
        found = self._one(table, f"WHERE {self._is_final} ORDER BY {backwards} LIMIT 1", ())
        return LOWEST if found is None else found + 1

    def fetch(self, table: str, start: Pointer, end: Pointer, limit: int) -> list[Row]:
        """Fetch final rows. All of them lie before `end`, so there is no comparison with it."""
        found = self._read(
            table,
            f"{self._tables[table].select} WHERE ({self._order}) >= (%s::text::xid8, %s::bigint) AND {self._is_final} "
            f"ORDER BY {self._order} LIMIT %s",
            (str(max(0, start) >> ID_BITS), max(0, start) & ID_MASK, limit),
        )
        rows: list[Row] = [
            (_packed(transaction, id), text_bytes(key), text_bytes(value), None, time_ms)
            for id, key, value, time_ms, transaction in found
        ]
        return [row for row in rows if row[0] < end]

    def first(self, table: str) -> Pointer | None:
        self._listener.start()
        return self._one(table, f"ORDER BY {self._order} LIMIT 1", ())

    def last_given(self, table: str) -> Pointer | None:
        """The id of the next transaction. A database that was restored elsewhere counts from the beginning."""
        [(found,)] = self._read(table, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        return int(found) << ID_BITS

    def at_time(self, table: str, time_ms: int) -> Pointer | None:
        condition = f"WHERE {self._tables[table].time_ms} >= %s AND {self._is_final} ORDER BY {self._order} LIMIT 1"
        return self._one(table, condition, (time_ms,))

    def _one(self, table: str, rest: str, values: tuple[Any, ...]) -> Pointer | None:
        found = self._read(table, f"SELECT {self._place} FROM {self._tables[table].name} t {rest}", values)
        return _packed(*found[0]) if found else None

    def _extra(self, columns: dict[str, str]) -> str:
        name = self._settings.transaction_column
        if columns[name] != "xid8":
            raise ConfigError(
                f"transaction_column={name!r} is {columns[name]}: it must be xid8, with DEFAULT pg_current_xact_id()"
            )
        return f", {self._transaction}::text::bigint"

    def _sequence(self, table: str, oid: int, full_name: str) -> int | None:
        """Where ids come from does not matter."""
        return None

    def _wanted(self) -> list[str]:
        return [*super()._wanted(), self._settings.transaction_column]


class TransactionStream(ExistingStream):
    """Pointers are shown as TRANSACTION/ID."""

    def pointer_text(self, pointer: Pointer) -> str:
        return f"{pointer >> ID_BITS}/{pointer & ID_MASK}"

    def parse_pointer(self, text: str) -> Pointer:
        transaction, _, id = text.partition("/")
        if not transaction.isdecimal() or not id.isdecimal():
            raise ConfigError(f"{text!r} is not a pointer here: write TRANSACTION/ID, as in 7482/31")
        return _packed(int(transaction), int(id))


def _packed(transaction: int, id: int) -> Pointer:
    return (transaction << ID_BITS) + id
