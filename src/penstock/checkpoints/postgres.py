"""Checkpoints in PostgreSQL, for members of a group on many machines, and for effects in the same database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from penstock.abc import Feature, Features
from penstock.checkpoints.fencing import in_use
from penstock.checkpoints.format import decode_checkpoint
from penstock.checkpoints.postgres_connection import rows_of
from penstock.checkpoints.postgres_pool import Pool
from penstock.checkpoints.postgres_saving import id_bytes
from penstock.checkpoints.postgres_schema import make_tables
from penstock.checkpoints.postgres_transaction import PostgresTransaction, refusal, saved
from penstock.errors import ConfigError
from penstock.model import Change, Checkpoint, CheckpointKey, Happening, Lease, Pointer, Status

MAX_CONNECTIONS: Final = 16
TIMEOUT_S: Final = 30.0
IDLE_IN_TRANSACTION_S: Final = 60.0

IS_HELD_AS: Final = '"group" = %(group)s AND name = %(name)s AND owner = %(owner)s AND epoch = %(epoch)s'
CLAIM_FIRST: Final = """
    INSERT INTO penstock_lease ("group", name, owner, epoch, beat)
    SELECT %(group)s, %(name)s, %(owner)s,
           coalesce((SELECT epoch FROM penstock_forgotten WHERE "group" = %(group)s), 0) + 1, 0
    ON CONFLICT DO NOTHING RETURNING epoch"""
# FOR UPDATE waits for transactions that have saved under this lease; an update alone would not, see postgres_saving.
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


class PostgresCheckpoints:
    """Keeps checkpoints in a PostgreSQL database, which may be the user's own: our tables are named `penstock_...`.

    `url` is what libpq takes: `postgresql://user@host/database?sslmode=require`. As with everything in PostgreSQL, a
    save survives a power cut unless `synchronous_commit` is off.

    `max_connections` is how many connections this store opens at most, one for each thread that is inside of a
    transaction; `timeout_s` is how long a thread waits for one. A transaction in which nothing is done for
    `idle_in_transaction_s` is ended by the server: else a process that was stopped in the middle of one would keep
    others from taking over.
    """

    def __init__(
        self,
        url: str,
        *,
        max_connections: int = MAX_CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
        idle_in_transaction_s: float = IDLE_IN_TRANSACTION_S,
    ) -> None:
        if max_connections < 1 or timeout_s <= 0 or idle_in_transaction_s <= 0:
            raise ConfigError("max_connections, timeout_s and idle_in_transaction_s must be more than 0")
        self._pool = Pool(url, max_connections, timeout_s, idle_in_transaction_s)
        with self._pool.connection() as connection:
            make_tables(connection, self._pool.where)

    @property
    def features(self) -> Features:
        return frozenset(
            {
                Feature.DURABLE,
                Feature.LEASES,
                Feature.STATE,
                Feature.HISTORY,
                Feature.DEDUPLICATION,
                Feature.TRANSACTIONS,
            }
        )

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
            # Others read meanwhile, and their claims and saves wait: there might be no row yet that could be locked.
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

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[Happening]:
        sql, values = HISTORY, _place(key)
        if pointer is not None:
            sql, values = f'{sql} AND "end" > %(pointer)s AND first <= %(pointer)s', {**values, "pointer": pointer}
        rows = self._pool.execute(f"{sql} ORDER BY line DESC LIMIT %(limit)s", {**values, "limit": limit})
        return [Happening(int(first), int(end), Status(status), *rest) for first, end, status, *rest in reversed(rows)]

    def transaction(self) -> PostgresTransaction:
        """`with store.transaction() as tx:` — effects by `tx.connection`, the checkpoint by `tx.save`.

        OutcomeUnknownError: the server was lost in the commit, and could not be asked in time whether it counts.
        """
        return PostgresTransaction(self._pool)

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _held_as(lease: Lease) -> dict[str, Any]:
    return {"group": lease.group, "name": lease.name, "owner": lease.owner, "epoch": lease.epoch}


def _place(key: CheckpointKey) -> dict[str, Any]:
    return {"group": key.group, "topic": key.topic, "partition": key.partition}
