"""The folder of a spool: its lock, its identity, its dropped records and declared topics."""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import SpoolError, SpoolInUseError, StorageError
from penstock.log.disk import Disk
from penstock.log.statefile import TEMPORARY_SUFFIX, DamagedStateError, read_state, write_state

logger = logging.getLogger(__name__)

LOCK_FILE: Final = "lock"
IDENTITY_FILE: Final = "spool"
DROPPED_FILE: Final = "dropped"
DECLARED_FILE: Final = "declared"
VERSION: Final = 1

Holes = tuple[tuple[int, int], ...]
"""Ranges of dropped record numbers, `(first, end)`."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a spool. The stream stores the progress of a spool under its id."""

    version: int
    id: str
    openings: int = 0
    """How often it was opened. Record numbers jump ahead each time."""


def lock_spool(folder: Path) -> int:
    """Lock the folder for this process until the returned descriptor is closed or the process ends."""
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
            f"the spool {folder} is in use by process {owner}: a spool has one owner. Close that producer, or use "
            "another folder"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def take_identity(folder: Path, disk: Disk) -> Identity:
    """Read the spool's identity and store this opening durably; create the identity if there is none.

    Raises SpoolError for a folder of another version.
    """
    path = folder / IDENTITY_FILE
    problem = None
    try:
        content = read_state(path)
        others = {other.name for other in folder.iterdir()} - {LOCK_FILE, IDENTITY_FILE + TEMPORARY_SUFFIX}
        if content is None and others:
            problem = f"{path} is missing, but the folder holds a spool"
    except DamagedStateError as error:
        content, problem = None, str(error)
    if problem is not None:
        logger.error("%s; the spool gets a new id: records that were in flight may be delivered twice", problem)
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
            f"{folder} holds a spool of version {version}, but this Penstock reads version {VERSION}: deliver it with "
            "the version that wrote it, or choose another folder"
        )
    return msgspec.json.decode(content, type=Identity)


def load_dropped(folder: Path) -> Holes:
    try:
        content = read_state(folder / DROPPED_FILE)
    except DamagedStateError as error:
        logger.error("%s; dropped records will be delivered", error)
        return ()
    return msgspec.json.decode(content, type=Holes) if content is not None else ()


def save_dropped(folder: Path, holes: Sequence[tuple[int, int]], disk: Disk, *, durable: bool) -> None:
    path = folder / DROPPED_FILE
    if holes:
        write_state(path, msgspec.json.encode(holes), disk, durable=durable)
    else:
        path.unlink(missing_ok=True)


def load_declared(folder: Path) -> dict[str, int]:
    """Declared topics of an earlier owner, with their numbers of partitions."""
    try:
        content = read_state(folder / DECLARED_FILE)
    except DamagedStateError as error:
        logger.error("%s; its declared topics get the broker's default number of partitions", error)
        return {}
    return msgspec.json.decode(content, type=dict[str, int]) if content is not None else {}


def save_declared(folder: Path, partitions: Mapping[str, int], disk: Disk) -> None:
    try:
        write_state(folder / DECLARED_FILE, msgspec.json.encode(partitions), disk)
    except OSError as error:
        raise StorageError(f"the spool {folder} cannot store its topics: {error.strerror}") from error
