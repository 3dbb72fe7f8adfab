"""A small file beside the data that keeps what pointers refer to: `.NAME.penstock`.

Where it cannot be written, what was learnt is kept in memory: rotation is noticed while the program runs, and not
across a restart.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from penstock.errors import StorageError

logger = logging.getLogger(__name__)

LOCK_S: Final = 30.0
LOCK_PAUSE_S: Final = 0.001

Entry = TypeVar("Entry", bound=msgspec.Struct)


def lock_file(file: int, path: Path) -> None:
    """Take the lock between processes, until the file is closed. Raises StorageError."""
    deadline_s = time.monotonic() + LOCK_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise StorageError(f"{path} was locked by another process for {LOCK_S:g} s: end that process") from None
        time.sleep(LOCK_PAUSE_S)


class Sidecar(Generic[Entry]):
    """A list of entries that only grows at its end, shared by processes. Called by one thread at a time."""

    def __init__(self, data: Path, kind: type[Entry]) -> None:
        self._path = data.with_name(f".{data.name}.penstock")
        self._decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._is_writable = True
        self.entries: list[Entry] = self._load()

    def change(self, change: Callable[[list[Entry]], None]) -> None:
        """Apply a change to the newest entries, and keep the result. `change` may be called with others than before."""
        if self._is_writable:
            try:
                lock = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                self._is_writable = False
                logger.warning(
                    "%s cannot be written, so rotation is not noticed across restarts: %s", self._path, error
                )
            else:
                try:
                    lock_file(lock, self._path)
                    self.entries = self._load()
                    change(self.entries)
                    # One write that covers what was there, so that a killed process leaves no mixture.
                    data = msgspec.json.encode(self.entries)
                    os.pwrite(lock, data.ljust(os.fstat(lock).st_size), 0)
                    os.fsync(lock)
                finally:
                    os.close(lock)
                return
        change(self.entries)

    def _load(self) -> list[Entry]:
        try:
            data = self._path.read_bytes()
            return self._decoder.decode(data) if data else []
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            raise StorageError(
                f"{self._path} cannot be read: {error}. It says which file pointers refer to: restore it, or remove it "
                "and let readers start again"
            ) from error
