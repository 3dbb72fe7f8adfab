"""Moving a group of the library: it goes by its checkpoints, so these are what is moved.

Whoever moves one claims its lease first, so that an owner that was not stopped is fenced and writes nothing over it.
Keyed state and remembered idempotency keys stay: a record that is handled once by its id is not handled again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.abc import CheckpointStore
from penstock.errors import GroupError
from penstock.model import Change, Checkpoint, CheckpointKey
from penstock.streams.kafka.groups import Place
from penstock.streams.kafka.moves import Move

OWNER: Final = "penstock-console"


def starts_of(store: CheckpointStore, group: str) -> dict[Place, int]:
    """Where the group stands in each partition: everything before is finished."""
    return {(key.topic, key.partition): each.start for key, each in store.checkpoints(group).items()}


def move_checkpoints(store: CheckpointStore, group: str, moves: Sequence[Move], now_ms: int) -> None:
    """Let the group go on at these places. GroupError when one of its members gets in between."""
    checkpoints = store.checkpoints(group)
    for move in moves:
        key = CheckpointKey(group, move.topic, move.partition)
        before = checkpoints.get(key)
        if before is None or before.start != move.to or before.next != move.to:
            _move(store, key, before, move.to, now_ms)


def _move(store: CheckpointStore, key: CheckpointKey, before: Checkpoint | None, to: int, now_ms: int) -> None:
    seen = next((lease for lease in store.leases(key.group) if lease.name == key.lease_name), None)
    lease = store.claim(key.group, key.lease_name, OWNER, seen)
    if lease is None:
        raise GroupError(f"{key} was taken by a member while it was to be moved: stop the group's members first")
    try:
        processed, delivered = (0, 0) if before is None else (before.processed, before.delivered)
        moved = Checkpoint(start=to, next=to, processed=processed, delivered=delivered, saved_ms=now_ms)
        store.save(lease, key, Change(moved))
    finally:
        store.release(lease)
