"""Checkpoints as rows of SQL tables: what SQLite and PostgreSQL have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.abc import Feature, Features
from penstock.checkpoints.fencing import FEATURES, LAST_CHARACTER, fenced, lease_named
from penstock.checkpoints.format import decode_checkpoint
from penstock.errors import FencedError
from penstock.model import Checkpoint, CheckpointKey, HistoryEntry, Lease, Pointer, Status
from penstock.model.closing import Closing

IS_HELD_AS: Final = '"group" = :group AND name = :name AND owner = :owner AND epoch = :epoch'
CLAIM_FIRST: Final = """
    INSERT INTO penstock_lease ("group", name, owner, epoch, beat)
    SELECT :group, :name, :owner, coalesce((SELECT epoch FROM penstock_forgotten WHERE "group" = :group), 0) + 1, 0
    WHERE true ON CONFLICT DO NOTHING RETURNING epoch"""
OF_CHECKPOINT: Final = """checkpoint = (
    SELECT id FROM penstock_checkpoint WHERE "group" = :group AND topic = :topic AND partition = :partition)"""
HISTORY: Final = f"""
    SELECT first, "end", status, attempt, error, begun_ms, ended_ms, owner, handler FROM penstock_happening
    WHERE {OF_CHECKPOINT}"""
# The highest epoch of the group is kept: if it is created again, no old owner must match.
FORGET: Final = (
    """INSERT INTO penstock_forgotten ("group", epoch)
       SELECT :group, max(epoch) FROM penstock_lease WHERE "group" = :group HAVING count(*) > 0
       ON CONFLICT ("group") DO UPDATE SET epoch = excluded.epoch WHERE excluded.epoch > penstock_forgotten.epoch""",
    'DELETE FROM penstock_happening WHERE checkpoint IN (SELECT id FROM penstock_checkpoint WHERE "group" = :group)',
    'DELETE FROM penstock_state WHERE checkpoint IN (SELECT id FROM penstock_checkpoint WHERE "group" = :group)',
    'DELETE FROM penstock_handled WHERE "group" = :group',
    'DELETE FROM penstock_checkpoint WHERE "group" = :group',
    'DELETE FROM penstock_lease WHERE "group" = :group',
)

Rows = Sequence[tuple[Any, ...]]


class SqlCheckpoints(Closing):
    """A checkpoint store in an SQL database. A subclass executes the statements, which have parameters as `:name`."""

    features: Features = FEATURES | {Feature.TRANSACTIONS}
    _claim: str
    """Claims the lease that is held as it was seen, for `:claimant`."""

    @abstractmethod
    def _read(self, sql: str, values: Mapping[str, Any]) -> Rows: ...

    @abstractmethod
    def _write(self, sql: str, values: Mapping[str, Any]) -> Rows:
        """Execute one statement as its own transaction."""

    @abstractmethod
    def _column(self, pointer: Pointer) -> Any:
        """A pointer as the database stores it."""

    @abstractmethod
    def _pointer(self, column: Any) -> Pointer: ...

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        place = {"group": group, "name": name}
        if seen is None:
            rows = self._write(CLAIM_FIRST, {**place, "owner": owner})
        else:
            held_as = {"owner": seen.owner, "epoch": seen.epoch, "beat": seen.beat}
            rows = self._write(self._claim, {**place, **held_as, "claimant": owner})
        return Lease(group, name, owner, rows[0][0], 0) if rows else None

    def renew(self, lease: Lease) -> Lease:
        sql = f"UPDATE penstock_lease SET beat = beat + 1 WHERE {IS_HELD_AS} RETURNING beat"
        rows = self._write(sql, _held_as(lease)) if lease.owner else []
        if not rows:
            raise self._refusal(lease)
        return Lease(lease.group, lease.name, lease.owner, lease.epoch, rows[0][0])

    def release(self, lease: Lease) -> None:
        self._write(f"UPDATE penstock_lease SET owner = '' WHERE {IS_HELD_AS} RETURNING 1", _held_as(lease))

    def leases(self, group: str, prefix: str = "") -> Sequence[Lease]:
        sql = """SELECT name, owner, epoch, beat FROM penstock_lease
                 WHERE "group" = :group AND name >= :prefix AND name < :behind ORDER BY name"""
        values = {"group": group, "prefix": prefix, "behind": prefix + LAST_CHARACTER}
        return [Lease(group, *row) for row in self._read(sql, values)]

    def forget_lease(self, lease: Lease) -> None:
        sql = f"DELETE FROM penstock_lease WHERE {IS_HELD_AS} AND beat = :beat RETURNING 1"
        self._write(sql, {**_held_as(lease), "beat": lease.beat})

    def load(self, key: CheckpointKey) -> Checkpoint | None:
        sql = """SELECT data FROM penstock_checkpoint
                 WHERE "group" = :group AND topic = :topic AND partition = :partition"""
        rows = self._read(sql, _place(key))
        return decode_checkpoint(rows[0][0], key) if rows else None

    def checkpoints(self, group: str) -> Mapping[CheckpointKey, Checkpoint]:
        sql = """SELECT topic, partition, data FROM penstock_checkpoint
                 WHERE "group" = :group ORDER BY topic, partition"""
        rows = self._read(sql, {"group": group})
        keyed = [(CheckpointKey(group, topic, number), data) for topic, number, data in rows]
        return {key: decode_checkpoint(data, key) for key, data in keyed}

    def groups(self) -> Sequence[str]:
        sql = 'SELECT "group" FROM penstock_lease UNION SELECT "group" FROM penstock_checkpoint ORDER BY 1'
        return [group for (group,) in self._read(sql, {})]

    def state(self, key: CheckpointKey) -> Mapping[bytes, bytes]:
        rows = self._read(f"SELECT key, value FROM penstock_state WHERE {OF_CHECKPOINT}", _place(key))
        return dict(rows)

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        sql, values = HISTORY, {**_place(key), "limit": limit}
        if pointer is not None:
            sql += ' AND "end" > :pointer AND first <= :pointer'
            values["pointer"] = self._column(pointer)
        rows = self._read(f"{sql} ORDER BY line DESC LIMIT :limit", values)
        return [
            HistoryEntry(self._pointer(first), self._pointer(end), Status(status), *rest)
            for first, end, status, *rest in reversed(rows)
        ]

    def _refusal(self, lease: Lease) -> FencedError:
        """The error for an owner that lost its lease."""
        return fenced(lease, lease_named(lease.name, self.leases(lease.group)))


def _held_as(lease: Lease) -> dict[str, Any]:
    return {"group": lease.group, "name": lease.name, "owner": lease.owner, "epoch": lease.epoch}


def _place(key: CheckpointKey) -> dict[str, Any]:
    return {"group": key.group, "topic": key.topic, "partition": key.partition}
