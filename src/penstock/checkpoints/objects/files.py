"""Checkpoints in plain files: a folder on a local disk, shared by the processes of one machine.

It needs only the file system: no database, no server.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.checkpoints.durable_files import replace_file, sync_folder
from penstock.checkpoints.format import id_bytes
from penstock.checkpoints.objects.manifests import Stamp, seal, unseal
from penstock.checkpoints.objects.store import VersionedCheckpoints
from penstock.errors import ConfigError, StoreUnavailableError
from penstock.model.retry import Retry

FORMAT: Final = "penstock checkpoints, version 2\n"
LOCK_TIMEOUT_S: Final = 30.0
LOCK_POLLS: Final = Retry(None, first_delay_s=0.0005, max_delay_s=0.02, jitter=0)
STRIPES: Final = 64
"""How many lock files there are. Each manifest has one of them, by its hash: so none is ever removed, which cannot be
done safely, and none is left behind."""
READABLE_LENGTH: Final = 48


class FileObjects:
    """An `ObjectStore` in a folder, with a folder for each group. A manifest is a file that is replaced as a whole."""

    # A manifest is written with two syncs of the disk, however large it is; a part takes two more.
    inline_bytes = 64 * 1024
    new_bytes = 16 * 1024
    can_remove_manifests = True

    def __init__(self, folder: Path, lock_timeout_s: float) -> None:
        self.folder = folder
        self.where = str(folder)
        self._lock_timeout_s = lock_timeout_s

    def open(self) -> None:
        """Create the folder if it is missing. ConfigError if it is for something else."""
        mark = self.folder / "format"
        try:
            for name in ("groups", "locks"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            found = mark.read_text(encoding="utf-8", errors="replace") if mark.exists() else None
            if found is None:
                replace_file(mark, FORMAT.encode(), among_others=True)
        except OSError as error:
            raise StoreUnavailableError(f"the folder {self.folder} cannot be used for checkpoints: {error}") from error
        if found not in (None, FORMAT):
            raise ConfigError(
                f"{self.folder} has no checkpoints that this program supports: its file {mark.name!r} says "
                f"{found[:80]!r}, not {FORMAT!r}; run the Penstock that wrote it, or choose another folder"
            )

    def read_manifest(self, group: str, name: str) -> tuple[bytes, Stamp] | None:
        with self._errors():
            found = self._stored(self._manifest_path(group, name))
        return None if found is None else (found[2], _stamp(found[2]))

    def manifests(self, group: str, prefix: str = "") -> Mapping[str, tuple[bytes, Stamp]]:
        with self._errors():
            found = list(self._all_in(self._manifests_folder(group)))
        return {name: (data, _stamp(data)) for _, name, data in found if name.startswith(prefix)}

    def swap_manifest(self, group: str, name: str, stamp: Stamp | None, data: bytes) -> Stamp | None:
        path = self._manifest_path(group, name)
        with self._errors(), self._locked(path):
            now = self._stored(path)
            if (None if now is None else _stamp(now[2])) != stamp:
                return None
            _make_folder(path.parent)
            replace_file(path, seal((group, name, data)))
        return _stamp(data)

    def remove_manifest(self, group: str, name: str, stamp: Stamp) -> None:
        path = self._manifest_path(group, name)
        with self._errors(), self._locked(path):
            now = self._stored(path)
            if now is not None and _stamp(now[2]) == stamp:
                path.unlink()
                sync_folder(path.parent)

    def groups(self) -> Sequence[str]:
        with self._errors():
            folders = [each / "heads" for each in (self.folder / "groups").iterdir()]
            return [manifest[0] for folder in folders for manifest in itertools.islice(self._all_in(folder), 1)]

    def put_part(self, group: str, name: str, part: str, data: bytes) -> None:
        folder = self._parts_folder(group, name)
        with self._errors():
            _make_folder(folder)
            with open(folder / part, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            sync_folder(folder)

    def get_part(self, group: str, name: str, part: str) -> bytes | None:
        with self._errors(), contextlib.suppress(FileNotFoundError):
            return (self._parts_folder(group, name) / part).read_bytes()
        return None

    def parts(self, group: str, name: str) -> Sequence[str]:
        with self._errors(), contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self._parts_folder(group, name)))
        return []

    def remove_parts(self, group: str, name: str, parts: Collection[str]) -> None:
        with self._errors():
            for part in parts:
                (self._parts_folder(group, name) / part).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing stays open."""

    def _stored(self, path: Path) -> tuple[str, str, bytes] | None:
        """The group, the name and the content of a manifest. CorruptCheckpointError if it is damaged: its owner is
        then unknown."""
        try:
            return unseal(path.read_bytes(), tuple[str, str, bytes], f"the manifest in {path}")
        except FileNotFoundError:
            return None

    def _all_in(self, folder: Path) -> Iterator[tuple[str, str, bytes]]:
        if not folder.is_dir():
            return
        for path in folder.iterdir():
            found = None if path.suffix == ".new" else self._stored(path)  # .new: it is being written
            if found is not None:
                yield found

    def _group_folder(self, group: str) -> Path:
        return self.folder / "groups" / file_name(group)

    def _manifests_folder(self, group: str) -> Path:
        return self._group_folder(group) / "heads"

    def _manifest_path(self, group: str, name: str) -> Path:
        return self._manifests_folder(group) / file_name(name)

    def _parts_folder(self, group: str, name: str) -> Path:
        return self._group_folder(group) / "parts" / file_name(name)

    @contextlib.contextmanager
    def _locked(self, manifest: Path) -> Iterator[None]:
        """Exclude other processes and threads from changing a manifest. The lock ends with the process."""
        stripe = _digest(f"{manifest.parent.parent.name}/{manifest.name}")[0] % STRIPES
        path = self.folder / "locks" / f"{stripe:02d}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._wait_for(file, path)
            yield
        finally:
            os.close(file)

    def _wait_for(self, file: int, path: Path) -> None:
        deadline_s = time.monotonic() + self._lock_timeout_s
        for pause_s in LOCK_POLLS.delays_s():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise StoreUnavailableError(
                        f"the lock {path} was not free within {self._lock_timeout_s:g} s; another process holds it"
                    ) from None
            time.sleep(pause_s)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailableError(
                f"the checkpoints in {self.folder} cannot be read or written: {error}; check the disk"
            ) from error


