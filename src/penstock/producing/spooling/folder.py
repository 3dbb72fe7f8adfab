"""The folder of a spool: who owns it, which spool it is, and what was dropped from it."""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import SpoolError, SpoolInUseError, StorageError
from penstock.log.disk import Disk
from penstock.log.statefile import DamagedStateError, read_state, write_state

logger = logging.getLogger(__name__)

LOCK_FILE: Final = "lock"
IDENTITY_FILE: Final = "spool"
DROPPED_FILE: Final = "dropped"
VERSION: Final = 1

Holes = tuple[tuple[int, int], ...]
"""Numbers of records that were dropped, `(first, end)`."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What makes it this spool. The stream remembers how far it has taken the spool of this id."""

    version: int
    id: str
    openings: int = 0
    """How often it was opened. The numbers of its records start anew, further on, each time."""


def lock_spool(folder: Path) -> int:
    """Take the folder for this process until the returned descriptor is closed or the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(f"the spool {folder} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise SpoolInUseError(
            f"the spool {folder} is in use by process {owner}: one producer owns a spool. Close that one, or give this "
            "one a folder of its own"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def take_identity(folder: Path, disk: Disk) -> Identity:
    """The spool's identity, with this opening counted, durably; a new one where there is none yet.

    SpoolError for a folder of another version.
    """
    path = folder / IDENTITY_FILE
    try:
        content = read_state(path)
    except DamagedStateError as error:
        logger.error("%s; the spool gets a new name: records under way before may be delivered twice", error)
        content = None
    before = Identity(version=VERSION, id=uuid.uuid4().hex) if content is None else _read_identity(folder, content)
    identity = msgspec.structs.replace(before, openings=before.openings + 1)
    try:
        write_state(path, msgspec.json.encode(identity), disk)
    except OSError as error:
        raise StorageError(f"the spool {folder} cannot be opened: {error.strerror}") from error
    return identity


def _read_identity(folder: Path, content: bytes) -> Identity:
    version = msgspec.json.decode(content).get("version")
    if version != VERSION:
        raise SpoolError(
            f"{folder} holds a spool of version {version}, and this Penstock knows version {VERSION}: deliver it with "
            "the version that wrote it, or choose another folder"
        )
    return msgspec.json.decode(content, type=Identity)


def load_dropped(folder: Path) -> Holes:
    try:
        content = read_state(folder / DROPPED_FILE)
    except DamagedStateError as error:
        logger.error("%s; records that were dropped are delivered after all", error)
        return ()
    return msgspec.json.decode(content, type=Holes) if content is not None else ()


def save_dropped(folder: Path, holes: Sequence[tuple[int, int]], disk: Disk, *, durable: bool) -> None:
    path = folder / DROPPED_FILE
    if holes:
        write_state(path, msgspec.json.encode(holes), disk, durable=durable)
    else:
        path.unlink(missing_ok=True)
