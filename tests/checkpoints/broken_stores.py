"""Stores that each break one promise, so that it can be seen whether the suite notices."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.checkpoints.fencing import lease_named
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.errors import FencedError
from penstock.model import Change, Checkpoint, CheckpointKey, HistoryEntry, Lease, Pointer


class Store(SqliteCheckpoints):
    """A sound store, to be broken."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "checkpoints.db")

    def now(self, group: str, name: str) -> Lease | None:
        return lease_named(name, self.leases(group))

    def put(self, lease: Lease) -> None:
        """Write a lease as it is given, with no question asked."""
        with self.transaction() as tx:
            values = (lease.group, lease.name, lease.owner, lease.epoch, lease.beat)
            tx.connection.execute("INSERT OR REPLACE INTO penstock_lease VALUES (?, ?, ?, ?, ?)", values)

    def save_unfenced(self, key: CheckpointKey, change: Change) -> None:
        """Save under whatever lease there is."""
        now = self.now(key.group, key.lease_name)
        if now is None:
            now = Lease(key.group, key.lease_name, "", 1, 0)
            self.put(now)
        super().save(now, key, change)


class ClaimsWithoutLookingAtTheBeat(Store):
    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        now = self.now(group, name)
        return super().claim(group, name, owner, now if seen and now and seen.epoch == now.epoch else seen)


class ClaimsWhatIsThereAsIfItWereNot(Store):
    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        return super().claim(group, name, owner, seen or self.now(group, name))


class GrantsTheSameEpochAgain(Store):
    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        got = super().claim(group, name, owner, seen)
        if got is not None and seen is not None:
            got = replace(got, epoch=seen.epoch)
            self.put(got)
        return got


class LooksFirstAndWritesThen(Store):
    """Compares and sets in two steps: another may come between."""

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        now = self.now(group, name)
        if now != seen:
            return None
        time.sleep(0)
        got = Lease(group, name, owner, now.epoch + 1 if now else 1, 0)
        self.put(got)
        return got


class RenewsForAnybody(Store):
    def renew(self, lease: Lease) -> Lease:
        now = self.now(lease.group, lease.name)
        return super().renew(now if now and now.owner else lease)


class ForgetsTheEpochAtRelease(Store):
    def release(self, lease: Lease) -> None:
        now = self.now(lease.group, lease.name)
        if now is not None and (now.owner, now.epoch) == (lease.owner, lease.epoch):
            self.forget_lease(now)


class ReleasesForAnybody(Store):
    def release(self, lease: Lease) -> None:
        now = self.now(lease.group, lease.name)
        super().release(now or lease)


class SavesForAnybody(Store):
    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        self.save_unfenced(key, change)


class SavesForAnyEpochOfTheOwner(Store):
    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        now = self.now(key.group, key.lease_name)
        super().save(now if now and now.owner == lease.owner else lease, key, change)


class ChecksTheLeaseAndSavesThen(Store):
    """The lease may be lost between the two."""

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        now = self.now(key.group, key.lease_name)
        if now is None or (now.owner, now.epoch) != (lease.owner, lease.epoch):
            raise FencedError("it is another's")
        time.sleep(0)
        self.save_unfenced(key, change)


class TellsBeforeItIsRefused(Store):
    """Writes history before it looks at the lease."""

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        before = self.load(key)
        if before is not None and change.history:
            self.save_unfenced(key, Change(before, history=change.history))
            change = replace(change, history=())
        super().save(lease, key, change)


PIECE_S = 0.005
"""Long enough for a kill to come between two pieces."""


class SavesPieceByPiece(Store):
    """A kill between two pieces leaves half a change."""

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        super().save(lease, key, Change(change.checkpoint))
        threading.Event().wait(PIECE_S)
        super().save(lease, key, Change(change.checkpoint, state=change.state))
        threading.Event().wait(PIECE_S)
        super().save(lease, key, replace(change, state={}))


class AcknowledgesBeforeItSaves(Store):
    """Keeps the newest change in memory only."""

    _pending: tuple[Lease, CheckpointKey, Change] | None = None

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        pending, self._pending = self._pending, (lease, key, change)
        if pending is not None:
            super().save(*pending)


