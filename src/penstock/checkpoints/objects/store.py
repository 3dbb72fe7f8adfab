"""Checkpoints in an object store with compare-and-set of heads: what S3 and DynamoDB share."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from penstock.checkpoints.fencing import FEATURES, check_lease_of, check_owner, in_use
from penstock.checkpoints.format import corrupt, decode_checkpoint, encode_checkpoint
from penstock.checkpoints.objects.cleaning import Cleaner
from penstock.checkpoints.objects.heads import ATTEMPTS, NO_HEAD, PARTITION, Head, Heads, ObjectStore, PartGone, Version
from penstock.checkpoints.objects.segments import Ids, digest_of_change, digest_of_id
from penstock.checkpoints.objects.versions import (
    HandledLookup,
    Parts,
    lines_backwards,
    next_version,
    state_in,
    version_of,
    with_version,
)
from penstock.errors import CorruptCheckpointError, FencedError, GroupError, StoreUnavailableError
from penstock.model import Change, Checkpoint, CheckpointKey, HistoryEntry, Lease, Pointer

logger = logging.getLogger(__name__)

FORGETTING: Final = "whoever forgets the group"
"""The owner of a group's leases while it is deleted. If that process dies, any member may claim them from it."""

R = TypeVar("R")


class VersionedCheckpoints:
    """A checkpoint store on an `ObjectStore`; see `heads` for its objects.

    A save writes parts, if needed, and then the head, if it has not changed: that is when the save takes effect.
    Unreferenced parts are removed afterwards, and those of a killed owner when the next one saves.
    """

    features = FEATURES

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._heads = Heads(objects)
        self._cleaner = Cleaner(objects)
        self._lock = threading.Lock()
        self._turns: dict[tuple[str, str], threading.Lock] = {}
        self._versions: dict[tuple[str, str], tuple[bytes, Version]] = {}
        """The versions that were last saved here, each with the digest of its change."""
        self._segments: dict[tuple[str, str], dict[str, Ids]] = {}
        """The idempotency keys of a group and topic as last read: segments never change."""

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        check_owner(owner)
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
        with contextlib.suppress(FencedError):  # another owner has it: nothing to do
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
        check_lease_of(lease, key)
        checkpoint = encode_checkpoint(change.checkpoint)
        digest = digest_of_change(change, checkpoint, lease.epoch)
        # One save at a time, or parts that a later one needs might be taken for those it replaced.
        with self._lock:
            turn = self._turns.setdefault((lease.group, lease.name), threading.Lock())
        with turn:
            self._save(lease, key, change, checkpoint, digest)

    def _save(self, lease: Lease, key: CheckpointKey, change: Change, checkpoint: bytes, digest: bytes) -> None:
        place = key.group, key.lease_name
        parts = Parts(self._objects, key, lease.epoch)
        is_readable = True
        prepared: tuple[bytes, Version, Head] | None = None

        def follow(head: Head) -> Head:
            nonlocal prepared
            if head.change == digest:
                return head
            # If only the beat has changed since the last try, the prepared head is still right.
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
                    "the checkpoint of %s in %s was damaged and is replaced by a new one. Its keyed state, history "
                    "and idempotency keys were damaged with it, and are lost",
                    key,
                    self._objects.where,
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
        """False when the current version is damaged as a whole, so that saving a new one loses nothing more."""
        now = self._heads.read(key.group, key.lease_name)
        if now is None:
            return True
        try:
            version_of(now.head, Parts(self._objects, key))
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
            return True  # reading the damaged part raises the error

    def forget(self, group: str) -> None:
        # Every lease is claimed first, so that no member can save, and released if one turns out to be held. Only then
        # is anything removed: first what the heads refer to, and the heads last.
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
            raise GroupError(f"the group {group!r} came back while it was deleted: {error}") from error

    def _forget_held(self, lease: Lease, floor: int) -> None:
        place = lease.group, lease.name
        self._heads.write_held(lease, lambda head: head.changed(change=b"", inline=b"", part=""))
        self._objects.remove_parts(*place, self._cleaner.older(*place, lease.epoch))
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
        question = HandledLookup(wanted, self._segments.get((group, topic), {}))
        for name, head in self._heads.all(group).items():
            if head.change and key_of(group, name).topic == topic:
                self._look(key_of(group, name), question.ask, head)
        self._segments[group, topic] = question.used
        return frozenset(wanted[digest] for digest in question.answer())

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        def newest(version: Version, parts: Parts) -> list[HistoryEntry]:
            lines = itertools.islice(lines_backwards(version, pointer, parts.read, key), max(limit, 0))
            return list(lines)[::-1]

        return self._look(key, newest) or []

    def close(self) -> None:
        if self._heads.is_closed:
            return
        self._cleaner.close()
        self._heads.is_closed = True
        self._objects.close()

    def _look(self, key: CheckpointKey, use: Callable[[Version, Parts], R], head: Head | None = None) -> R | None:
        """The result of `use` on the current version; None when there is none. Repeated when the version is replaced
        and its parts are removed meanwhile."""
        last: bytes | None = None
        for _ in range(ATTEMPTS):
            if head is None:
                now = self._heads.read(key.group, key.lease_name)
                head = None if now is None else now.head
            if head is None or not head.change:
                return None
            try:
                return use(self._version(key, head), Parts(self._objects, key))
            except PartGone as gone:
                if head.change == last:
                    raise corrupt(
                        f"the checkpoint of {key} in {self._objects.where}", f"its part {gone} is missing"
                    ) from gone
                last, head = head.change, None
        raise StoreUnavailableError(f"{self._objects.where}: {key} changes faster than it can be read")

    def _version(self, key: CheckpointKey, head: Head) -> Version:
        with self._lock:
            change, version = self._versions.get((key.group, key.lease_name), (b"", None))
        if version is not None and change == head.change:
            return version
        return version_of(head, Parts(self._objects, key))

    def _let_go(self, group: str, name: str) -> None:
        self._heads.drop_cached(group, name)
        with self._lock:
            self._versions.pop((group, name), None)


def key_of(group: str, name: str) -> CheckpointKey:
    """The key whose `lease_name` this is. Only such heads have a version."""
    topic, _, partition = name.removeprefix(PARTITION).rpartition(":")
    return CheckpointKey(group, topic, int(partition))
