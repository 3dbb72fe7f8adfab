"""Allow one redrive of a backend at a time, across processes.

Two at once would lose nothing: both give a record the same id (see `headers`), so a consumer of the library handles it
once. But each record would be in its topic twice, for its other readers, at twice the rate that either was allowed, and
both would report that they sent everything. So a redrive holds the backend from before its first letter until after its
last. The hold ends when its process dies, however it dies.

A backend that can be held has `hold`. A user's own backend without it is redriven without a hold.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import msgspec

from penstock import abc
from penstock.abc import Clock
from penstock.errors import RedriveRunningError, StoreUnavailableError

DEAD_AFTER_S: Final = 20.0
"""Where the backend cannot tell that a process has died, one that is silent for this long counts as dead."""


class Hold(Protocol):
    """A backend that is held."""

    def check(self) -> None:
        """Raise RedriveRunningError if another process holds it by now, for example after a long suspension."""

    def release(self) -> None:
        """Release it. May be called twice."""


@runtime_checkable
class Holdable(Protocol):
    """Dead letters that can be held."""

    def hold(self, holder: str, wait_s: float, clock: Clock) -> Hold:
        """Hold the backend; other processes that try are told `holder`. RedriveRunningError while it is held.

        Where a dead holder must be detected by watching, watch for at most `wait_s`."""


class NoHold:
    """The hold of a backend that cannot be held, or need not be."""

    def check(self) -> None:
        pass

    def release(self) -> None:
        pass


def hold_of(letters: abc.DeadLetters, holder: str, wait_s: float, clock: Clock) -> Hold:
    """Hold the backend of these letters, if it can be. RedriveRunningError while another process holds it."""
    return letters.hold(holder, wait_s, clock) if isinstance(letters, Holdable) else NoHold()


def running_error(where: str, holder: str, since_ms: int | None, more: str = "") -> RedriveRunningError:
    """The error for a second redrive."""
    since = ""
    if since_ms is not None:
        at = datetime.datetime.fromtimestamp(since_ms / 1000, datetime.UTC)
        since = f", since {at:%Y-%m-%d %H:%M:%S} UTC"
    return RedriveRunningError(
        f"{where} is already being redriven by {holder or 'another process'}{since}. Wait until it has ended{more}"
    )


SUFFIX: Final = ".redrive"
_LARGEST_BYTES: Final = 10_000


class _Holder(msgspec.Struct):
    """The holder, as written in the file."""

    holder: str
    since_ms: int


def is_file_at(path: Path, fd: int) -> bool:
    """Whether the open file is the one at the path, and was neither moved nor removed."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


class FileHold:
    """A lock on `<path>.redrive`, which is created for it and removed after it. RedriveRunningError if it is taken.

    The kernel releases it when the process ends, even if it is killed; an unlocked file that is left behind holds
    nothing.
    """

    def __init__(self, path: Path, holder: str, clock: Clock) -> None:
        # One hold for one file, however its path was written, and through whatever links.
        place = path.resolve()
        self._path = place.with_name(place.name + SUFFIX)
        self._fd = -1
        try:
            self._lock(place, holder, clock.wall_ms())
        except OSError as error:
            self._close()
            raise StoreUnavailableError(f"the redrive lock {self._path} cannot be used: {error}") from error

    def check(self) -> None:
        pass  # a file lock cannot be taken over

    def release(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._close()

    def _lock(self, place: Path, holder: str, now_ms: int) -> None:
        while True:  # until the file is not removed between opening and locking it
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found = self._holder()
                self._close()
                raise running_error(
                    str(place), "" if found is None else found.holder, None if found is None else found.since_ms
                ) from None
            if is_file_at(self._path, self._fd):
                break
            self._close()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(_Holder(holder, now_ms)), 0)

    def _holder(self) -> _Holder | None:
        """The current holder; None when it has not written its name yet."""
        try:
            return msgspec.json.decode(os.pread(self._fd, _LARGEST_BYTES, 0), type=_Holder)
        except msgspec.MsgspecError:
            return None

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