class KeepsFewRuns(Store):
    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        checkpoint = replace(change.checkpoint, finished=change.checkpoint.finished[:4096])
        super().save(lease, key, replace(change, checkpoint=checkpoint))


class CutsPointersTo64Bits(Store):
    def load(self, key: CheckpointKey) -> Checkpoint | None:
        found = super().load(key)
        if found is None or found.next < 1 << 64:
            return found
        return Checkpoint(found.start & (1 << 64) - 1, (found.start & (1 << 64) - 1) + 100)


class MixesLargeAndSmallLetters(Store):
    def load(self, key: CheckpointKey) -> Checkpoint | None:
        return super().load(replace(key, topic=key.topic.lower()))

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        self.save_unfenced(replace(key, topic=key.topic.lower()), change)


class KeepsStateThatIsGone(Store):
    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        kept = {name: value for name, value in change.state.items() if value is not None}
        super().save(lease, key, replace(change, state=kept))


class TellsTheOldestLines(Store):
    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        return super().history(key, pointer, 1_000_000)[:limit]


class FindsOnlyTheFirstOfARun(Store):
    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        lines = super().history(key, pointer, limit)
        return [line for line in lines if pointer is None or line.first == pointer]


class ForgetsHistoryTooSoon(Store):
    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        before_ms = change.forget_history_before_ms
        change = replace(change, forget_history_before_ms=None if before_ms is None else before_ms + 1)
        super().save(lease, key, change)


class ForgetsKeysTooSoon(Store):
    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        before_ms = change.forget_handled_before_ms
        super().save(lease, key, replace(change, forget_handled_before_ms=None if before_ms is None else before_ms + 1))


class RemembersKeysForEveryTopic(Store):
    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        topics = {key.topic for key in self.checkpoints(group)}
        found: frozenset[str] = frozenset()
        return found.union(*(super(RemembersKeysForEveryTopic, self).handled(group, each, ids) for each in topics))


class ForgetsGroupsInUse(Store):
    def forget(self, group: str) -> None:
        for lease in self.leases(group):
            self.release(lease)
        super().forget(group)


class BeginsEpochsAnewAfterForgetting(Store):
    def forget(self, group: str) -> None:
        super().forget(group)
        with self.transaction() as tx:
            tx.connection.execute("DELETE FROM penstock_forgotten")


class ListsOtherGroupsToo(Store):
    def checkpoints(self, group: str) -> Mapping[CheckpointKey, Checkpoint]:
        found: dict[CheckpointKey, Checkpoint] = {}
        for each in self.groups():
            found |= super().checkpoints(each)
        return found


class GuessesWhenDamaged(Store):
    def load(self, key: CheckpointKey) -> Checkpoint | None:
        try:
            return super().load(key)
        except Exception as error:
            return None if "damaged" in str(error) else Checkpoint(0, 0)


class EffectsFirstCheckpointThen(Store):
    """Two transactions in place of one."""

    def transaction(self) -> Any:
        return _Late(self, super().transaction())


class _Late(AbstractContextManager[Any]):
    def __init__(self, store: EffectsFirstCheckpointThen, inner: Any) -> None:
        self._store = store
        self._inner = inner
        self._saves: list[tuple[Lease, CheckpointKey, Change]] = []

    @property
    def connection(self) -> Any:
        return self._inner.connection

    def savepoint(self) -> Any:
        return self._inner.savepoint()

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        self._saves.append((lease, key, change))

    def __enter__(self) -> _Late:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)
        if error[0] is None:
            for each in self._saves:
                self._store.save(*each)


class LetsUsersCommit(Store):
    def transaction(self) -> Any:
        return _Unguarded(self._database)


class _Unguarded(AbstractContextManager[Any]):
    def __init__(self, database: Any) -> None:
        from penstock.checkpoints.sqlite.store import SqliteTransaction

        self._inner = SqliteTransaction(database)

    def __enter__(self) -> Any:
        self._inner.__enter__()
        connection: Any = self._inner.connection
        connection.is_guarded = False
        return self._inner

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)
