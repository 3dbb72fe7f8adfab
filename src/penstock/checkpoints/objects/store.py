"""Checkpoints in an object store with compare-and-set of manifests: what files, Redis, S3 and DynamoDB share."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from penstock.checkpoints.fencing import FEATURES, check_lease_of, check_owner, in_use
from penstock.checkpoints.format import corrupt, decode_checkpoint, decode_history, encode_checkpoint, encode_history
from penstock.checkpoints.objects.manifests import (
    ATTEMPTS,
    NO_MANIFEST,
    PARTITION,
    Manifest,
    Manifests,
    ObjectStore,
    PartGone,
    Version,
    epoch_of,
    part_name,
    seal,
    unseal,
)
from penstock.checkpoints.objects.segments import (
    ENTRY_BYTES,
    Ids,
    ReadPart,
    digest_of_change,
    digest_of_id,
    grow_handled,
    grow_lines,
    grow_state,
    may_be_about,
    read_ids,
    read_lines,
    read_state,
    remembered,
    size_of_state,
)
from penstock.errors import CorruptCheckpointError, FencedError, GroupError, PenstockError, StoreUnavailableError
from penstock.model import Change, Checkpoint, CheckpointKey, HistoryEntry, Lease, Pointer
from penstock.model.closing import Closing


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one manifest, and which of them were written here."""

    objects: ObjectStore
    key: CheckpointKey
    epoch: int = 0
    written: list[str] = field(default_factory=list)

    def read(self, part: str) -> bytes:
        data = self.objects.get_part(self.key.group, self.key.lease_name, part)
        if data is None:
            raise PartGone(part)
        return data

    def write(self, data: bytes) -> str:
        part = part_name(self.epoch)
        self.written.append(part)
        self.objects.put_part(self.key.group, self.key.lease_name, part, data)
        return part


def version_of(manifest: Manifest, parts: Parts) -> Version:
    """The version that a manifest refers to; an empty one when nothing was saved yet."""
    if not manifest.change:
        return Version()
    data = manifest.inline or parts.read(manifest.part)
    return unseal(data, Version, f"the checkpoint of {parts.key} in {parts.objects.where}")


def next_version(version: Version, change: Change, checkpoint: bytes, parts: Parts) -> Version:
    """The version after a change. What no longer fits into it is written to parts."""
    limit_bytes, key = parts.objects.new_bytes, parts.key
    state, new_state = version.state, version.new_state | dict(change.state)
    if size_of_state(new_state) > limit_bytes:
        state, new_state = grow_state(state, new_state, parts.read, parts.write, key), {}

    lines_since_ms = _later(version.lines_since_ms, change.forget_history_before_ms)
    lines = tuple(each for each in version.lines if each.newest_ms >= lines_since_ms)
    new_lines = version.new_lines
    if change.history:
        new_lines = (*new_lines, encode_history(change.history))
    if sum(map(len, new_lines)) > limit_bytes:
        fresh = [line for data in new_lines for line in decode_history(data, key)]
        lines, new_lines = grow_lines(lines, fresh, lines_since_ms, parts.read, parts.write, key), ()

    handled_since_ms = _later(version.handled_since_ms, change.forget_handled_before_ms)
    handled = tuple(each for each in version.handled if each.newest_ms >= handled_since_ms)
    new_handled = version.new_handled | remembered(change.handled)
    if change.forget_handled_before_ms is not None:
        new_handled = {digest: time_ms for digest, time_ms in new_handled.items() if time_ms >= handled_since_ms}
    if len(new_handled) * ENTRY_BYTES > limit_bytes:
        handled, new_handled = grow_handled(handled, new_handled, handled_since_ms, parts.read, parts.write, key), {}
    return Version(
        checkpoint, state, new_state, lines, new_lines, handled, new_handled, lines_since_ms, handled_since_ms
    )


def _later(since_ms: int, before_ms: int | None) -> int:
    return since_ms if before_ms is None else max(since_ms, before_ms)


def with_version(manifest: Manifest, version: Version, change: bytes, parts: Parts) -> Manifest:
    """The manifest for a version: with the version inside if it is small, otherwise with a part that is written
    here."""
    data = seal(version)
    if len(data) <= parts.objects.inline_bytes:
        return msgspec.structs.replace(manifest, change=change, inline=data, part="")
    return msgspec.structs.replace(manifest, change=change, inline=b"", part=parts.write(data))


