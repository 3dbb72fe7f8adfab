"""Checkpoints in plain files: a folder on a local disk, shared by the processes of one machine.

Each group has a folder with its leases and a folder for each partition's journal. It needs only the file system: no
database, no server. A save costs one sync of the disk.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.checkpoints.fencing import FEATURES, fenced, in_use
from penstock.checkpoints.file.journal import ROTATE_BYTES, Journal, key_of
from penstock.checkpoints.file.leases import lease_path, leases_in, read_lease, write_lease
from penstock.checkpoints.file.locks import Locks, file_name
from penstock.checkpoints.format import decode_checkpoint, id_bytes
from penstock.checkpoints.frames import replace_file, sync_folder
from penstock.errors import ConfigError, ConnectionClosedError, CorruptCheckpointError, StoreUnavailableError
from penstock.model import Change, Checkpoint, CheckpointKey, HistoryEntry, Lease, Pointer
from penstock.model.closing import Closing

FORMAT: Final = "penstock checkpoints, version 1\n"
LOCK_TIMEOUT_S: Final = 30.0
FORGOTTEN: Final = "(forgotten)"
"""The name of the lease that keeps the highest epoch of a deleted group."""


class FileCheckpoints(Closing):
    """Checkpoints in a folder. Saved changes survive a power failure.

    `lock_timeout_s` is how long to wait for another process that is writing. `rotate_bytes` is the size from which on a
    partition's journal is replaced.
    """

    features = FEATURES

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        rotate_bytes: int = ROTATE_BYTES,
    ) -> None:
        if lock_timeout_s <= 0 or rotate_bytes <= 0:
            raise ConfigError("lock_timeout_s and rotate_bytes must be positive")
        self.folder = Path(folder)
        self._rotate_bytes = rotate_bytes
        self._locks = Locks(self.folder / "locks", lock_timeout_s)
        self._journals: dict[CheckpointKey, Journal] = {}
        self._memory = threading.Lock()
        """For the journals, which several threads read. Taken after the file locks, never before."""
        self._is_closed = False
        self._make_folder()

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        self._check_open()
        path = self._lease_path(group, name)
        with self._locks.of_lease(group, name):
            now = read_lease(path)
            if now != seen:
                return None
            last = now or read_lease(self._forgotten_path(group))
            lease = Lease(group, name, owner, last.epoch + 1 if last else 1, 0)
            write_lease(path, lease)
        return lease

    def renew(self, lease: Lease) -> Lease:
        self._check_open()
        with self._locks.of_lease(lease.group, lease.name):
            now = self._held(lease)
            renewed = replace(now, beat=now.beat + 1)
            write_lease(self._lease_path(lease.group, lease.name), renewed)
        return renewed

    def release(self, lease: Lease) -> None:
        self._check_open()
        path = self._lease_path(lease.group, lease.name)
        with self._locks.of_lease(lease.group, lease.name):
            now = read_lease(path)
            if now is not None and (now.owner, now.epoch) == (lease.owner, lease.epoch):
                write_lease(path, replace(now, owner=""))

    def leases(self, group: str) -> Sequence[Lease]:
        self._check_open()
        return leases_in(self._leases_folder(group))

    def forget_lease(self, lease: Lease) -> None:
        self._check_open()
        path = self._lease_path(lease.group, lease.name)
        with self._locks.of_lease(lease.group, lease.name):
            if read_lease(path) == lease:
                path.unlink()
                sync_folder(path.parent)

    def load(self, key: CheckpointKey) -> Checkpoint | None:
        with self._memory:
            data = self._journal(key).checkpoint
        return None if data is None else decode_checkpoint(data, key)

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        self._check_open()
        with self._locks.of_lease(key.group, key.lease_name):
            self._held(Lease(key.group, key.lease_name, lease.owner, lease.epoch, lease.beat))
            with self._memory:
                try:
                    journal = self._journal(key)
                except CorruptCheckpointError:  # a save over a damaged checkpoint says where to start
                    journal = self._journals[key]
                    journal.set_aside()
                journal.append(change)

    def checkpoints(self, group: str) -> Mapping[CheckpointKey, Checkpoint]:
        found = {key: self.load(key) for key in self._keys(group)}
        return {key: checkpoint for key, checkpoint in found.items() if checkpoint is not None}

    def groups(self) -> Sequence[str]:
        self._check_open()
        found: set[str] = set()
        for folder in (self.folder / "groups").iterdir():
            found.update(lease.group for lease in leases_in(folder / "leases"))
            found.update(key.group for key in _keys_in(folder))
        return sorted(found)

    def forget(self, group: str) -> None:
        self._check_open()
        folder = self._group_folder(group)
        with self._locks.of_group(group):
            leases = leases_in(folder / "leases")
            held = [lease for lease in leases if lease.owner]
            if held:
                raise in_use(held[0])
            if leases:
                last = read_lease(self._forgotten_path(group))
                epoch = max(lease.epoch for lease in (*leases, *([last] if last else [])))
                write_lease(self._forgotten_path(group), Lease(group, FORGOTTEN, "", epoch, 0))
            if folder.exists():
                # Renamed at once, then removed, which takes a while: a crash leaves nothing half deleted.
                gone = self.folder / "gone" / folder.name
                shutil.rmtree(gone, ignore_errors=True)
                gone.parent.mkdir(exist_ok=True)
                os.rename(folder, gone)
                sync_folder(folder.parent)
                shutil.rmtree(gone, ignore_errors=True)
        with self._memory:
            for key in [key for key in self._journals if key.group == group]:
                del self._journals[key]

    def state(self, key: CheckpointKey) -> Mapping[bytes, bytes]:
        with self._memory:
            return dict(self._journal(key).state)

    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        found: set[str] = set()
        for key in self._keys(group):
            if key.topic == topic:
                with self._memory:
                    journal = self._journal(key)
                    found.update(each for each in ids if journal.is_handled(id_bytes(each)))
        return frozenset(found)

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        with self._memory:
            lines = self._journal(key).history()
        if pointer is not None:
            lines = [line for line in lines if line.first <= pointer < line.end]
        return lines[max(0, len(lines) - limit) :]

    def close(self) -> None:
        self._is_closed = True

    def _held(self, lease: Lease) -> Lease:
        """The stored lease, if it is still this owner's."""
        now = read_lease(self._lease_path(lease.group, lease.name))
        if now is None or not lease.owner or (now.owner, now.epoch) != (lease.owner, lease.epoch):
            raise fenced(lease, now)
        return now

    def _journal(self, key: CheckpointKey) -> Journal:
        """The journal, read to its end. The caller holds `_memory`."""
        self._check_open()
        journal = self._journals.get(key)
        if journal is None:
            journal = Journal(self._partition_folder(key), key, self._rotate_bytes)
            self._journals[key] = journal
        journal.refresh()
        return journal

    def _keys(self, group: str) -> list[CheckpointKey]:
        self._check_open()
        return _keys_in(self._group_folder(group))

    def _group_folder(self, group: str) -> Path:
        return self.folder / "groups" / file_name(group)

    def _leases_folder(self, group: str) -> Path:
        return self._group_folder(group) / "leases"

    def _lease_path(self, group: str, name: str) -> Path:
        return lease_path(self._leases_folder(group), name)

    def _forgotten_path(self, group: str) -> Path:
        return lease_path(self.folder / "forgotten", group)

    def _partition_folder(self, key: CheckpointKey) -> Path:
        return self._group_folder(key.group) / "partitions" / file_name(f"{key.topic}-{key.partition}")

    def _make_folder(self) -> None:
        mark = self.folder / "format"
        try:
            for name in ("groups", "locks", "forgotten"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            found = mark.read_text(encoding="utf-8", errors="replace") if mark.exists() else None
            if found is None:
                replace_file(mark, FORMAT.encode(), among_others=True)
        except OSError as error:
            raise StoreUnavailableError(f"the folder {self.folder} cannot be used for checkpoints: {error}") from error
        if found not in (None, FORMAT):
            raise ConfigError(
                f"{self.folder} has no checkpoints that this program supports: its file {mark.name!r} says "
                f"{found[:80]!r}, not {FORMAT!r}; run the newer Penstock that wrote it, or choose another folder"
            )

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionClosedError(f"the checkpoints in {self.folder} are closed")


def _keys_in(folder: Path) -> list[CheckpointKey]:
    """The partitions in the folder of a group."""
    partitions = folder / "partitions"
    if not partitions.is_dir():
        return []
    found = (key_of(each) for each in partitions.iterdir())
    return sorted((key for key in found if key is not None), key=lambda key: (key.topic, key.partition))
