"""Small things that tests of stores share."""

from __future__ import annotations

from typing import Final

from penstock.abc import CheckpointStore
from penstock.model import Change, Checkpoint, CheckpointKey, Handled, HistoryEntry, Lease, Status

KEY: Final = CheckpointKey("billing", "orders", 0)
NOW_MS: Final = 1_700_000_000_000


def lease_on(store: CheckpointStore, key: CheckpointKey = KEY, owner: str = "a") -> Lease:
    """Claim a checkpoint's lease from whoever has it."""
    seen = next((lease for lease in store.leases(key.group) if lease.name == key.lease_name), None)
    lease = store.claim(key.group, key.lease_name, owner, seen)
    assert lease is not None
    return lease


def change(start: int, told: bool = True) -> Change:
    """A change with something of everything in it."""
    if not told:
        return Change(Checkpoint(start, start + 100))
    line = HistoryEntry(start, start + 1, Status.SUCCEEDED, 1, "", NOW_MS, NOW_MS + start, "a", "bill")
    state = {b"number": b"%d" % start}
    return Change(Checkpoint(start, start + 100), (line,), state, (Handled(f"id-{start}", NOW_MS + start),))


def start_of(store: CheckpointStore, key: CheckpointKey = KEY) -> int | None:
    checkpoint = store.load(key)
    return None if checkpoint is None else checkpoint.start