class HandledLookup:
    """A lookup of idempotency keys in the versions of several partitions."""

    def __init__(self, wanted: Collection[bytes], known: Mapping[str, Ids]) -> None:
        self._wanted = wanted
        self._known = known
        self.used: dict[str, Ids] = {}
        """The segments that were read, for reuse by the next lookup."""
        self._newest_ms: dict[bytes, int] = {}
        self._since_ms = Version().handled_since_ms

    def ask(self, version: Version, parts: Parts) -> None:
        for segment in version.handled:
            if segment.part not in self.used:
                known = self._known.get(segment.part)
                self.used[segment.part] = read_ids(segment.part, parts.read, parts.key) if known is None else known
        sources: list[Callable[[bytes], int | None]] = [
            *(self.used[segment.part].time_ms for segment in version.handled),
            version.new_handled.get,
        ]
        for digest in self._wanted:
            for time_ms in (source(digest) for source in sources):
                if time_ms is not None:
                    self._newest_ms[digest] = max(time_ms, self._newest_ms.get(digest, time_ms))
        self._since_ms = max(version.handled_since_ms, self._since_ms)

    def answer(self) -> list[bytes]:
        """The keys that are remembered by any partition and not expired."""
        return [digest for digest, time_ms in self._newest_ms.items() if time_ms >= self._since_ms]


def state_in(version: Version, read: ReadPart, key: CheckpointKey) -> dict[bytes, bytes]:
    merged: dict[bytes, bytes | None] = {}
    for segment in version.state:
        merged |= read_state(segment.part, read, key)
    merged |= version.new_state
    return {name: value for name, value in merged.items() if value is not None}


def lines_backwards(
    version: Version, pointer: Pointer | None, read: ReadPart, key: CheckpointKey
) -> Iterator[HistoryEntry]:
    """The history entries of the record at a pointer, or all, newest first. Segments without any are not read."""
    for line in _all_lines_backwards(version, pointer, read, key):
        if line.ended_ms >= version.lines_since_ms and (pointer is None or line.first <= pointer < line.end):
            yield line


def _all_lines_backwards(
    version: Version, pointer: Pointer | None, read: ReadPart, key: CheckpointKey
) -> Iterator[HistoryEntry]:
    for data in reversed(version.new_lines):
        yield from reversed(decode_history(data, key))
    for segment in reversed(version.lines):
        if may_be_about(segment, pointer):
            yield from reversed(read_lines(segment, read, key))


logger = logging.getLogger(__name__)

AT_ONCE = 16
"""How many parts must be removable before they are removed, as each costs a request."""


class Cleaner:
    """Knows the parts that were written here, and which of them the last version needs.

    A part may be removed only after a manifest was written that does not refer to it: from then on, a late write of a
    manifest that refers to it is refused. A failed removal is repeated later, and does not fail the save it follows.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._written: dict[tuple[str, str], set[str]] = {}
        self._removable: dict[tuple[str, str], set[str]] = {}
        self._swept: dict[tuple[str, str], int] = {}

    def written(self, group: str, name: str, parts: Collection[str]) -> None:
        """Note that these parts exist; a manifest may refer to them."""
        if parts:
            with self._lock:
                self._written.setdefault((group, name), set()).update(parts)

    def saved(self, group: str, name: str, epoch: int, needed: Collection[str]) -> None:
        """Note that we wrote a manifest with this epoch, which refers to these parts and to no others."""
        place = group, name
        with self._lock:
            written = self._written.setdefault(place, set())
            removable = self._removable.setdefault(place, set())
            removable |= written - set(needed)
            self._written[place] = written & set(needed)
            is_first = self._swept.get(place) != epoch
        try:
            if is_first:
                # Earlier owners are fenced, so parts that they wrote and this version does not need are unused.
                older = set(self.older(group, name, epoch)) - set(needed)
                self._objects.remove_parts(group, name, older)
                with self._lock:
                    self._swept[place] = epoch
                    self._written[place] = set(needed)
            if len(removable) >= AT_ONCE:
                self._remove(place)
        except PenstockError as error:
            logger.warning("old versions of %s of group %s are not removed yet: %s", name, group, error)

    def clean(self, group: str, name: str) -> None:
        """Remove what can be removed when the lease is released."""
        try:
            self._remove((group, name))
        except PenstockError as error:
            logger.warning("old versions of %s of group %s are left to the next owner: %s", name, group, error)
        with self._lock:
            for kept in (self._written, self._removable, self._swept):
                kept.pop((group, name), None)

    def close(self) -> None:
        with self._lock:
            places = list(self._removable)
        for group, name in places:
            self.clean(group, name)

    def older(self, group: str, name: str, epoch: int) -> list[str]:
        """The parts of a manifest that were written with a lower epoch."""
        return [part for part in self._objects.parts(group, name) if epoch_of(part) < epoch]

    def _remove(self, place: tuple[str, str]) -> None:
        with self._lock:
            doomed = list(self._removable.get(place, ()))
        if doomed:
            self._objects.remove_parts(*place, doomed)
            with self._lock:
                self._removable.get(place, set()).difference_update(doomed)


FORGETTING: Final = "whoever forgets the group"
"""The owner of a group's leases while it is deleted. If that process dies, any member may claim them from it."""

