"""The objects of a checkpoint store: manifests, which change by compare-and-set, and versions, which never change.

A **manifest** is small; stores keep it below the name `heads`. There is one for each lease: it says who holds it, and
which version of the checkpoint is current. A **version** is everything that a change saved: the checkpoint, the newest
state, history and idempotency keys, and the **segments** that hold the older ones. A small version is in the manifest
itself; a larger one, and each segment, is in a **part**: an object that is written once, before the manifest that
refers to it, and removed some time after no manifest does.

So a save takes effect at the one moment when the manifest changes: a writer killed before or after it leaves the old
checkpoint or the new one.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import cramjam
import msgspec
from crc32c import crc32c

from penstock.checkpoints.fencing import fenced
from penstock.checkpoints.format import Number, corrupt
from penstock.errors import ConnectionClosedError, StoreUnavailableError
from penstock.model import Lease

Stamp = str
"""Identifies the last write of a manifest; every write has another stamp."""


class ObjectStore(Protocol):
    """Keeps manifests, by group and name, and parts, each of which belongs to a manifest.

    A write is seen by every read that starts afterwards. Raises StoreUnavailableError when it cannot be reached, and
    ConfigError for what a retry cannot fix. Thread-safe.
    """

    where: str
    """Its name in messages."""
    inline_bytes: int
    """A version up to this size is in its manifest, which is read and written often."""
    new_bytes: int
    """How much new state, history or keys a version holds before they become a segment."""
    can_remove_manifests: bool

    def read_manifest(self, group: str, name: str) -> tuple[bytes, Stamp] | None: ...

    def manifests(self, group: str, prefix: str = "") -> Mapping[str, tuple[bytes, Stamp]]:
        """All manifests of a group by name, of names that start with `prefix`. Each is consistent; they need not be of
        the same moment."""

    def swap_manifest(self, group: str, name: str, stamp: Stamp | None, data: bytes) -> Stamp | None:
        """Write a manifest if its stamp is this one; None: if it does not exist. Returns the new stamp, or None when
        the stamp was different. A repeated try whose first answer was lost may return None although it wrote the
        manifest."""

    def remove_manifest(self, group: str, name: str, stamp: Stamp) -> None:
        """Remove a manifest if its stamp is this one."""

    def groups(self) -> Sequence[str]:
        """The groups that have manifests; perhaps some that had."""

    def put_part(self, group: str, name: str, part: str, data: bytes) -> None: ...

    def get_part(self, group: str, name: str, part: str) -> bytes | None:
        """The part; None when it was removed."""

    def parts(self, group: str, name: str) -> Sequence[str]:
        """The names of all parts of a manifest, including incomplete ones."""

    def remove_parts(self, group: str, name: str, parts: Collection[str]) -> None:
        """Remove parts; missing ones are ignored."""

    def close(self) -> None: ...


FORM: Final = b"\x01"
CHECKSUM_BYTES: Final = 4


class Segment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part with entries of one kind, and what can be known about them without reading it."""

    part: str
    size_bytes: int
    newest_ms: int = 0
    """For history: when the last entry ended. For idempotency keys: when the newest was remembered."""
    low: Number = 0
    """For history: the lowest pointer."""
    high: Number = 0
    """For history: after the highest pointer."""


class Version(msgspec.Struct, array_like=True, frozen=True):
    """Everything about a partition. Segments are in the order in which they were written."""

    checkpoint: bytes = b""
    state: tuple[Segment, ...] = ()
    new_state: dict[bytes, bytes | None] = {}
    lines: tuple[Segment, ...] = ()
    new_lines: tuple[bytes, ...] = ()
    handled: tuple[Segment, ...] = ()
    new_handled: dict[bytes, int] = {}
    lines_since_ms: int = -(1 << 63)
    """History that ended before this is deleted, even where it has not been removed yet."""
    handled_since_ms: int = -(1 << 63)

    @property
    def parts(self) -> set[str]:
        return {segment.part for kind in (self.state, self.lines, self.handled) for segment in kind}


