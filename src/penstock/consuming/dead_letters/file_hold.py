"""Holding a place of letters on this machine by the lock of a file beside it, which ends with the process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec

from penstock.abc import Clock
from penstock.consuming.dead_letters.holding import running_error
from penstock.errors import StoreUnavailableError

SUFFIX: Final = ".redrive"
_LARGEST_BYTES: Final = 10_000


class _Holder(msgspec.Struct):
    """Who holds it, as it stands in the file."""

    holder: str
    since_ms: int


class FileHold:
    """A lock on `<path>.redrive`, which is made for it and removed after it. RedriveRunningError when another has it.

    The kernel lets go of it when the process ends, also when it is killed; what is left then is a file that nobody has
    locked, which holds nothing.
    """

    def __init__(self, path: Path, holder: str, clock: Clock) -> None:
        # However the path was written, and through whatever links, it is one place.
        place = path.resolve()
        self._path = place.with_name(place.name + SUFFIX)
        self._fd = -1
        try:
            self._lock(place, holder, clock.wall_ms())
        except OSError as error:
            self._close()
            raise StoreUnavailableError(f"{self._path}, which keeps redrives apart, cannot be used: {error}") from error

    def check(self) -> None:
        pass  # nobody can take it

    def release(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._close()

    def _lock(self, place: Path, holder: str, now_ms: int) -> None:
        while True:  # ends when nobody removes the file between our opening and our locking it
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found = self._holder()
                self._close()
                raise running_error(
                    str(place), "" if found is None else found.holder, None if found is None else found.since_ms
                ) from None
            if self._is_current():
                break
            self._close()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(_Holder(holder, now_ms)), 0)

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _holder(self) -> _Holder | None:
        """Who has it; None when that one has not written it down yet."""
        try:
            return msgspec.json.decode(os.pread(self._fd, _LARGEST_BYTES, 0), type=_Holder)
        except msgspec.MsgspecError:
            return None

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
