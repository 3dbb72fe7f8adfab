"""Checkpoints in PostgreSQL, for members of a group on many machines, and for effects in the same database."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Self

from penstock.checkpoints.fencing import fenced, in_use
from penstock.checkpoints.format import encode_checkpoint, id_bytes, storable
from penstock.checkpoints.postgres.guarded import GuardedPostgresConnection
from penstock.checkpoints.rows import FORGET, IS_HELD_AS, Rows, SqlCheckpoints
from penstock.databases import Schema
from penstock.databases.postgres import (
    TIMEOUT_S,
    PostgresConnection,
    PostgresPool,
    has_tables,
    make_tables,
    psycopg,
    rows_of,
)
from penstock.errors import ConfigError, FencedError, OutcomeUnknownError, StoreUnavailableError, TransactionError
from penstock.model import Change, CheckpointKey, Lease, Pointer
from penstock.model.retry import Retry

# A save is one round trip, fenced by the lease in the same statement. The lease is locked FOR KEY SHARE until the
# transaction ends. A claim locks it FOR UPDATE, and so waits for that end; a renewal does not. A save that comes during
# a claim waits for it, checks again, and finds no row.
_FENCED_SAVE: Final = """
    WITH held AS MATERIALIZED (
        SELECT 1 FROM penstock_lease
        WHERE "group" = %(group)s AND name = %(name)s AND owner = %(owner)s AND epoch = %(epoch)s FOR KEY SHARE
    ), saved AS (
        INSERT INTO penstock_checkpoint ("group", topic, partition, data)
        SELECT %(group)s, %(topic)s, %(partition)s, %(data)s FROM held
        ON CONFLICT ("group", topic, partition) DO UPDATE SET data = excluded.data RETURNING id
    )"""

_RESULT: Final = """
    SELECT pg_current_xact_id()::text FROM saved"""

SAVE: Final = _FENCED_SAVE + _RESULT

SAVE_ALL: Final = (
    _FENCED_SAVE
    + """, told AS (
        INSERT INTO penstock_happening
            (checkpoint, first, "end", status, attempt, error, begun_ms, ended_ms, owner, handler)
        SELECT saved.id, line.first, line.end, line.status, line.attempt, line.error, line.begun_ms, line.ended_ms,
               line.owner, line.handler
        FROM saved, unnest(%(firsts)s::numeric[], %(ends)s::numeric[], %(statuses)s::text[], %(attempts)s::bigint[],
                           %(errors)s::text[], %(begun_ms)s::bigint[], %(ended_ms)s::bigint[], %(owners)s::text[],
                           %(handlers)s::text[]) WITH ORDINALITY
             AS line (first, "end", status, attempt, error, begun_ms, ended_ms, owner, handler, number)
        ORDER BY line.number
    ), untold AS (
        DELETE FROM penstock_happening USING saved
        WHERE checkpoint = saved.id AND ended_ms < %(forget_history_before_ms)s::bigint
    ), kept AS (
        INSERT INTO penstock_state (checkpoint, key, value)
        SELECT saved.id, entry.key, entry.value
        FROM saved, unnest(%(state_keys)s::bytea[], %(state_values)s::bytea[]) AS entry (key, value)
        ON CONFLICT (checkpoint, key) DO UPDATE SET value = excluded.value
    ), dropped AS (
        DELETE FROM penstock_state USING saved WHERE checkpoint = saved.id AND key = ANY (%(state_gone)s::bytea[])
    ), remembered AS (
        INSERT INTO penstock_handled ("group", topic, id, at_ms)
        SELECT %(group)s, %(topic)s, entry.id, entry.at_ms
        FROM saved, unnest(%(ids)s::bytea[], %(at_ms)s::bigint[]) AS entry (id, at_ms)
        ON CONFLICT ("group", topic, id) DO UPDATE SET at_ms = excluded.at_ms
    ), forgotten AS (
        DELETE FROM penstock_handled USING saved
        WHERE "group" = %(group)s AND topic = %(topic)s AND at_ms < %(forget_handled_before_ms)s::bigint
              AND penstock_handled.id != ALL (%(ids)s::bytea[])
    )"""
    + _RESULT
)
"""One statement must not touch a row twice, so the newly remembered keys are not among the deleted ones."""


def statement_for(lease: Lease, key: CheckpointKey, change: Change) -> tuple[str, dict[str, Any]]:
    """The statement and its values. It returns one row with the transaction's id, or none if the lease was lost."""
    values: dict[str, Any] = {
        "group": key.group,
        "name": key.lease_name,
        "owner": lease.owner,
        "epoch": lease.epoch,
        "topic": key.topic,
        "partition": key.partition,
        "data": encode_checkpoint(change.checkpoint),
    }
    if (
        not (change.history or change.state or change.handled)
        and change.forget_handled_before_ms is None
        and change.forget_history_before_ms is None
    ):
        return SAVE, values
    lines = change.history
    kept = {name: value for name, value in change.state.items() if value is not None}
    # Each key once, and all savers in the same order, or two of them could deadlock.
    handled = sorted({id_bytes(each.id): each.at_ms for each in change.handled}.items())
    return SAVE_ALL, {
        **values,
        "firsts": [line.first for line in lines],
        "ends": [line.end for line in lines],
        "statuses": [line.status.value for line in lines],
        "attempts": [line.attempt for line in lines],
        "errors": [storable(line.error) for line in lines],
        "begun_ms": [line.begun_ms for line in lines],
        "ended_ms": [line.ended_ms for line in lines],
        "owners": [line.owner for line in lines],
        "handlers": [line.handler for line in lines],
        "forget_history_before_ms": change.forget_history_before_ms,
        "state_keys": list(kept),
        "state_values": list(kept.values()),
        "state_gone": [name for name, value in change.state.items() if value is None],
        "ids": [id for id, _ in handled],
        "at_ms": [at_ms for _, at_ms in handled],
        "forget_handled_before_ms": change.forget_handled_before_ms,
    }


