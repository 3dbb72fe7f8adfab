"""`SqlTable`: a table of PostgreSQL or SQLite as a target."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql.types import BooleanType, StructType

from penstock.databases.statements import names_in
from penstock.errors import ConfigError, SchemaMismatchError
from penstock.model import Guarantee
from penstock.spark.sink.sql.columns import columns_of
from penstock.spark.sink.sql.database import SqlDatabase
from penstock.spark.sink.sql.delivery import SqlDelivery, check_fits
from penstock.spark.sink.sql.sqlite import SqliteDatabase
from penstock.spark.sink.target import Delivery, OutputMode, QueryIdentity, guarantee_of
from penstock.spark.values.columns import require_columns

_FORMS = "postgresql://USER@HOST/DATABASE or sqlite:./FILE"


@dataclass(frozen=True, slots=True)
class SqlTable:
    """A table of the database at `url`: postgresql://... or sqlite:PATH.

    With a `key`, one column or several, a row replaces the row with the same key; without one, rows are appended.
    Update mode needs a key. In complete mode, each batch replaces all rows of the table. A missing table is created
    from the frame's columns, with the key as its primary key, unless `create` is False. An existing table must have the
    columns, with types that store every value unchanged, and a unique index over the key. Arrays, maps and structs
    become JSON. A row with null in a column of the key, or of the table's primary key, goes to the dead letters of the
    topic that the query reads; without dead letters, it fails its batch.

    `deleted` names a boolean column of the frame, which the table does not have: where it is true, the row with that
    key is deleted. So the changes of a table, as `debezium` and `join_tables` give them, make the table.

    Exactly-once: rows and the number of the batch, in the table `penstock_spark_batches`, are written in one
    transaction. At-least-once does without that table: a repeated batch is written again, which a key makes harmless.
    """

    url: str = field(repr=False)
    table: str
    key: Sequence[str] | str | None = field(default=None, kw_only=True)
    deleted: str | None = field(default=None, kw_only=True)
    create: bool = field(default=True, kw_only=True)
    guarantee: Guarantee = field(default=Guarantee.EXACTLY_ONCE, kw_only=True)

    def __post_init__(self) -> None:
        names_in(self.table)
        keys = (self.key,) if isinstance(self.key, str) else tuple(self.key or ())
        object.__setattr__(self, "key", keys)
        object.__setattr__(self, "guarantee", guarantee_of(self.guarantee, self.label))
        object.__setattr__(self, "url", database_url(self.url, self.label))

    @property
    def label(self) -> str:
        return f"table {self.table}"

    def check(self, schema: StructType, mode: OutputMode) -> None:
        """An existing table is checked, too."""
        columns = columns_of(schema, self.label)
        require_columns(schema.names, self.keys, " for the key", what=f"the frame for {self.label}")
        if self.deleted is not None:
            self._check_deleted(schema, mode)
            columns = tuple(column for column in columns if column.name != self.deleted)
        if mode == "update" and not self.keys:
            raise ConfigError(
                f"{self.label}: update mode sends changed rows again: set key='COLUMN', so that each replaces the "
                "previous one"
            )
        database = database_at(self.url)
        try:
            with database.transaction() as transaction:
                existing = transaction.describe(names_in(self.table))
            if existing is not None:
                check_fits(database, existing, columns, self.keys, self.label)
            elif not self.create:
                raise SchemaMismatchError(f"there is no {self.label} in {database.where}: create it")
        finally:
            database.close()

    def open(self, identity: QueryIdentity) -> Delivery:
        database = database_at(self.url)
        try:
            return SqlDelivery(
                database,
                identity,
                self.label,
                names_in(self.table),
                self.keys,
                deleted=self.deleted,
                create=self.create,
                marked=self.guarantee is Guarantee.EXACTLY_ONCE,
            )
        except BaseException:
            database.close()
            raise

    def for_version(self, version: str) -> SqlTable:
        """The table for this version of a pipeline."""
        return replace(self, table=f"{self.table}_{version.replace('-', '_')}")

    def _check_deleted(self, schema: StructType, mode: OutputMode) -> None:
        assert self.deleted is not None
        require_columns(schema.names, [self.deleted], " for deletions", what=f"the frame for {self.label}")
        if not isinstance(schema[self.deleted].dataType, BooleanType):
            raise SchemaMismatchError(
                f"{self.label}: column {self.deleted!r} is {schema[self.deleted].dataType.simpleString()}, and must be "
                "boolean to say which rows are deleted"
            )
        if not self.keys or self.deleted in self.keys or mode == "complete":
            raise ConfigError(
                f"{self.label}: deleted={self.deleted!r} deletes rows by their key: set key= to other columns, and use "
                "mode append or update"
            )

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key."""
        assert isinstance(self.key, tuple)
        return self.key


def database_url(url: str, label: str) -> str:
    """The URL with an absolute path. Raises ConfigError if it is not one of a database."""
    if not url.startswith(("postgresql://", "postgres://", "sqlite:")):
        raise ConfigError(f"{url.partition(':')[0]!r} is not a database for {label}: use {_FORMS}")
    if not url.startswith("sqlite:"):
        return url
    path = url.removeprefix("sqlite:")
    if not path or path.startswith((":", "//")):
        raise ConfigError(f"{url!r} names no file: write the path after the colon, sqlite:./FILE")
    return f"sqlite:{os.path.abspath(os.path.expanduser(path))}"


def database_at(url: str) -> SqlDatabase:
    if url.startswith("sqlite:"):
        return SqliteDatabase(url.removeprefix("sqlite:"))
    from penstock.spark.sink.sql.postgres import PostgresDatabase

    return PostgresDatabase(url)
