"""Checkpoints in PostgreSQL, for members of a group on many machines, and for effects in the same database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from penstock.abc import Feature, Features
from penstock.checkpoints.fencing import FEATURES, in_use
from penstock.checkpoints.format import decode_checkpoint, id_bytes
from penstock.checkpoints.postgres.transaction import GuardedPostgresConnection, PostgresTransaction, refusal, saved
from penstock.errors import ConfigError
from penstock.model import Change, Checkpoint, CheckpointKey, HistoryEntry, Lease, Pointer, Status
from penstock.model.closing import Closing
from penstock.sql import Schema
from penstock.sql.postgres import TIMEOUT_S, PostgresConnection, PostgresPool, has_tables, make_tables, rows_of

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
    """Whether the database has checkpoints. Creates none. Raises StoreUnavailableError."""
    pool: PostgresPool[PostgresConnection] = PostgresPool(url, SCHEMA.what, size=1)
    try:
        return has_tables(pool, SCHEMA)
    finally:
        pool.close()


MAX_CONNECTIONS: Final = 16
IDLE_IN_TRANSACTION_S: Final = 60.0

IS_HELD_AS: Final = '"group" = %(group)s AND name = %(name)s AND owner = %(owner)s AND epoch = %(epoch)s'
CLAIM_FIRST: Final = """
    INSERT INTO penstock_lease ("group", name, owner, epoch, beat)
    SELECT %(group)s, %(name)s, %(owner)s,
           coalesce((SELECT epoch FROM penstock_forgotten WHERE "group" = %(group)s), 0) + 1, 0
    ON CONFLICT DO NOTHING RETURNING epoch"""
# FOR UPDATE waits for transactions that have saved under this lease; an update alone would not, see `save_statement`.
CLAIM: Final = f"""
    WITH seen AS MATERIALIZED (
        SELECT "group", name FROM penstock_lease WHERE {IS_HELD_AS} AND beat = %(beat)s FOR UPDATE
    )
    UPDATE penstock_lease AS lease SET owner = %(claimant)s, epoch = lease.epoch + 1, beat = 0
    FROM seen WHERE lease."group" = seen."group" AND lease.name = seen.name RETURNING lease.epoch"""
PARTITION: Final = """(
    SELECT id FROM penstock_checkpoint
    WHERE "group" = %(group)s AND topic = %(topic)s AND partition = %(partition)s)"""
HISTORY: Final = f"""
    SELECT first, "end", status, attempt, error, begun_ms, ended_ms, owner, handler FROM penstock_happening
    WHERE checkpoint = {PARTITION}"""
FORGET: Final = (
    """INSERT INTO penstock_forgotten ("group", epoch)
       SELECT %(group)s, max(epoch) FROM penstock_lease WHERE "group" = %(group)s HAVING count(*) > 0
       ON CONFLICT ("group") DO UPDATE SET epoch = greatest(penstock_forgotten.epoch, excluded.epoch)""",
    """DELETE FROM penstock_happening USING penstock_checkpoint
       WHERE checkpoint = penstock_checkpoint.id AND "group" = %(group)s""",
    """DELETE FROM penstock_state USING penstock_checkpoint
       WHERE checkpoint = penstock_checkpoint.id AND "group" = %(group)s""",
    'DELETE FROM penstock_handled WHERE "group" = %(group)s',
    'DELETE FROM penstock_checkpoint WHERE "group" = %(group)s',
    'DELETE FROM penstock_lease WHERE "group" = %(group)s',
)


class PostgresCheckpoints(Closing):
    """Checkpoints in a PostgreSQL database, which may be the user's own: the tables are named `penstock_...`.

    `url` is a libpq URL: `postgresql://user@host/database?sslmode=require`. A save survives a power failure unless
    PostgreSQL's `synchronous_commit` is off.

    `max_connections` is how many connections this store opens at most, one for each thread inside a transaction;
    `timeout_s` is how long a thread waits for one. The server ends a transaction that is idle for
    `idle_in_transaction_s`: otherwise a process suspended inside one would keep others from taking over.
    """

    features: Features = FEATURES | {Feature.TRANSACTIONS}

    def __init__(
        self,
        url: str,
        *,
        max_connections: int = MAX_CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
        idle_in_transaction_s: float = IDLE_IN_TRANSACTION_S,
    ) -> None:
        if max_connections < 1 or timeout_s <= 0 or idle_in_transaction_s <= 0:
            raise ConfigError("max_connections, timeout_s and idle_in_transaction_s must be positive")
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

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        if seen is None:
            rows = self._pool.execute(CLAIM_FIRST, {"group": group, "name": name, "owner": owner})
        else:
            values = {"group": group, "name": name, "owner": seen.owner, "epoch": seen.epoch, "beat": seen.beat}
            rows = self._pool.execute(CLAIM, {**values, "claimant": owner})
        return Lease(group, name, owner, rows[0][0], 0) if rows else None

    def renew(self, lease: Lease) -> Lease:
        sql = f"UPDATE penstock_lease SET beat = beat + 1 WHERE {IS_HELD_AS} RETURNING beat"
        with self._pool.connection() as connection:
            rows = rows_of(connection, sql, _held_as(lease)) if lease.owner else []
            if not rows:
                raise refusal(connection, lease)
        return Lease(lease.group, lease.name, lease.owner, lease.epoch, rows[0][0])

    def release(self, lease: Lease) -> None:
        self._pool.execute(f"UPDATE penstock_lease SET owner = '' WHERE {IS_HELD_AS} RETURNING 1", _held_as(lease))

    def leases(self, group: str) -> Sequence[Lease]:
        sql = 'SELECT name, owner, epoch, beat FROM penstock_lease WHERE "group" = %s ORDER BY name'
        return [Lease(group, *row) for row in self._pool.execute(sql, (group,))]

    def forget_lease(self, lease: Lease) -> None:
        sql = f"DELETE FROM penstock_lease WHERE {IS_HELD_AS} AND beat = %(beat)s RETURNING 1"
        self._pool.execute(sql, {**_held_as(lease), "beat": lease.beat})

    def load(self, key: CheckpointKey) -> Checkpoint | None:
        sql = 'SELECT data FROM penstock_checkpoint WHERE "group" = %s AND topic = %s AND partition = %s'
        rows = self._pool.execute(sql, (key.group, key.topic, key.partition))
        return decode_checkpoint(rows[0][0], key) if rows else None

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        with self._pool.connection() as connection:
            saved(connection, lease, key, change)

    def checkpoints(self, group: str) -> Mapping[CheckpointKey, Checkpoint]:
        sql = 'SELECT topic, partition, data FROM penstock_checkpoint WHERE "group" = %s ORDER BY topic, partition'
        rows = self._pool.execute(sql, (group,))
        keyed = [(CheckpointKey(group, topic, number), data) for topic, number, data in rows]
        return {key: decode_checkpoint(data, key) for key, data in keyed}

    def groups(self) -> Sequence[str]:
        sql = 'SELECT "group" FROM penstock_lease UNION SELECT "group" FROM penstock_checkpoint ORDER BY 1'
        return [group for (group,) in self._pool.execute(sql)]

    def forget(self, group: str) -> None:
        with self._pool.connection() as connection, connection.transaction():
            # Blocks claims and saves, not readers: there may be no row yet that could be locked.
            connection.execute("LOCK TABLE penstock_lease IN EXCLUSIVE MODE")
            sql = "SELECT name, owner, epoch, beat FROM penstock_lease WHERE \"group\" = %s AND owner != '' LIMIT 1"
            held = rows_of(connection, sql, (group,))
            if held:
                raise in_use(Lease(group, *held[0]))
            for statement in FORGET:
                connection.execute(statement, {"group": group})

    def state(self, key: CheckpointKey) -> Mapping[bytes, bytes]:
        sql = f"SELECT key, value FROM penstock_state WHERE checkpoint = {PARTITION}"
        return dict(self._pool.execute(sql, _place(key)))

    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        by_bytes = {id_bytes(each): each for each in ids}
        sql = 'SELECT id FROM penstock_handled WHERE "group" = %s AND topic = %s AND id = ANY (%s::bytea[])'
        rows = self._pool.execute(sql, (group, topic, list(by_bytes))) if by_bytes else []
        return frozenset(by_bytes[row[0]] for row in rows)

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        sql, values = HISTORY, _place(key)
        if pointer is not None:
            sql, values = f'{sql} AND "end" > %(pointer)s AND first <= %(pointer)s', {**values, "pointer": pointer}
        rows = self._pool.execute(f"{sql} ORDER BY line DESC LIMIT %(limit)s", {**values, "limit": limit})
        return [
            HistoryEntry(int(first), int(end), Status(status), *rest) for first, end, status, *rest in reversed(rows)
        ]

    def transaction(self) -> PostgresTransaction:
        """`with store.transaction() as tx:` — effects by `tx.connection`, the checkpoint by `tx.save`.

        OutcomeUnknownError: the connection was lost during the commit, and the outcome could not be found out in time.
        """
        return PostgresTransaction(self._pool)

    def close(self) -> None:
        self._pool.close()


def _held_as(lease: Lease) -> dict[str, Any]:
    return {"group": lease.group, "name": lease.name, "owner": lease.owner, "epoch": lease.epoch}


def _place(key: CheckpointKey) -> dict[str, Any]:
    return {"group": key.group, "topic": key.topic, "partition": key.partition}