logger = logging.getLogger(__name__)
_CAUGHT: Final = (
    "an error of the database was caught inside the transaction block, and PostgreSQL has undone what the block did: "
    "catch it outside of `with ctx.transaction()`, or put the statement into `with db.transaction()`"
)

ASK_TIMEOUT_S: Final = 10.0
_POLLS: Final = Retry(None, first_delay_s=0.05, max_delay_s=1.0, jitter=0)
END: Final = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_xid = %s::xid8::xid"
"""Ends the server process of a connection, if it is still in this transaction."""
_SAVEPOINT: Final = "penstock_savepoint"


class PostgresTransaction:
    """Returned by `PostgresCheckpoints.transaction()`. It has its own connection."""

    def __init__(self, pool: PostgresPool[GuardedPostgresConnection], *, may_send_ahead: bool = True) -> None:
        self._pool = pool
        self._may_send_ahead = may_send_ahead
        self._connection: GuardedPostgresConnection | None = None
        self._transaction: Any = None
        self._number: str | None = None
        """The server's id of the transaction, by which its outcome can be queried later."""
        self._failure: Exception | None = None
        """Why a save failed: then the transaction must not commit, even if the user suppressed the error."""

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """A psycopg connection inside the transaction: execute, executemany, copy and pipeline all work."""
        return self._open()

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        """Save the checkpoint; effective when the transaction commits."""
        connection = self._open()
        try:
            connection.end_sending_ahead()
            if connection.is_idle():
                raise _ended()
            self._number = saved(connection, lease, key, change)
        except psycopg.Error as error:
            self._failure = self._pool.translated(error)
            raise self._failure from error
        except Exception as error:
            self._failure = error
            raise

    def savepoint(self) -> AbstractContextManager[None]:
        """A block that is rolled back, and only that, if it raises."""
        return _PostgresSavepoint(self._open())

    def send_ahead(self) -> bool:
        """Do not wait for the results of statements, unless the user asks for them. False where it is switched off.

        Statements are sent in psycopg's pipeline mode, which COPY, nested transactions and server-side cursors end.
        """
        if self._may_send_ahead:
            self._open().send_ahead()
        return self._may_send_ahead

    def catch_up(self) -> None:
        """Wait for everything that was sent ahead. Raises its first error, even if a user has caught it."""
        connection = self._open()
        try:
            connection.await_results()
        finally:
            error = connection.take_error()
            if error is not None:
                raise error
        if connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
            raise TransactionError(_CAUGHT)

    def __enter__(self) -> Self:
        connection = self._pool.take()
        try:
            self._transaction = connection.transaction()
            self._transaction.__enter__()
        except psycopg.Error as error:
            self._pool.give(connection)
            raise self._pool.translated(error) from error
        except BaseException:
            self._pool.give(connection)
            raise
        self._factory = connection.row_factory
        connection.is_guarded = True
        self._connection = connection
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection, self._connection = self._connection, None
        assert connection is not None, "the block was left before it was entered"
        with contextlib.suppress(psycopg.Error):  # the error that ended the block is reported, or the one of its save
            connection.end_sending_ahead()
        connection.take_error()
        connection.is_guarded = False
        connection.row_factory = self._factory
        is_ended = connection.is_idle()
        if kind is None and self._failure is not None:
            kind, error, trace = type(self._failure), self._failure, self._failure.__traceback__
        try:
            self._transaction.__exit__(kind, error, trace)
        except psycopg.Error as failure:
            if kind is None:
                self._settle(connection, failure)
            elif not connection.closed:
                raise
        finally:
            self._pool.give(connection)
        if is_ended:
            raise _ended() from error
        if isinstance(error, psycopg.OperationalError) and connection.closed:
            raise self._pool.translated(error) from error
        if error is self._failure and error is not None:
            raise error

    def _settle(self, connection: GuardedPostgresConnection, failure: psycopg.Error) -> None:
        """Find out the outcome of a commit that was not answered."""
        if not connection.closed:  # it was answered with an error, such as a violated deferred constraint
            raise failure
        if self._number is None:
            raise OutcomeUnknownError(
                f"{self._pool.where}: the connection was lost during a commit: {failure}"
            ) from failure
        outcome = self._ask(self._number, connection.info.backend_pid)
        if outcome == "committed":
            logger.info("%s: the connection was lost during a commit, which succeeded", self._pool.where)
        elif outcome == "aborted":
            raise self._pool.translated(failure) from failure
        else:
            raise OutcomeUnknownError(
                f"{self._pool.where}: the connection was lost during a commit, and its outcome is unknown "
                f"({outcome}): claim the lease again, which waits for its end, and load the checkpoint"
            ) from failure

    def _ask(self, number: str, process: int) -> str:
        """The outcome of a transaction. If the server has not noticed the lost connection, end it there."""
        deadline_s = time.monotonic() + ASK_TIMEOUT_S
        delays_s = _POLLS.delays_s()
        while True:
            try:
                ((outcome,),) = self._pool.execute("SELECT pg_xact_status(%s::xid8)", (number,))
                if outcome == "in progress":
                    self._pool.execute(END, (process, number))
            except StoreUnavailableError as error:
                outcome = str(error)
            if outcome in ("committed", "aborted") or time.monotonic() > deadline_s:
                return str(outcome)
            time.sleep(next(delays_s))

    def _open(self) -> GuardedPostgresConnection:
        if self._connection is None:
            raise TransactionError("this transaction is not open: use it inside its `with` block only")
        return self._connection


