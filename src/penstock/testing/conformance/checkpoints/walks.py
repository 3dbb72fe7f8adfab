"""A random walk through everything a store does, compared with a simple model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from penstock.abc import CheckpointStore, Feature
from penstock.errors import FencedError, GroupError
from penstock.model import Change, Checkpoint, CheckpointKey, Handled, HistoryEntry, Lease
from penstock.testing.conformance.checkpoints.samples import NOW_MS, StoreSuite, history_entry

STEPS = 400


@dataclass(slots=True)
class Partition:
    checkpoint: Checkpoint | None = None
    state: dict[bytes, bytes] = field(default_factory=dict)
    lines: list[HistoryEntry] = field(default_factory=list)


@dataclass(slots=True)
class Model:
    leases: dict[str, Lease] = field(default_factory=dict)
    partitions: dict[CheckpointKey, Partition] = field(default_factory=dict)
    handled: set[str] = field(default_factory=set)
    last_epochs: dict[str, int] = field(default_factory=dict)
    """The last epochs of forgotten leases: their holders must not count as owners."""


class WalkCases(StoreSuite):
    """After any sequence of operations, the store has the expected content."""

    def test_a_random_walk_agrees_with_a_model(self) -> None:
        store, group = self.open(), self.fresh_name("group")
        keys = [CheckpointKey(group, "t", partition) for partition in range(3)]
        model = Model()
        known: list[Lease] = [Lease(group, key.lease_name, "nobody-yet", 1, 0) for key in keys]
        steps: list[Callable[[CheckpointStore, Model, list[Lease], CheckpointKey], None]] = [
            self._claim,
            self._claim,
            self._renew,
            self._release,
            self._save,
            self._save,
            self._save,
        ]
        for number in range(STEPS):
            key = self.rng.choice(keys)
            step = self._forget if self.rng.random() < 0.01 else self.rng.choice(steps)
            step(store, model, known, key)
            if number % 20 == 0 or number == STEPS - 1:
                self._check(store, model, keys)

    def _claim(self, store: CheckpointStore, model: Model, known: list[Lease], key: CheckpointKey) -> None:
        now = model.leases.get(key.lease_name)
        mine = [lease for lease in known if lease.name == key.lease_name]
        seen = self.rng.choices([now, None, self.rng.choice(mine)], [6, 2, 2])[0]
        owner = self.rng.choice("ab")
        got = store.claim(key.group, key.lease_name, owner, seen)
        if seen != now:
            assert got is None, f"claim of {now} as {seen} gave {got}"
            return
        assert got is not None, f"claim of {now} as it was seen gave nothing"
        if now is not None:
            assert got.epoch == now.epoch + 1, f"claim of {now} gave {got}"
        assert got.epoch > model.last_epochs.get(got.name, 0), f"{got} has an epoch from before the group was forgotten"
        assert (got.owner, got.beat) == (owner, 0), f"claim by {owner} gave {got}"
        model.leases[key.lease_name] = got
        known.append(got)

    def _renew(self, store: CheckpointStore, model: Model, known: list[Lease], key: CheckpointKey) -> None:
        lease = self._any(known, key)
        now = model.leases.get(lease.name)
        try:
            renewed = store.renew(lease)
        except FencedError:
            assert not _is_held(lease, now), f"{lease} could not be renewed, and {now} is there"
            return
        assert now is not None, f"{lease} is gone, and was renewed"
        assert _is_held(lease, now), f"{lease} was renewed, and {now} is there"
        assert renewed == replace(now, beat=now.beat + 1), f"{now} was renewed to {renewed}"
        model.leases[lease.name] = renewed
        known.append(renewed)

    def _release(self, store: CheckpointStore, model: Model, known: list[Lease], key: CheckpointKey) -> None:
        lease = self._any(known, key)
        now = model.leases.get(lease.name)
        store.release(lease)
        if now is not None and _is_held(lease, now):
            model.leases[lease.name] = replace(now, owner="")

    def _save(self, store: CheckpointStore, model: Model, known: list[Lease], key: CheckpointKey) -> None:
        lease = model.leases.get(key.lease_name) if self.rng.random() < 0.7 else None
        if lease is None or not lease.owner:
            lease = self._any(known, key)
        change = self._change()
        now = model.leases.get(lease.name)
        try:
            store.save(lease, key, change)
        except FencedError:
            assert not _is_held(lease, now), f"{lease} could not save, and {now} is there"
            return
        assert _is_held(lease, now), f"{lease} saved, and {now} is there"
        partition = model.partitions.setdefault(key, Partition())
        partition.checkpoint = change.checkpoint
        partition.lines += change.history
        for name, value in change.state.items():
            if value is None:
                partition.state.pop(name, None)
            else:
                partition.state[name] = value
        model.handled.update(each.id for each in change.handled)

    def _forget(self, store: CheckpointStore, model: Model, known: list[Lease], key: CheckpointKey) -> None:
        held = [lease for lease in model.leases.values() if lease.owner]
        try:
            store.forget(key.group)
        except GroupError:
            assert held, "a group that nobody is in could not be forgotten"
            return
        assert not held, f"a group was forgotten in which {held} are held"
        model.last_epochs.update({lease.name: lease.epoch for lease in model.leases.values()})
        model.leases.clear()
        model.partitions.clear()
        model.handled.clear()

    def _change(self) -> Change:
        rng = self.rng
        start = rng.randrange(1 << rng.choice([4, 40, 70]))
        edges = sorted(rng.sample(range(start + 1, start + 400), 2 * rng.randrange(20)))
        runs = tuple(zip(edges[::2], edges[1::2], strict=True))
        checkpoint = Checkpoint(start, start + 500, runs, processed=rng.randrange(99), saved_ms=NOW_MS)
        lines = tuple(history_entry(start + each, ended_ms=NOW_MS + each) for each in range(rng.randrange(3)))
        state = {b"%d" % rng.randrange(9): rng.choice([None, b"", rng.randbytes(5)]) for _ in range(rng.randrange(4))}
        handled = tuple(Handled(f"id-{rng.randrange(50)}", NOW_MS) for _ in range(rng.randrange(4)))
        return Change(
            checkpoint,
            lines if Feature.HISTORY in self.features else (),
            state if Feature.STATE in self.features else {},
            handled if Feature.DEDUPLICATION in self.features else (),
        )

    def _any(self, known: list[Lease], key: CheckpointKey) -> Lease:
        return self.rng.choice([lease for lease in known if lease.name == key.lease_name][-6:])

    def _check(self, store: CheckpointStore, model: Model, keys: list[CheckpointKey]) -> None:
        group = keys[0].group
        leases = sorted(model.leases.values(), key=lambda lease: lease.name)
        assert list(store.leases(group)) == leases, f"leases() gave {store.leases(group)} instead of {leases}"
        found = dict(store.checkpoints(group))
        expected = {key: each.checkpoint for key, each in model.partitions.items()}
        assert found == expected, f"checkpoints() gave {found} instead of {expected}"
        for key in keys:
            partition = model.partitions.get(key, Partition())
            self.check_saved(store, key, partition.checkpoint, "the walk came by")
            if Feature.STATE in self.features:
                state = dict(store.state(key))
                assert state == partition.state, f"the state of {key} is {state} instead of {partition.state}"
            if Feature.HISTORY in self.features:
                lines = list(store.history(key, limit=STEPS * 3))
                assert lines == partition.lines, f"{key} has {len(lines)} lines instead of {len(partition.lines)}"
        if Feature.DEDUPLICATION in self.features:
            remembered = store.handled(group, "t", [f"id-{number}" for number in range(50)])
            assert remembered == model.handled, (
                f"remembered are {sorted(remembered)} instead of {sorted(model.handled)}"
            )


def _is_held(lease: Lease, now: Lease | None) -> bool:
    return now is not None and (now.owner, now.epoch) == (lease.owner, lease.epoch)