class FileCheckpoints(VersionedCheckpoints):
    """Checkpoints in a folder. Saved changes survive a power failure.

    `lock_timeout_s` is how long to wait for another process that is writing.
    """

    def __init__(self, folder: str | os.PathLike[str], *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        if lock_timeout_s <= 0:
            raise ConfigError(f"lock_timeout_s={lock_timeout_s:g} must be positive")
        self.folder = Path(folder)
        objects = FileObjects(self.folder, lock_timeout_s)
        objects.open()
        super().__init__(objects)

    @property
    def host_path(self) -> str:
        """See `penstock.abc.HostStore`."""
        return str(self.folder.absolute())


def file_name(name: str) -> str:
    """A unique file name for any name, with its readable part. It is also unique where the file system ignores case."""
    readable = re.sub(r"[^a-z0-9._-]+", "-", name.lower())[:READABLE_LENGTH].strip(".-")
    return f"{readable}-{_digest(name).hex()}"


def _digest(name: str) -> bytes:
    return hashlib.blake2b(id_bytes(name), digest_size=10).digest()


def _stamp(data: bytes) -> Stamp:
    """Each manifest has other bytes than those before it: see `Manifest.write`."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _make_folder(folder: Path) -> None:
    """Create a folder of a group so that it survives a power failure."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for parent in folder.parents[:3]:
        sync_folder(parent)
