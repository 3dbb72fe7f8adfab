"""Checkpoints, changes and keys for testing a store, and the base of its cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from penstock.abc import CheckpointStore
from penstock.model import Change, Checkpoint, CheckpointKey, Claim, Failing, Handled, HistoryEntry, Lease, Status
from penstock.testing.conformance.suite import Suite

NOW_MS = 1_700_000_000_000
OWNER = "owner-1"

Spoil = Callable[[Any, CheckpointKey], None]
"""Damages a stored checkpoint directly: `spoil(store, key)`."""


class StoreSuite(Suite[CheckpointStore]):
    spoil: ClassVar[Any] = None
    """A `Spoil`, if the author of the store has given one."""

    def fresh_key(self, partition: int = 0) -> CheckpointKey:
        return CheckpointKey(self.fresh_name("group"), self.fresh_name("topic"), partition)

    def owned(self) -> tuple[CheckpointStore, CheckpointKey, Lease]:
        """A store, the key of a checkpoint that was never saved, and the lease on it."""
        store, key = self.open(), self.fresh_key()
        return store, key, claimed(store, key)

    def check_saved(self, store: CheckpointStore, key: CheckpointKey, checkpoint: Checkpoint | None, why: str) -> None:
        found = store.load(key)
        assert found == checkpoint, f"{why}: load gave {_short(found)} instead of {_short(checkpoint)}"


def only_lease(store: CheckpointStore, group: str) -> Lease:
    leases = store.leases(group)
    assert len(leases) == 1, f"the group {group!r} has one lease, and leases() gave {leases}"
    return leases[0]


def claimed(store: CheckpointStore, key: CheckpointKey, owner: str = OWNER) -> Lease:
    """The lease on a checkpoint, claimed from its owner."""
    seen = next((lease for lease in store.leases(key.group) if lease.name == key.lease_name), None)
    lease = store.claim(key.group, key.lease_name, owner, seen)
    assert lease is not None, f"the lease on {key} was as it was seen, {seen}, and could not be claimed"
    return lease


def at(start: int, **more: Any) -> Checkpoint:
    return Checkpoint(start, more.pop("next", start + 100), saved_ms=NOW_MS, **more)


def history_entry(first: int, end: int | None = None, **more: Any) -> HistoryEntry:
    values: dict[str, Any] = {
        "status": Status.SUCCEEDED,
        "attempt": 1,
        "error": "",
        "begun_ms": NOW_MS,
        "ended_ms": NOW_MS + 5,
        "owner": OWNER,
        "handler": "shop.bill",
    }
    return HistoryEntry(first, first + 1 if end is None else end, **{**values, **more})


def full_checkpoint(base: int = 1000) -> Checkpoint:
    return Checkpoint(
        base,
        base + 500,
        ((base + 1, base + 7), (base + 9, base + 10), (base + 400, base + 500)),
        (
            Failing(base, 3, "ValueError: no such customer", NOW_MS - 100, NOW_MS),
            Failing(base + 8, 1, "OSError: [Errno 2] «naïve»: 数\n  two lines", NOW_MS, NOW_MS),
        ),
        restarts=2,
        processed=700,
        delivered=650,
        saved_ms=NOW_MS,
        claims=(
            Claim(base + 10, base + 20, "member-1", 7, 1, 30_000),
            Claim(base + 20, base + 400, "", 8, 2, 30_000),
        ),
    )


def numbered_change(number: int, size: int = 0) -> Change:
    """A change with its number in each of its parts, so that a partial save shows; `size` makes it larger."""
    runs = tuple((number + 2 * step + 1, number + 2 * step + 2) for step in range(size))
    return Change(
        at(number, next=number + 2 * size + 100, finished=runs),
        history=(history_entry(number),),
        state={b"number": b"%d" % number, b"large": b"%d " % number * size},
        handled=(Handled(f"id-{number}", NOW_MS + number),),
    )


def number_saved(store: CheckpointStore, key: CheckpointKey) -> int:
    """The number of the last saved `numbered_change`, 0 for none; every part must agree."""
    checkpoint = store.load(key)
    if checkpoint is None:
        assert store.state(key) == {}, f"{key} has no checkpoint, but state"
        assert not store.history(key), f"{key} has no checkpoint, but a history"
        return 0
    number = checkpoint.start
    state = store.state(key)
    assert state[b"number"] == b"%d" % number, f"the checkpoint says {number} and the state {state[b'number']!r}"
    large = state[b"large"]
    assert large == b"%d " % number * (len(large) // len(b"%d " % number)), (
        f"the state of {number} is mixed with another"
    )
    lines = [line.first for line in store.history(key, limit=1_000_000)]
    assert lines == list(range(1, number + 1)), f"the checkpoint says {number}, and the history ends {lines[-3:]}"
    ids = [f"id-{number}", f"id-{number + 1}"]
    handled = store.handled(key.group, key.topic, ids)
    assert handled == {ids[0]}, f"the checkpoint says {number}, and of {ids}, {sorted(handled)} are remembered"
    return number


def _short(checkpoint: Checkpoint | None) -> str:
    text = repr(checkpoint)
    return text if len(text) < 600 else f"{text[:500]} ... {text[-50:]}"
