"""`SqlTable`: a table of PostgreSQL or SQLite as a place for results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql.types import StructType

from penstock.errors import ConfigError, GuaranteeError, SchemaMismatchError
from penstock.model import Guarantee
from penstock.spark.sink.sql.columns import columns_of
from penstock.spark.sink.sql.database import SqlDatabase, names_in
from penstock.spark.sink.sql.delivery import SqlDelivery, check_fits
from penstock.spark.targets import OutputMode, QueryIdentity

_FORMS = "postgresql://USER@HOST/DATABASE or sqlite:./FILE"


@dataclass(frozen=True, slots=True)
class SqlTable:
    """A table of the database at `url`: postgresql://... or sqlite:PATH.

    With a `key`, a column or several, a row replaces the one of the same key; without one, rows are added. A frame in
    update mode needs one; one in complete mode replaces all rows of the table, which then is the query's alone. The
    table is created from the frame's columns if it is missing, with the key as its primary key, unless `create` is
    False. One that is there must have the columns, in types that keep every value as it is, and a unique index over the
    key. Arrays, maps and structs become JSON.

    Exactly-once: rows and the number of the batch, in the table `penstock_spark_batches`, in one transaction.
    At-least-once does without that table; a batch that is done again is written again, which a key makes good.
    """

    url: str
    table: str
    key: Sequence[str] | str | None = field(default=None, kw_only=True)
    create: bool = field(default=True, kw_only=True)
    guarantee: Guarantee = field(default=Guarantee.EXACTLY_ONCE, kw_only=True)

    def __post_init__(self) -> None:
        names_in(self.table)
        keys = (self.key,) if isinstance(self.key, str) else tuple(self.key or ())
        object.__setattr__(self, "key", keys)
        if self.guarantee not in (Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE):
            raise GuaranteeError(
                f"{self.label}: guarantee={str(self.guarantee)!r} is not one of exactly-once, at-least-once"
            )
        object.__setattr__(self, "guarantee", Guarantee(self.guarantee))
        if not self.url.startswith(("postgresql://", "postgres://", "sqlite:")):
            raise ConfigError(f"{self.url.partition(':')[0]!r} is no database for {self.label}: use {_FORMS}")
        if self.url.startswith("sqlite:"):
            path = self.url.removeprefix("sqlite:")
            if not path or path.startswith((":", "//")):
                raise ConfigError(f"{self.url!r} names no file: write the path right behind the colon, sqlite:./FILE")
            object.__setattr__(self, "url", f"sqlite:{os.path.abspath(os.path.expanduser(path))}")

    @property
    def label(self) -> str:
        return f"table {self.table}"

    def check(self, schema: StructType, mode: OutputMode) -> None:
        """A table that is there is looked at."""
        columns = columns_of(schema, self.label)
        missing = [name for name in self._keys if name not in schema.names]
        if missing:
            raise SchemaMismatchError(
                f"{self.label}: there is no column {missing[0]!r} for its key; there are {', '.join(schema.names)}"
            )
        if mode == "update" and not self._keys:
            raise ConfigError(
                f"{self.label}: update mode brings rows that changed again and again; say key='COLUMN', so that each "
                "replaces the one before"
            )
        database = self._database()
        try:
            with database.transaction() as transaction:
                existing = transaction.describe(names_in(self.table))
            if existing is not None:
                check_fits(database, existing, columns, self._keys, self.label)
            elif not self.create:
                raise SchemaMismatchError(f"there is no {self.label} in {database.where}: create it")
        finally:
            database.close()

    def open(self, identity: QueryIdentity) -> SqlDelivery:
        database = self._database()
        try:
            return SqlDelivery(
                database,
                identity,
                self.label,
                names_in(self.table),
                self._keys,
                create=self.create,
                marked=self.guarantee is Guarantee.EXACTLY_ONCE,
            )
        except BaseException:
            database.close()
            raise

    def for_version(self, version: str) -> SqlTable:
        """The table of this version of a pipeline, beside this one."""
        return replace(self, table=f"{self.table}_{version.replace('-', '_')}")

    @property
    def _keys(self) -> tuple[str, ...]:
        assert isinstance(self.key, tuple)
        return self.key

    def _database(self) -> SqlDatabase:
        if self.url.startswith("sqlite:"):
            from penstock.spark.sink.sql.sqlite import SqliteDatabase

            return SqliteDatabase(self.url.removeprefix("sqlite:"))
        from penstock.spark.sink.sql.postgres import PostgresDatabase

        return PostgresDatabase(self.url)
