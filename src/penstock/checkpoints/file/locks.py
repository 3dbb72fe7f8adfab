"""Names and locks in a folder that several processes share.

There is a fixed number of lock files, and each name maps to one of them by its hash. So none is ever removed, which
cannot be done safely, and none is left behind.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.checkpoints.format import id_bytes
from penstock.errors import StoreUnavailableError

STRIPES: Final = 64
READABLE_LENGTH: Final = 48
FIRST_PAUSE_S: Final = 0.0005
LONGEST_PAUSE_S: Final = 0.02


def file_name(name: str) -> str:
    """A unique file name for any name, with its readable part.

    It is also unique on file systems that ignore case.
    """
    readable = re.sub(r"[^a-z0-9._-]+", "-", name.lower())[:READABLE_LENGTH].strip(".-")
    return f"{readable}-{_digest(name).hex()}"


class Locks:
    """The locks of a folder, between processes and between threads. They end with the process."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self._folder = folder
        self._timeout_s = timeout_s

    @contextmanager
    def of_lease(self, group: str, name: str) -> Iterator[None]:
        """Exclude others from reading or changing this lease, saving under it, and deleting its group."""
        with (
            self._locked(f"group-{_stripe(group)}", fcntl.LOCK_SH),
            self._locked(f"lease-{_stripe(f'{group}/{name}')}", fcntl.LOCK_EX),
        ):
            yield

    @contextmanager
    def of_group(self, group: str) -> Iterator[None]:
        """Exclude all other changes in this group."""
        with self._locked(f"group-{_stripe(group)}", fcntl.LOCK_EX):
            yield

    @contextmanager
    def _locked(self, name: str, kind: int) -> Iterator[None]:
        path = self._folder / name
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreUnavailableError(f"the lock {path} cannot be opened: {error}") from error
        try:
            self._wait_for(file, kind, path)
            yield
        finally:
            os.close(file)

    def _wait_for(self, file: int, kind: int, path: Path) -> None:
        deadline = time.monotonic() + self._timeout_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreUnavailableError(
                        f"the lock {path} was not free within {self._timeout_s:g} s; another process holds it"
                    ) from None
            else:
                return
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


def _digest(name: str) -> bytes:
    return hashlib.blake2b(id_bytes(name), digest_size=10).digest()


def _stripe(name: str) -> str:
    return f"{_digest(name)[0] % STRIPES:02d}"
