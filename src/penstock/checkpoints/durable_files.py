"""Files that survive a power failure: replaced as a whole, and synced with their folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path


def replace_file(path: Path, content: bytes, *, among_others: bool = False, is_private: bool = False) -> None:
    """Replace the content of a file: it has the new or the old content, even after a power failure.

    Only one writer at a time may do this, unless `among_others`: then the last one wins. `is_private`: a new file is
    readable by its owner only, and an old one keeps its permissions.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new" if among_others else f"{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o600 if is_private else 0o666)
    with open(handle, "wb") as file:
        file.write(content)
        file.flush()
        if is_private:
            os.fchmod(handle, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600)
        os.fsync(handle)
    os.replace(temporary, path)
    sync_folder(path.parent)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Exclude all others that lock this path, in any process. The lock is a file beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def sync_folder(folder: Path) -> None:
    """Make files created, renamed and removed in the folder survive a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