class _PostgresSavepoint:
    """A part of a transaction that can fail alone. They are nested, so all can have the same name."""

    __slots__ = ("_connection",)

    def __init__(self, connection: GuardedPostgresConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute(f"SAVEPOINT {_SAVEPOINT}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self._connection
        if connection.closed:
            return
        if connection.is_idle():
            raise _ended() from error
        is_broken = connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
        if kind is not None or is_broken:
            connection.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
        connection.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        if kind is None and is_broken:
            raise TransactionError(_CAUGHT)


def saved(connection: GuardedPostgresConnection, lease: Lease, key: CheckpointKey, change: Change) -> str:
    """Save a change and return the id of its transaction. FencedError when another owner has the lease."""
    rows = rows_of(connection, *statement_for(lease, key, change)) if lease.owner else []
    if not rows:
        raise refusal(connection, lease)
    return str(rows[0][0])


def refusal(connection: GuardedPostgresConnection, lease: Lease) -> FencedError:
    """The error for an owner that lost its lease."""
    sql = 'SELECT owner, epoch, beat FROM penstock_lease WHERE "group" = %s AND name = %s'
    rows = rows_of(connection, sql, (lease.group, lease.name))
    return fenced(lease, Lease(lease.group, lease.name, *rows[0]) if rows else None)


def _ended() -> TransactionError:
    return TransactionError(
        "the transaction was ended from inside, by a COMMIT or ROLLBACK among other statements; what it did so far "
        "cannot be undone together with the checkpoint. Leave that to the end of the block"
    )


_TABLES: Final = (
    # Rows that change often get room to change within their page, which spares the indexes.
    """CREATE TABLE penstock_lease (
        "group" text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, owner text NOT NULL,
        epoch bigint NOT NULL, beat bigint NOT NULL, PRIMARY KEY ("group", name)) WITH (fillfactor = 50)""",
    # The highest epoch of a deleted group: if it is created again, no old owner must match.
    'CREATE TABLE penstock_forgotten ("group" text COLLATE "C" PRIMARY KEY, epoch bigint NOT NULL)',
    """CREATE TABLE penstock_checkpoint (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        "group" text COLLATE "C" NOT NULL, topic text COLLATE "C" NOT NULL, partition integer NOT NULL,
        data bytea NOT NULL, UNIQUE ("group", topic, partition)) WITH (fillfactor = 50)""",
    # It is already compressed.
    "ALTER TABLE penstock_checkpoint ALTER COLUMN data SET STORAGE EXTERNAL",
    """CREATE TABLE penstock_happening (
        checkpoint bigint NOT NULL, line bigint GENERATED ALWAYS AS IDENTITY, first numeric NOT NULL,
        "end" numeric NOT NULL, status text NOT NULL, attempt bigint NOT NULL, error text NOT NULL,
        begun_ms bigint NOT NULL, ended_ms bigint NOT NULL, owner text NOT NULL, handler text NOT NULL,
        PRIMARY KEY (checkpoint, line))""",
    "CREATE INDEX penstock_happening_ended ON penstock_happening (checkpoint, ended_ms)",
    """CREATE TABLE penstock_state (
        checkpoint bigint NOT NULL, key bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (checkpoint, key))""",
    # Keys are UTF-8 bytes, because PostgreSQL's text cannot contain NUL.
    """CREATE TABLE penstock_handled (
        "group" text COLLATE "C" NOT NULL, topic text COLLATE "C" NOT NULL, id bytea NOT NULL, at_ms bigint NOT NULL,
        PRIMARY KEY ("group", topic, id))""",
    'CREATE INDEX penstock_handled_at ON penstock_handled ("group", topic, at_ms)',
)

SCHEMA: Final = Schema("checkpoints", 1, "penstock_schema", _TABLES)


def is_in(url: str) -> bool:
    """Whether the database has tables of checkpoints. StoreUnavailableError if it is unavailable. Creates nothing."""
    pool: PostgresPool[PostgresConnection] = PostgresPool(url, SCHEMA.what, size=1)
    try:
        return has_tables(pool, SCHEMA)
    finally:
        pool.close()


MAX_CONNECTIONS: Final = 16
IDLE_IN_TRANSACTION_S: Final = 60.0


class PostgresCheckpoints(SqlCheckpoints):
    """Checkpoints in a PostgreSQL database, which may be the user's own: the tables are named `penstock_...`.

    `url` is a libpq URL: `postgresql://user@host/database?sslmode=require`. A save survives a power failure unless
    PostgreSQL's `synchronous_commit` is off.

    `max_connections` is how many connections this store opens at most, one for each thread inside a transaction;
    `timeout_s` is how long a thread waits for one. The server ends a transaction that is idle for
    `idle_in_transaction_s`: otherwise a process suspended inside one would keep others from taking over.

    With `send_ahead`, handlers that take one record do not wait for the results of statements that they do not read;
    an error then repeats the handlers that share the transaction, one statement at a time.
    """

    # FOR UPDATE waits for transactions that have saved under this lease; an update alone would not.
    _claim = f"""
        WITH seen AS MATERIALIZED (
            SELECT "group", name FROM penstock_lease WHERE {IS_HELD_AS} AND beat = :beat FOR UPDATE
        )
        UPDATE penstock_lease AS lease SET owner = :claimant, epoch = lease.epoch + 1, beat = 0
        FROM seen WHERE lease."group" = seen."group" AND lease.name = seen.name RETURNING lease.epoch"""

    def __init__(
        self,
        url: str,
        *,
        max_connections: int = MAX_CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
        idle_in_transaction_s: float = IDLE_IN_TRANSACTION_S,
        send_ahead: bool = True,
    ) -> None:
        if max_connections < 1 or timeout_s <= 0 or idle_in_transaction_s <= 0:
            raise ConfigError("max_connections, timeout_s and idle_in_transaction_s must be positive")
        self._send_ahead = send_ahead
        self._pool = PostgresPool(
            url,
            SCHEMA.what,
            size=max_connections,
            timeout_s=timeout_s,
            idle_in_transaction_s=idle_in_transaction_s,
            connection_class=GuardedPostgresConnection,
        )
        try:
            make_tables(self._pool, SCHEMA)
        except BaseException:
            self._pool.close()
            raise

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        with self._pool.connection() as connection:
            saved(connection, lease, key, change)

    def forget(self, group: str) -> None:
        with self._pool.connection() as connection, connection.transaction():
            # Blocks claims and saves, not readers: there may be no row yet that could be locked.
            connection.execute("LOCK TABLE penstock_lease IN EXCLUSIVE MODE")
            sql = "SELECT name, owner, epoch, beat FROM penstock_lease WHERE \"group\" = %s AND owner != '' LIMIT 1"
            held = rows_of(connection, sql, (group,))
            if held:
                raise in_use(Lease(group, *held[0]))
            for statement in FORGET:
                connection.execute(_sql(statement), {"group": group})

    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        by_bytes = {id_bytes(each): each for each in ids}
        sql = 'SELECT id FROM penstock_handled WHERE "group" = %s AND topic = %s AND id = ANY (%s::bytea[])'
        rows = self._pool.execute(sql, (group, topic, list(by_bytes))) if by_bytes else []
        return frozenset(by_bytes[row[0]] for row in rows)

    def transaction(self) -> PostgresTransaction:
        """`with store.transaction() as tx:` — effects by `tx.connection`, the checkpoint by `tx.save`.

        OutcomeUnknownError: the connection was lost during the commit, and the outcome could not be found out in time.
        """
        return PostgresTransaction(self._pool, may_send_ahead=self._send_ahead)

    def close(self) -> None:
        self._pool.close()

    def _read(self, sql: str, values: Mapping[str, Any]) -> Rows:
        return self._pool.execute(_sql(sql), values)

    _write = _read

    def _column(self, pointer: Pointer) -> int:
        return pointer

    def _pointer(self, column: Any) -> Pointer:
        return int(column)


def _sql(statement: str) -> str:
    """A statement as psycopg takes it: with parameters `%(name)s`."""
    return re.sub(r":(\w+)", r"%(\1)s", statement)