class Manifest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The holder of a lease, and the current version."""

    owner: str
    epoch: int
    beat: int
    write: bytes
    """Different for each write, so that one whose answer was lost can be recognised."""
    change: bytes = b""
    """The digest of the change that made the version: saving it again adds nothing. Empty: there is no version."""
    inline: bytes = b""
    """The version, if it is small."""
    part: str = ""
    """The part with the version, if it is not."""
    gone: bool = False
    """Deleted: kept only for its epoch, so that no old owner ever matches again."""

    def is_held_by(self, lease: Lease) -> bool:
        return not self.gone and self.owner == lease.owner != "" and self.epoch == lease.epoch

    def lease(self, group: str, name: str) -> Lease:
        return Lease(group, name, self.owner, self.epoch, self.beat)

    def changed(self, **changes: Any) -> Manifest:
        """This manifest as it is written next."""
        return msgspec.structs.replace(self, write=secrets.token_bytes(8), **changes)


NO_MANIFEST: Final = Manifest("", 0, 0, b"")
"""The manifest before the first claim."""
PARTITION: Final = "partition:"
"""The prefix of the lease names of checkpoints."""

FLOOR: Final = "~forgotten"
"""The name of a manifest in each group that was ever deleted. It is gone, and keeps the highest epoch."""

T = TypeVar("T")


def seal(value: Any) -> bytes:
    """Encode: a form, a checksum, and compressed msgpack."""
    body = bytes(cramjam.zstd.compress(msgspec.msgpack.encode(value), 1))
    return FORM + crc32c(body).to_bytes(CHECKSUM_BYTES, "big") + body


def unseal(data: bytes, kind: type[T], what: str) -> T:
    """Decode what `seal` encoded. CorruptCheckpointError says that `what` is damaged."""
    form, checksum, body = data[:1], data[1 : 1 + CHECKSUM_BYTES], data[1 + CHECKSUM_BYTES :]
    if form != FORM:
        raise corrupt(what, f"its form is {form!r}; this program supports only {FORM!r}")
    if crc32c(body).to_bytes(CHECKSUM_BYTES, "big") != checksum:
        raise corrupt(what, "its checksum is wrong")
    try:
        return msgspec.msgpack.decode(bytes(cramjam.zstd.decompress(body)), type=kind)
    except (msgspec.MsgspecError, cramjam.DecompressionError) as error:
        raise corrupt(what, f"its content is invalid: {error}") from error


def part_name(epoch: int) -> str:
    """A unique name for a part. Names sort by the epoch of their writer."""
    return f"{epoch:016x}-{secrets.token_hex(8)}"


def epoch_of(part: str) -> int:
    return int(part.partition("-")[0], 16)


ATTEMPTS: Final = 20
"""How often a write that loses a race is tried: only the owner's own threads, and claims, can be."""


class PartGone(Exception):
    """A part was removed while it was read: the manifest refers to a newer version by now."""


@dataclass(frozen=True, slots=True)
class SeenManifest:
    """A manifest as it was last seen."""

    manifest: Manifest
    stamp: Stamp


