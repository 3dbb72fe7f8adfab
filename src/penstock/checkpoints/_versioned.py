"""Checkpoints on a shelf of objects whose heads are compared and set: what S3 and DynamoDB have in common."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from penstock.abc import Feature, Features
from penstock.checkpoints._cleaning import Cleaner
from penstock.checkpoints._heads import NO_HEAD, PARTITION, Head, Version
from penstock.checkpoints._holding import ATTEMPTS, Heads
from penstock.checkpoints._segments import Ids, digest_of_change, digest_of_id
from penstock.checkpoints._shelf import Shelf
from penstock.checkpoints._versions import (
    PartGone,
    Parts,
    Question,
    lines_backwards,
    next_version,
    state_in,
    version_of,
    with_version,
)
from penstock.checkpoints.fencing import in_use
from penstock.checkpoints.format import corrupt, decode_checkpoint, encode_checkpoint
from penstock.errors import CorruptCheckpointError, FencedError, GroupError, StoreUnavailableError
from penstock.model import Change, Checkpoint, CheckpointKey, Happening, Lease, Pointer

logger = logging.getLogger(__name__)

FORGETTING: Final = "whoever forgets the group"
"""The owner of the leases of a group while it is forgotten. Should that one die, any member may claim them from it."""

R = TypeVar("R")


class VersionedCheckpoints:
    """A checkpoint store on a `Shelf`; see `_heads` for what lies there.

    Saving writes parts, if it needs any, and then the head, if it still is as it was: that is the moment in which the
    save counts. What is not referred to any more is removed afterwards, and what a killed owner left behind when the
    next one saves.
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._heads = Heads(shelf)
        self._cleaner = Cleaner(shelf)
        self._lock = threading.Lock()
        self._turns: dict[tuple[str, str], threading.Lock] = {}
        self._versions: dict[tuple[str, str], tuple[bytes, Version]] = {}
        """The versions that were saved here last, each with the digest of its change."""
        self._segments: dict[tuple[str, str], dict[str, Ids]] = {}
        """The idempotency keys of a group and topic, as they were when last asked for: segments never change."""

    @property
    def features(self) -> Features:
        return frozenset({Feature.DURABLE, Feature.LEASES, Feature.STATE, Feature.HISTORY, Feature.DEDUPLICATION})

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        if not owner:
            raise ValueError("an owner has a name: the empty one means that nobody holds the lease")
        now = self._heads.read(group, name)
        there = None if now is None or now.head.gone else now.head.lease(group, name)
        if seen != there:
            return None
        last = now.head if now is not None else NO_HEAD.changed(epoch=self._heads.floor(group))
        head = last.changed(owner=owner, epoch=last.epoch + 1, beat=0, gone=False)
        return head.lease(group, name) if self._heads.swap(group, name, now, head) else None

    def renew(self, lease: Lease) -> Lease:
        head = self._heads.write_held(lease, lambda head: head.changed(beat=head.beat + 1))
        return head.lease(lease.group, lease.name)

    def release(self, lease: Lease) -> None:
        with contextlib.suppress(FencedError):  # somebody else holds it: nothing to do
            self._heads.write_held(lease, lambda head: head.changed(owner=""))
        self._let_go(lease.group, lease.name)
        self._cleaner.clean(lease.group, lease.name)

    def leases(self, group: str) -> Sequence[Lease]:
        heads = self._heads.all(group)
        return [heads[name].lease(group, name) for name in sorted(heads) if not heads[name].gone]

    def forget_lease(self, lease: Lease) -> None:
        now = self._heads.read(lease.group, lease.name)
        if now is not None and not now.head.gone and now.head.lease(lease.group, lease.name) == lease:
            self._heads.remove(lease.group, lease.name, now, lease.epoch)
            self._let_go(lease.group, lease.name)

    def load(self, key: CheckpointKey) -> Checkpoint | None:
        data = self._look(key, lambda version, _: version.checkpoint)
        return decode_checkpoint(data, key) if data else None

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        if (lease.group, lease.name) != (key.group, key.lease_name):
            raise FencedError(f"{lease} is not the lease of {key}, {key.lease_name!r}. Nothing was saved")
        checkpoint = encode_checkpoint(change.checkpoint)
        digest = digest_of_change(change, checkpoint, lease.epoch)
        # One save after the other, or the parts that a later one needs might be taken for those it replaced.
        with self._lock:
            turn = self._turns.setdefault((lease.group, lease.name), threading.Lock())
        with turn:
            self._save(lease, key, change, checkpoint, digest)

    def _save(self, lease: Lease, key: CheckpointKey, change: Change, checkpoint: bytes, digest: bytes) -> None:
        place = key.group, key.lease_name
        parts = Parts(self._shelf, key, lease.epoch)
        is_readable = True
        prepared: tuple[bytes, Version, Head] | None = None

        def follow(head: Head) -> Head:
            nonlocal prepared
            if head.change == digest:
                return head
            # Where only the beat has changed since the last try, what was prepared for that is still right.
            if prepared is None or prepared[0] != head.change:
                before = self._version(key, head) if is_readable else Version()
                version = next_version(before, change, checkpoint, parts)
                prepared = head.change, version, with_version(head, version, digest, parts)
            ready = prepared[2]
            return head.changed(change=digest, inline=ready.inline, part=ready.part)

        def was_done(head: Head) -> bool:
            return head.change == digest

        try:
            try:
                head = self._heads.write_held(lease, follow, was_done)
            except CorruptCheckpointError:
                if self._has_readable_version(key):
                    raise
                logger.error(
                    "the checkpoint of %s in %s was damaged, and is replaced by a new one. Its keyed state, history "
                    "and idempotency keys were damaged with it, and are gone",
                    key,
                    self._shelf.where,
                )
                is_readable = False
                head = self._heads.write_held(lease, follow, was_done)
        finally:
            self._cleaner.written(*place, parts.written)
        if prepared is not None and (head.inline, head.part) == (prepared[2].inline, prepared[2].part):
            version = prepared[1]
            with self._lock:
                self._versions[place] = digest, version
            self._cleaner.saved(*place, lease.epoch, version.parts | ({head.part} if head.part else set()))

    def _has_readable_version(self, key: CheckpointKey) -> bool:
        """False when the version that counts is damaged as a whole, so that saving a new one loses nothing more."""
        now = self._heads.read(key.group, key.lease_name)
        if now is None:
            return True
        try:
            version_of(now.head, Parts(self._shelf, key))
        except (CorruptCheckpointError, PartGone):
            return False
        return True

    def checkpoints(self, group: str) -> Mapping[CheckpointKey, Checkpoint]:
        found: dict[CheckpointKey, Checkpoint] = {}
        for name, head in sorted(self._heads.all(group).items()):
            if head.change:
                key = key_of(group, name)
                data = self._look(key, lambda version, _: version.checkpoint, head)
                if data:
                    found[key] = decode_checkpoint(data, key)
        return found

    def groups(self) -> Sequence[str]:
        return sorted(group for group in set(self._heads.groups()) if self._is_there(group))

    def _is_there(self, group: str) -> bool:
        try:
            return any(not head.gone or head.change for head in self._heads.all(group).values())
        except CorruptCheckpointError:
            return True  # what is damaged is told to who asks for it

    def forget(self, group: str) -> None:
        # Every lease is claimed first, so that nobody can save any more, and given back if one turns out to be held.
        # Only then is anything removed: first what the heads refer to, and the heads last.
        heads = {name: head for name, head in self._heads.all(group).items() if head.change or not head.gone}
        for name, head in sorted(heads.items()):
            if head.owner:
                raise in_use(head.lease(group, name))
        claimed: list[Lease] = []
        try:
            for name, head in sorted(heads.items()):
                mine = self.claim(group, name, FORGETTING, None if head.gone else head.lease(group, name))
                if mine is None:
                    raise GroupError(f"the group {group!r} is in use: {name!r} was claimed just now. Stop its members")
                claimed.append(mine)
        except BaseException:
            for lease in claimed:
                self.release(lease)
            raise
        if not claimed:
            return
        floor = max(lease.epoch for lease in claimed)
        self._heads.raise_floor(group, floor)
        try:
            for lease in claimed:
                self._forget_held(lease, floor)
        except FencedError as error:
            raise GroupError(f"the group {group!r} came back while it was forgotten: {error}") from error

    def _forget_held(self, lease: Lease, floor: int) -> None:
        place = lease.group, lease.name
        self._heads.write_held(lease, lambda head: head.changed(change=b"", inline=b"", part=""))
        self._shelf.remove_parts(*place, self._cleaner.older(*place, lease.epoch))
        now = self._heads.read(*place)
        if now is not None and now.head.is_held_by(lease):
            self._heads.remove(*place, now, floor)
        self._let_go(*place)

    def state(self, key: CheckpointKey) -> Mapping[bytes, bytes]:
        return self._look(key, lambda version, parts: state_in(version, parts.read, key)) or {}

    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        wanted = {digest_of_id(each): each for each in ids}
        if not wanted:
            return frozenset()
        question = Question(wanted, self._segments.get((group, topic), {}))
        for name, head in self._heads.all(group).items():
            if head.change and key_of(group, name).topic == topic:
                self._look(key_of(group, name), question.ask, head)
        self._segments[group, topic] = question.used
        return frozenset(wanted[digest] for digest in question.answer())

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[Happening]:
        def newest(version: Version, parts: Parts) -> list[Happening]:
            lines = itertools.islice(lines_backwards(version, pointer, parts.read, key), max(limit, 0))
            return list(lines)[::-1]

        return self._look(key, newest) or []

    def close(self) -> None:
        if self._heads.is_closed:
            return
        self._cleaner.close()
        self._heads.is_closed = True
        self._shelf.close()

    def _look(self, key: CheckpointKey, use: Callable[[Version, Parts], R], head: Head | None = None) -> R | None:
        """What `use` finds in the version that counts; None when there is none. A version that is replaced, and
        cleaned away, while it is looked at is looked at again as it is then."""
        last: bytes | None = None
        for _ in range(ATTEMPTS):
            if head is None:
                now = self._heads.read(key.group, key.lease_name)
                head = None if now is None else now.head
            if head is None or not head.change:
                return None
            try:
                return use(self._version(key, head), Parts(self._shelf, key))
            except PartGone as gone:
                if head.change == last:
                    raise corrupt(
                        f"the checkpoint of {key} in {self._shelf.where}", f"its part {gone} is missing"
                    ) from gone
                last, head = head.change, None
        raise StoreUnavailableError(f"{self._shelf.where}: {key} changes faster than it can be read")

    def _version(self, key: CheckpointKey, head: Head) -> Version:
        with self._lock:
            change, version = self._versions.get((key.group, key.lease_name), (b"", None))
        if version is not None and change == head.change:
            return version
        return version_of(head, Parts(self._shelf, key))

    def _let_go(self, group: str, name: str) -> None:
        self._heads.let_go(group, name)
        with self._lock:
            self._versions.pop((group, name), None)


def key_of(group: str, name: str) -> CheckpointKey:
    """The key whose `lease_name` this is. Only such heads ever have a version."""
    topic, _, partition = name.removeprefix(PARTITION).rpartition(":")
    return CheckpointKey(group, topic, int(partition))
