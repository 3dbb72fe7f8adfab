"""The SQL statement that saves a change to PostgreSQL: one round trip, fenced by the lease in the same statement.

The lease is locked FOR KEY SHARE until the transaction ends. A claim locks it FOR UPDATE, and so waits for that end; a
renewal does not. A save that comes during a claim waits for it, checks again, and finds no row.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.checkpoints.format import encode_checkpoint, id_bytes, storable
from penstock.model import Change, CheckpointKey, Lease

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
        WHERE checkpoint = saved.id AND ended_ms < %(forget_happenings_before_ms)s::bigint
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
        not (change.happenings or change.state or change.handled)
        and change.forget_handled_before_ms is None
        and change.forget_happenings_before_ms is None
    ):
        return SAVE, values
    lines = change.happenings
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
        "forget_happenings_before_ms": change.forget_happenings_before_ms,
        "state_keys": list(kept),
        "state_values": list(kept.values()),
        "state_gone": [name for name, value in change.state.items() if value is None],
        "ids": [id for id, _ in handled],
        "at_ms": [at_ms for _, at_ms in handled],
        "forget_handled_before_ms": change.forget_handled_before_ms,
    }