class Manifests:
    """The manifests in an object store. Those written here are cached, so that the next write needs no read."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], SeenManifest] = {}
        self._turns: dict[tuple[str, str], threading.Lock] = {}
        self.is_closed = False

    def read(self, group: str, name: str) -> SeenManifest | None:
        found = self._open_store().read_manifest(group, name)
        return None if found is None else SeenManifest(self._manifest(group, name, found[0]), found[1])

    def all(self, group: str, prefix: str = "") -> Mapping[str, Manifest]:
        """All manifests of a group whose names start with `prefix`, including those that are gone."""
        found = self._open_store().manifests(group, prefix)
        return {name: self._manifest(group, name, data) for name, (data, _) in found.items()}

    def groups(self) -> Sequence[str]:
        return self._open_store().groups()

    def swap(self, group: str, name: str, now: SeenManifest | None, manifest: Manifest) -> bool:
        """Write a manifest if the stored one is as it was seen. `manifest` must come from `Manifest.changed`."""
        after = self._swap(group, name, now, manifest)
        return after is not None and after.manifest.write == manifest.write

    def write_held(
        self, lease: Lease, follow: Callable[[Manifest], Manifest], was_done: Callable[[Manifest], bool] | None = None
    ) -> Manifest:
        """Write the manifest that follows the stored one, as often as it takes, while the lease is held; else
        FencedError.

        `follow` returns the manifest itself when there is nothing to write. `was_done` says whether a manifest that
        another owner has claimed since shows that an earlier try, whose answer was lost, took effect.
        """
        group, name = lease.group, lease.name
        now = self._remembered(group, name)
        is_remembered = now is not None
        if now is None:
            now = self.read(group, name)
        has_tried = False
        for _ in range(ATTEMPTS):
            if is_remembered and (now is None or not now.manifest.is_held_by(lease)):
                now, is_remembered = self.read(group, name), False
            if now is None or not now.manifest.is_held_by(lease):
                self.drop_cached(group, name)
                if has_tried and now is not None and was_done is not None and was_done(now.manifest):
                    return now.manifest
                raise fenced(lease, None if now is None or now.manifest.gone else now.manifest.lease(group, name))
            try:
                manifest = follow(now.manifest)
            except PartGone as gone:
                before, now = now, self.read(group, name)
                if now is not None and now.manifest.change == before.manifest.change:
                    what = f"what {name!r} of group {group!r} holds in {self._objects.where}"
                    raise corrupt(what, f"its part {gone} is missing") from gone
                is_remembered = False
                continue
            if manifest is now.manifest:
                return manifest
            with self._turn(group, name):
                # Another thread of this owner may have renewed the lease meanwhile: the prepared manifest fits that,
                # too.
                latest = self._remembered(group, name)
                if (
                    latest is not None
                    and latest.manifest.is_held_by(lease)
                    and latest.manifest.change == now.manifest.change
                ):
                    now, manifest = latest, follow(latest.manifest)
                now, is_remembered, has_tried = self._swap(group, name, now, manifest), False, True
            if now is not None and now.manifest.write == manifest.write:
                return manifest
        raise StoreUnavailableError(
            f"{self._objects.where}: {name!r} of group {group!r} was changed by others {ATTEMPTS} times while it was "
            "to be written"
        )

    def remove(self, group: str, name: str, now: SeenManifest, epoch: int) -> None:
        """Remove a manifest that is as it was seen. If it cannot be removed, or has a checkpoint, only release the
        lease, with this epoch for the next one to continue from."""
        if self._objects.can_remove_manifests and not now.manifest.change:
            self._objects.remove_manifest(group, name, now.stamp)
        else:
            self._swap(group, name, now, now.manifest.changed(owner="", epoch=epoch, gone=True))
        self.drop_cached(group, name)

    def floor(self, group: str) -> int:
        """The highest epoch when the group was last deleted; 0 if it never was."""
        found = self.read(group, FLOOR)
        return 0 if found is None else found.manifest.epoch

    def raise_floor(self, group: str, epoch: int) -> None:
        """Make new leases of the group start above this epoch."""
        for _ in range(ATTEMPTS):
            now = self.read(group, FLOOR)
            if now is not None and now.manifest.epoch >= epoch:
                return
            if self.swap(group, FLOOR, now, NO_MANIFEST.changed(epoch=epoch, gone=True)):
                self.drop_cached(group, FLOOR)
                return
        raise StoreUnavailableError(f"{self._objects.where}: several processes delete the group {group!r} at once")

    def drop_cached(self, group: str, name: str) -> None:
        """Remove a manifest from the cache."""
        with self._lock:
            self._seen.pop((group, name), None)

    def _remembered(self, group: str, name: str) -> SeenManifest | None:
        with self._lock:
            return self._seen.get((group, name))

    def _turn(self, group: str, name: str) -> threading.Lock:
        """Held while a manifest is written, so that the threads of an owner do not interfere."""
        with self._lock:
            return self._turns.setdefault((group, name), threading.Lock())

    def _swap(self, group: str, name: str, now: SeenManifest | None, manifest: Manifest) -> SeenManifest | None:
        """Try to write a manifest; returns the stored one afterwards, which is this one if it was written."""
        objects = self._open_store()
        try:
            stamp = objects.swap_manifest(group, name, None if now is None else now.stamp, seal(manifest))
            after = self.read(group, name) if stamp is None else SeenManifest(manifest, stamp)
        except BaseException:
            self.drop_cached(group, name)
            raise
        with self._lock:
            if after is None:
                self._seen.pop((group, name), None)
            else:
                self._seen[group, name] = after
        return after

    def _manifest(self, group: str, name: str, data: bytes) -> Manifest:
        return unseal(data, Manifest, f"the manifest of {name!r} of group {group!r} in {self._objects.where}")

    def _open_store(self) -> ObjectStore:
        if self.is_closed:
            raise ConnectionClosedError(f"the checkpoints in {self._objects.where} are closed")
        return self._objects