R = TypeVar("R")


class VersionedCheckpoints(Closing):
    """A checkpoint store on an `ObjectStore`; see `manifests` for its objects.

    A save writes parts, if needed, and then the manifest, if it has not changed: that is when the save takes effect.
    Unreferenced parts are removed afterwards, and those of a killed owner when the next one saves.
    """

    features = FEATURES

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._manifests = Manifests(objects)
        self._cleaner = Cleaner(objects)
        self._lock = threading.Lock()
        self._turns: dict[tuple[str, str], threading.Lock] = {}
        self._versions: dict[tuple[str, str], tuple[bytes, Version]] = {}
        """The versions that were last saved here, each with the digest of its change."""
        self._segments: dict[tuple[str, str], dict[str, Ids]] = {}
        """The idempotency keys of a group and topic as last read: segments never change."""

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        check_owner(owner)
        now = self._manifests.read(group, name)
        there = None if now is None or now.manifest.gone else now.manifest.lease(group, name)
        if seen != there:
            return None
        last = now.manifest if now is not None else NO_MANIFEST.changed(epoch=self._manifests.floor(group))
        manifest = last.changed(owner=owner, epoch=last.epoch + 1, beat=0, gone=False)
        return manifest.lease(group, name) if self._manifests.swap(group, name, now, manifest) else None

    def renew(self, lease: Lease) -> Lease:
        manifest = self._manifests.write_held(lease, lambda manifest: manifest.changed(beat=manifest.beat + 1))
        return manifest.lease(lease.group, lease.name)

    def release(self, lease: Lease) -> None:
        with contextlib.suppress(FencedError):  # another owner has it: nothing to do
            self._manifests.write_held(lease, lambda manifest: manifest.changed(owner=""))
        self._let_go(lease.group, lease.name)
        self._cleaner.clean(lease.group, lease.name)

    def leases(self, group: str, prefix: str = "") -> Sequence[Lease]:
        manifests = self._manifests.all(group, prefix)
        return [manifests[name].lease(group, name) for name in sorted(manifests) if not manifests[name].gone]

    def forget_lease(self, lease: Lease) -> None:
        now = self._manifests.read(lease.group, lease.name)
        if now is not None and not now.manifest.gone and now.manifest.lease(lease.group, lease.name) == lease:
            self._manifests.remove(lease.group, lease.name, now, lease.epoch)
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
        prepared: tuple[bytes, Version, Manifest] | None = None

        def follow(manifest: Manifest) -> Manifest:
            nonlocal prepared
            if manifest.change == digest:
                return manifest
            # If only the beat has changed since the last try, the prepared manifest is still right.
            if prepared is None or prepared[0] != manifest.change:
                before = self._version(key, manifest) if is_readable else Version()
                version = next_version(before, change, checkpoint, parts)
                prepared = manifest.change, version, with_version(manifest, version, digest, parts)
            ready = prepared[2]
            return manifest.changed(change=digest, inline=ready.inline, part=ready.part)

        def was_done(manifest: Manifest) -> bool:
            return manifest.change == digest

        try:
            try:
                manifest = self._manifests.write_held(lease, follow, was_done)
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
                manifest = self._manifests.write_held(lease, follow, was_done)
        finally:
            self._cleaner.written(*place, parts.written)
        if prepared is not None and (manifest.inline, manifest.part) == (prepared[2].inline, prepared[2].part):
            version = prepared[1]
            with self._lock:
                self._versions[place] = digest, version
            self._cleaner.saved(*place, lease.epoch, version.parts | ({manifest.part} if manifest.part else set()))

    def _has_readable_version(self, key: CheckpointKey) -> bool:
        """Whether the current version can be read. If not, saving a new one loses nothing more."""
        now = self._manifests.read(key.group, key.lease_name)
        if now is None:
            return True
        try:
            version_of(now.manifest, Parts(self._objects, key))
        except (CorruptCheckpointError, PartGone):
            return False
        return True

    def checkpoints(self, group: str) -> Mapping[CheckpointKey, Checkpoint]:
        found: dict[CheckpointKey, Checkpoint] = {}
        for name, manifest in sorted(self._manifests.all(group).items()):
            if manifest.change:
                key = key_of(group, name)
                data = self._look(key, lambda version, _: version.checkpoint, manifest)
                if data:
                    found[key] = decode_checkpoint(data, key)
        return found

    def groups(self) -> Sequence[str]:
        return sorted(group for group in set(self._manifests.groups()) if self._is_there(group))

    def _is_there(self, group: str) -> bool:
        try:
            return any(not manifest.gone or manifest.change for manifest in self._manifests.all(group).values())
        except CorruptCheckpointError:
            return True  # reading the damaged part raises the error

    def forget(self, group: str) -> None:
        # Every lease is claimed first, so that no member can save, and released if one turns out to be held. Only then
        # is anything removed: first what the manifests refer to, and the manifests last.
        manifests = {
            name: manifest
            for name, manifest in self._manifests.all(group).items()
            if manifest.change or not manifest.gone
        }
        for name, manifest in sorted(manifests.items()):
            if manifest.owner:
                raise in_use(manifest.lease(group, name))
        claimed: list[Lease] = []
        try:
            for name, manifest in sorted(manifests.items()):
                mine = self.claim(group, name, FORGETTING, None if manifest.gone else manifest.lease(group, name))
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
        self._manifests.raise_floor(group, floor)
        try:
            for lease in claimed:
                self._forget_held(lease, floor)
        except FencedError as error:
            raise GroupError(f"the group {group!r} came back while it was deleted: {error}") from error

    def _forget_held(self, lease: Lease, floor: int) -> None:
        place = lease.group, lease.name
        self._manifests.write_held(lease, lambda manifest: manifest.changed(change=b"", inline=b"", part=""))
        self._objects.remove_parts(*place, self._cleaner.older(*place, lease.epoch))
        now = self._manifests.read(*place)
        if now is not None and now.manifest.is_held_by(lease):
            self._manifests.remove(*place, now, floor)
        self._let_go(*place)

    def state(self, key: CheckpointKey) -> Mapping[bytes, bytes]:
        return self._look(key, lambda version, parts: state_in(version, parts.read, key)) or {}

    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        wanted = {digest_of_id(each): each for each in ids}
        if not wanted:
            return frozenset()
        question = HandledLookup(wanted, self._segments.get((group, topic), {}))
        for name, manifest in self._manifests.all(group).items():
            if manifest.change and key_of(group, name).topic == topic:
                self._look(key_of(group, name), question.ask, manifest)
        self._segments[group, topic] = question.used
        return frozenset(wanted[digest] for digest in question.answer())

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        def newest(version: Version, parts: Parts) -> list[HistoryEntry]:
            lines = itertools.islice(lines_backwards(version, pointer, parts.read, key), max(limit, 0))
            return list(lines)[::-1]

        return self._look(key, newest) or []

    def close(self) -> None:
        if self._manifests.is_closed:
            return
        self._cleaner.close()
        self._manifests.is_closed = True
        self._objects.close()

    def _look(
        self, key: CheckpointKey, use: Callable[[Version, Parts], R], manifest: Manifest | None = None
    ) -> R | None:
        """The result of `use` on the current version; None when there is none. Repeated when the version is replaced
        and its parts are removed meanwhile."""
        last: bytes | None = None
        for _ in range(ATTEMPTS):
            if manifest is None:
                now = self._manifests.read(key.group, key.lease_name)
                manifest = None if now is None else now.manifest
            if manifest is None or not manifest.change:
                return None
            try:
                return use(self._version(key, manifest), Parts(self._objects, key))
            except PartGone as gone:
                if manifest.change == last:
                    raise corrupt(
                        f"the checkpoint of {key} in {self._objects.where}", f"its part {gone} is missing"
                    ) from gone
                last, manifest = manifest.change, None
        raise StoreUnavailableError(f"{self._objects.where}: {key} changes faster than it can be read")

    def _version(self, key: CheckpointKey, manifest: Manifest) -> Version:
        with self._lock:
            change, version = self._versions.get((key.group, key.lease_name), (b"", None))
        if version is not None and change == manifest.change:
            return version
        return version_of(manifest, Parts(self._objects, key))

    def _let_go(self, group: str, name: str) -> None:
        self._manifests.drop_cached(group, name)
        with self._lock:
            self._versions.pop((group, name), None)


def key_of(group: str, name: str) -> CheckpointKey:
    """The key whose `lease_name` this is. Only such manifests have a version."""
    topic, _, partition = name.removeprefix(PARTITION).rpartition(":")
    return CheckpointKey(group, topic, int(partition))
