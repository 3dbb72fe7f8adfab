"""`Projection`: tables of a database that are kept up to date with the events of a store, exactly-once."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from penstock.abc import CheckpointStore, TransactionalStore
from penstock.checkpoints.opening import open_store
from penstock.consuming.context import Context
from penstock.consuming.handler_consumer import HandlerConsumer
from penstock.consuming.handlers import handler_of
from penstock.consuming.options import ConsumerOptions
from penstock.databases.statements import quoted
from penstock.errors import ConfigError, StoreUnavailableError
from penstock.model import Guarantee, Ordering, Position
from penstock.model.observing import OBSERVED
from penstock.model.retry import Retry
from penstock.tables.events.store import EventStore, StoredEvent

logger = logging.getLogger(__name__)

Project = TypeVar("Project", bound=Callable[[Any, StoredEvent], object])

VERSIONS: Final = "penstock_projections"
"""The table with the version of each projection that its views show."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,40}")
_BATCH: Final = 500


class Projection:
    """Tables that are computed from events, in PostgreSQL or SQLite.

    ```python
    tables = {"balances": "id TEXT PRIMARY KEY, cents BIGINT"}
    balances = Projection(accounts, "balances", "sqlite:./bank.db", tables=tables)

    @balances.on(Deposited)
    def deposited(database, stored):
        database.execute(f"UPDATE {balances.table('balances')} SET ...")

    balances.run()
    ```

    Rows and pointers are written in one transaction of the database. Each name in `tables` is a view that people query;
    the rows are in a table of this version. To change what is computed, raise `version`: the tables of the new version
    are filled beside the old ones, and when they have caught up, the views are switched in one transaction.
    """

    def __init__(
        self, store: EventStore[Any], name: str, database: str, *, tables: Mapping[str, str], version: int = 1
    ) -> None:
        """`tables` maps names to definitions of columns, as in CREATE TABLE. `database` is sqlite:FILE or
        postgresql://..."""
        for text in (name, *tables):
            if not isinstance(text, str) or _NAME.fullmatch(text) is None:
                raise ConfigError(
                    f"{text!r} must have 1 to 41 of the characters a-z, 0-9 and _, and start with a letter"
                )
        if not tables:
            raise ConfigError(f"the projection {name!r} has no tables: pass tables={{NAME: COLUMNS}}")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise ConfigError(f"version={version!r} must be an integer >= 1")
        if not database.startswith(("sqlite:", "postgresql://", "postgres://")):
            raise ConfigError(
                f"{database.partition(':')[0]!r} is not a database for a projection: sqlite:FILE or postgresql://..."
            )
        self.name = name
        self.version = version
        self._store = store
        self._database = database
        self._tables = dict(tables)
        self._functions: dict[type, Callable[[Any, StoredEvent], object]] = {}
        self.is_built = False
        """Whether the views show this version, or a later one."""
        self._stopping = threading.Event()
        self._consumer: HandlerConsumer | None = None

    def on(self, event: type) -> Callable[[Project], Project]:
        """Declare the function for events of this type. It gets the database's connection and the `StoredEvent`.

        Events without a function are skipped.
        """

        def declare(function: Project) -> Project:
            if event in self._functions:
                raise ConfigError(f"the projection {self.name!r} already has a function for {event.__name__}")
            self._functions[event] = function
            return function

        return declare

    def table(self, name: str) -> str:
        """The table of this version, quoted for SQL."""
        if name not in self._tables:
            raise ConfigError(f"the projection {self.name!r} has no table {name!r}: it has {', '.join(self._tables)}")
        return quoted(_table_name(name, self.version))

    def build(self) -> None:
        """Handle the events that exist now, then let the views show this version. Killed, it continues where it was."""
        self._check()
        with self._opened() as checkpoints:
            self._create(checkpoints)
        self._consume(Position.LATEST)
        if self._stopping.is_set():
            return
        with self._opened() as checkpoints:
            self._switch(checkpoints)
        self.is_built = True

    def run(self) -> None:
        """`build`, then handle events until `stop`."""
        OBSERVED.enter(self)
        try:
            self.build()
            if not self._stopping.is_set():
                self._consume(None)
        finally:
            OBSERVED.leave(self)

    def stop(self) -> None:
        """Make `run` or `build` return. Thread-safe."""
        self._stopping.set()
        consumer = self._consumer
        if consumer is not None:
            consumer.stop()

    def shown_version(self) -> int | None:
        """The version that the views show; None before the first switch."""
        with self._opened() as checkpoints, checkpoints.transaction() as transaction:
            transaction.connection.execute(_CREATE_VERSIONS)
            return self._shown(transaction.connection)

    def drop(self, version: int) -> None:
        """Drop the tables and checkpoints of another version, which nobody computes or shows any more."""
        with self._opened() as checkpoints:
            with checkpoints.transaction() as transaction:
                transaction.connection.execute(_CREATE_VERSIONS)
                if version in (self.version, self._shown(transaction.connection)):
                    raise ConfigError(f"version {version} of the projection {self.name!r} is in use: it is not dropped")
            checkpoints.forget(self._group(version))
            with checkpoints.transaction() as transaction:
                for table in self._tables:
                    transaction.connection.execute(f"DROP TABLE IF EXISTS {quoted(_table_name(table, version))}")

    def _check(self) -> None:
        if not self._functions:
            raise ConfigError(f"the projection {self.name!r} has no functions: declare one with @projection.on(EVENT)")

    def _group(self, version: int) -> str:
        return f"penstock-projection-{self.name}-v{version}"

    def _consume(self, end: Position | None) -> None:
        handler = handler_of(self._handle, self._store.name, batch=_BATCH, name=f"projection {self.name}")
        options = ConsumerOptions(
            guarantee=Guarantee.EXACTLY_ONCE,
            order=Ordering.PARTITION,
            start=Position.EARLIEST,
            end=end,
            retry=Retry(on={StoreUnavailableError: Retry(None, max_delay_s=5.0)}),
        )
        consumer = HandlerConsumer(
            self._store.stream,
            self._store.name,
            replace(handler, batch=_BATCH),
            group=self._group(self.version),
            options=options,
            checkpoints=self._database,
        )
        self._consumer = consumer
        try:
            if self._stopping.is_set():
                consumer.abandon()
            else:
                consumer.run()
        finally:
            self._consumer = None

    def _handle(self, values: list[bytes], context: Context) -> None:
        records = context.records(len(values))
        with context.transaction() as connection:
            for record in records:
                stored = self._store.decode(record)
                function = self._functions.get(type(stored.event))
                if function is not None:
                    function(connection, stored)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[_SqlCheckpoints]:
        opened: Any = open_store(self._database)
        with contextlib.closing(opened):
            yield opened

    def _create(self, checkpoints: _SqlCheckpoints) -> None:
        with checkpoints.transaction() as transaction:
            if not self._database.startswith("sqlite:"):  # two concurrent CREATE TABLE IF NOT EXISTS may fail
                transaction.connection.execute(f"SELECT pg_advisory_xact_lock(hashtext('{VERSIONS}'))")
            transaction.connection.execute(_CREATE_VERSIONS)
            for name, columns in self._tables.items():
                transaction.connection.execute(f"CREATE TABLE IF NOT EXISTS {self.table(name)} ({columns})")

    def _switch(self, checkpoints: _SqlCheckpoints) -> None:
        with checkpoints.transaction() as transaction:
            connection = transaction.connection
            shown = self._shown(connection)
            if shown is not None and shown >= self.version:
                if shown > self.version:
                    logger.warning(
                        "projection %r: its views show version %d and stay there; this is version %d",
                        self.name, shown, self.version,
                    )  # fmt: skip
                return
            for name in self._tables:
                connection.execute(f"DROP VIEW IF EXISTS {quoted(name)}")
                connection.execute(f"CREATE VIEW {quoted(name)} AS SELECT * FROM {self.table(name)}")
            connection.execute(f"DELETE FROM {VERSIONS} WHERE name = '{self.name}'")
            connection.execute(f"INSERT INTO {VERSIONS} VALUES ('{self.name}', {self.version})")

    def _shown(self, connection: Any) -> int | None:
        row = connection.execute(f"SELECT version FROM {VERSIONS} WHERE name = '{self.name}'").fetchone()
        return None if row is None else int(row[0])


_CREATE_VERSIONS: Final = f"CREATE TABLE IF NOT EXISTS {VERSIONS} (name text PRIMARY KEY, version integer NOT NULL)"


class _SqlCheckpoints(CheckpointStore, TransactionalStore):
    """A checkpoint store in a database."""


def _table_name(name: str, version: int) -> str:
    return f"{name}_v{version}"
