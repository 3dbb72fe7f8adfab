"""Log files of supervised programs: one for each, rotated, and bounded."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from penstock.errors import ConfigError
from penstock.model.closing import Closing
from penstock.observe.programs import STATUS_FILE, SUPERVISOR_LOCK

logger = logging.getLogger(__name__)

FILE_BYTES: Final = 10 * 1024 * 1024
FILES: Final = 5


class ProgramLog(Closing):
    """The output of a program over all its runs: NAME.log, and older parts in NAME.log.1, NAME.log.2 and so on.

    A failure to write loses output, and never stops the program: the first one is logged.
    """

    def __init__(self, path: Path, *, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        """At most `files` files of about `file_bytes` are kept."""
        self.path = path
        self._file_bytes = file_bytes
        self._files = files
        self._has_failed = False
        self._file: IO[bytes] | None = None
        self._open()

    def write(self, data: bytes) -> None:
        """Append, and begin a new file when this one is full."""
        try:
            if self._file is None:
                self._open()
            assert self._file is not None
            if self._file.tell() > 0 and self._file.tell() + len(data) > self._file_bytes:
                self._rotate()
            self._file.write(data)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                logger.warning("%s cannot be written, and output is lost: %s", self.path, error.strerror or error)
            self._has_failed = True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 closed by `close`

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files - 1, 0, -1):
            older = self._part(number - 1)
            if older.exists():
                os.replace(older, self._part(number))
        self.path.unlink(missing_ok=True)
        self._open()

    def _part(self, number: int) -> Path:
        return self.path if number == 0 else self.path.with_name(f"{self.path.name}.{number}")


class LogFolder(Closing):
    """The folder of the logs of one supervisor. It is locked, so that two supervisors do not run the same programs."""

    def __init__(self, path: Path, names: Sequence[str], *, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        self.path = path
        self._logs: dict[str, ProgramLog] = {}
        self._has_failed = False
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = open(path / SUPERVISOR_LOCK, "a+", encoding="utf-8")  # noqa: SIM115 held as long as the supervisor runs
        except OSError as error:
            raise ConfigError(
                f"logs cannot be kept in {path}: {error.strerror or error}. Choose another folder"
            ) from error
        try:
            self._take_lock()
            for name in names:
                self._logs[name] = ProgramLog(path / f"{name}.log", file_bytes=file_bytes, files=files)
        except OSError as error:
            self.close()
            raise ConfigError(
                f"logs cannot be kept in {path}: {error.strerror or error}. Choose another folder"
            ) from error
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> ProgramLog:
        return self._logs[name]

    def write_status(self, data: bytes) -> None:
        """Replace the file with the state of the programs. A failure is logged, and never stops them."""
        file = self.path / STATUS_FILE
        fresh = file.with_name(f"{STATUS_FILE}.new")
        try:
            fresh.write_bytes(data)
            os.replace(fresh, file)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                logger.warning("%s cannot be written, and the console will not know: %s", file, error.strerror or error)
            self._has_failed = True

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            raise ConfigError(
                f"the supervisor in process {self._lock.read().strip() or 'unknown'} keeps its logs in {self.path}: "
                "stop it first, or choose another folder for these programs"
            ) from None
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()

    def close(self) -> None:
        for each in self._logs.values():
            each.close()
        self._lock.close()
