"""The audit log: who changed what, when, with which parameters, and with what outcome.

A file of JSON lines. An action has a line before it begins, which is on disk before anything is done, and one when it
has ended. If the second line is missing, the console did not survive the action: its outcome is unknown.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.abc import Clock
from penstock.checkpoints.durable_files import locked, sync_folder
from penstock.console.views import AuditLine, Outcome, Person
from penstock.errors import AuditError

logger = logging.getLogger(__name__)

LARGEST_FILE_BYTES: Final = 10 * 1024 * 1024
KEPT_FILES: Final = 20
"""Files before the current one. Older ones are removed."""
_LONGEST_TEXT: Final = 2_000


class _Entry(msgspec.Struct, omit_defaults=True):
    id: str
    at_ms: int
    outcome: str
    """begun, done or failed"""
    who: str = ""
    address: str = ""
    action: str = ""
    parameters: dict[str, Any] = {}
    text: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """An action that has begun. Its starter ends it, once."""

    id: str
    end: Callable[[bool, str], None]
    """Whether it was done, and its outcome."""


class AuditLog:
    """The log in one file. Thread-safe, and several processes may share it."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        largest_file_bytes: int = LARGEST_FILE_BYTES,
        kept_files: int = KEPT_FILES,
    ) -> None:
        self.path = path
        self._clock = clock
        self._largest_file_bytes = largest_file_bytes
        self._kept_files = kept_files
        self._lock = threading.Lock()
        self._under_way: set[str] = set()

    def begin(self, by: Person, action: str, parameters: Mapping[str, Any]) -> Action:
        """Write that this begins. Raises AuditError when that fails: then it must not begin."""
        id = secrets.token_hex(8)
        line = _Entry(id, self._clock.wall_ms(), "begun", by.name, by.address, action, dict(parameters))
        try:
            self._write(line)
        except OSError as error:
            raise AuditError(
                f"{action} was refused, as it could not be written to {self.path}: {error}. Check that the disk "
                "has room and the file is writable"
            ) from error
        self._under_way.add(id)
        return Action(id, lambda is_done, text: self._end(line, is_done, text))

    def lines(self, limit: int) -> list[AuditLine]:
        """The newest actions, newest first. An unreadable line is skipped, and logged."""
        found: list[AuditLine] = []
        ends: dict[str, _Entry] = {}
        for line in self._newest_first():
            if len(found) >= limit:
                break
            if line.outcome != "begun":
                ends[line.id] = line
                continue
            found.append(self._merged(line, ends.pop(line.id, None)))
        return found

    def _end(self, begun: _Entry, is_done: bool, text: str) -> None:
        self._under_way.discard(begun.id)
        line = _Entry(begun.id, self._clock.wall_ms(), "done" if is_done else "failed", text=text[:_LONGEST_TEXT])
        try:
            self._write(line)
        except OSError:
            # It has happened, and cannot be undone: the log says that it began.
            logger.exception("the outcome of %s by %s could not be written to %s", begun.action, begun.who, self.path)

    def _merged(self, begun: _Entry, end: _Entry | None) -> AuditLine:
        outcome: Outcome = "under way" if begun.id in self._under_way else "unknown"
        if end is not None:
            outcome = "done" if end.outcome == "done" else "failed"
        return AuditLine(
            begun.id,
            begun.at_ms,
            begun.who,
            begun.address,
            begun.action,
            begun.parameters,
            outcome,
            "" if end is None else end.text,
            None if end is None else end.at_ms,
        )

    def _write(self, line: _Entry) -> None:
        """Write a line; it is on disk when this returns."""
        content = msgspec.json.encode(line) + b"\n"
        with self._lock, locked(self.path):
            self._rotate(len(content))
            is_new = not self.path.exists()
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                size_bytes = os.fstat(file).st_size
                if size_bytes and os.pread(file, 1, size_bytes - 1) != b"\n":
                    content = b"\n" + content  # a crash or a full disk has cut the last line
                written = os.write(file, content)
                if written < len(content):
                    raise OSError(f"only {written} of {len(content)} bytes could be written")
                os.fsync(file)
            finally:
                os.close(file)
            if is_new:
                sync_folder(self.path.parent)

    def _rotate(self, more_bytes: int) -> None:
        try:
            size_bytes = self.path.stat().st_size
        except FileNotFoundError:
            return
        if size_bytes + more_bytes <= self._largest_file_bytes:
            return
        self._older(self._kept_files).unlink(missing_ok=True)
        for number in range(self._kept_files - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._older(number).rename(self._older(number + 1))
        self.path.rename(self._older(1))
        sync_folder(self.path.parent)

    def _newest_first(self) -> Iterator[_Entry]:
        for path in (self.path, *map(self._older, range(1, self._kept_files + 1))):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue  # nothing was rotated so far, or it is being rotated now
            for raw in reversed(content.splitlines()):
                if not raw.strip():
                    continue
                try:
                    yield msgspec.json.decode(raw, type=_Entry)
                except msgspec.MsgspecError as error:
                    logger.warning("a line of %s cannot be read: %s", path, error)

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
