"""Dead letters in a file of JSON lines."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from penstock.abc import Clock, Feature, Features
from penstock.consuming.dead_letters.file_hold import FileHold
from penstock.consuming.dead_letters.ledger import HELD_BYTES, Event, EventKind, Ledger
from penstock.consuming.dead_letters.lines import NotALine, event_of, line_of
from penstock.consuming.dead_letters.merging import admitted
from penstock.errors import ConfigError, StoreUnavailableError
from penstock.model import DeadLetter, LetterFilter

logger = logging.getLogger(__name__)

FILE_NAME: Final = "letters.jsonl"
_READ_BYTES: Final = 4 * 1024 * 1024


class FileDeadLetters:
    """`abc.DeadLetters` in a file that grows: a line for each letter, and one for each thing that happens to it.

    `path` is the file, or a folder in which `letters.jsonl` is made. Processes of one machine may share it: who writes
    locks it. A line is on the disk when a method returns; a line that a killed process left unfinished is cut off by
    who writes next. To begin anew, move the file away.
    """

    def __init__(self, path: str | Path, *, held_bytes: int = HELD_BYTES) -> None:
        given = Path(path)
        self.path = given if given.suffix and not given.is_dir() else given / FILE_NAME
        self._budget_bytes = held_bytes
        self._lock = threading.Lock()
        self._fd = -1
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            raise ConfigError(f"dead letters cannot be kept in {self.path}: {error}") from error

    @property
    def features(self) -> Features:
        return frozenset({Feature.DURABLE})

    def put(self, letters: Sequence[DeadLetter]) -> None:
        if letters:
            with self._writing():
                self._write([Event(EventKind.PUT, letter.id, admitted(letter)) for letter in letters])

    def browse(self, which: LetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        with self._reading() as ledger:
            return self._letters(list(islice(ledger.find(which, after), max(0, limit))))

    def count(self, which: LetterFilter) -> int:
        with self._reading() as ledger:
            return sum(1 for _ in ledger.find(which))

    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        with self._writing() as ledger:
            self._note(EventKind.TAKEN, ids, taker)
            return self._letters([id for id in ledger.in_order(ids) if ledger.taken_by(id, taker)])

    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        with self._writing():
            self._note(EventKind.REDRIVEN if redriven else EventKind.RETURNED, ids, taker)

    def discard(self, ids: Collection[str]) -> int:
        with self._writing():
            return self._note(EventKind.DISCARDED, ids)

    def hold(self, holder: str, wait_s: float, clock: Clock) -> FileHold:
        """See `holding.Holdable`."""
        return FileHold(self.path, holder, clock)

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _open(self) -> None:
        is_new = not self.path.exists()
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._begin()
        if is_new:
            _sync_folder(self.path.parent)

    def _begin(self) -> None:
        self._ledger = Ledger(self._budget_bytes)
        self._read_bytes = 0

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Ledger]:
        with self._lock, self._translated():
            self._follow_path()
            self._read_on()
            yield self._ledger

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Ledger]:
        with self._lock, self._translated():
            while True:  # ends when nobody replaces the file between our opening and our locking it
                self._follow_path()
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                if self._is_current():
                    break
            try:
                self._read_on()
                if os.fstat(self._fd).st_size > self._read_bytes:
                    logger.warning("%s: cutting off the last line, which a killed process left unfinished", self.path)
                    os.ftruncate(self._fd, self._read_bytes)
                yield self._ledger
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _follow_path(self) -> None:
        """Open the file that is at the path now, if somebody has moved away the one that was."""
        if self._fd < 0:
            raise ConfigError(f"the dead letters in {self.path} were closed: open them again")
        if not self._is_current():
            os.close(self._fd)
            self._fd = -1
            self._open()

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _read_on(self) -> None:
        """Take every line that is finished into account."""
        if os.fstat(self._fd).st_size < self._read_bytes:
            self._begin()
        rest = b""
        try:
            while chunk := os.pread(self._fd, _READ_BYTES, self._read_bytes + len(rest)):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._apply(line)
        except BaseException:
            self._begin()  # nobody knows whether the last line was taken into account
            raise

    def _apply(self, line: bytes) -> None:
        place = self._read_bytes
        self._read_bytes += len(line) + 1
        try:
            self._ledger.apply(event_of(line), (place,), (place, len(line)))
        except NotALine as error:
            logger.warning("%s: the line at byte %d is no dead letter: %s", self.path, place, error)

    def _note(self, kind: EventKind, ids: Collection[str], taker: str = "") -> int:
        """Write down what happens to those of the letters to which it can happen. Gives how many they are."""
        events = [Event(kind, id, taker=taker) for id in self._ledger.in_order(ids)]
        return self._write([event for event in events if self._ledger.allows(event)])

    def _write(self, events: Sequence[Event]) -> int:
        lines = b"".join(map(line_of, events))
        end_bytes = self._read_bytes
        try:
            written = 0
            while written < len(lines):
                written += os.write(self._fd, memoryview(lines)[written:])
            os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, end_bytes)
            raise
        self._read_on()
        return len(events)

    def _letters(self, ids: Sequence[str]) -> list[DeadLetter]:
        return self._ledger.letters(ids, self._fetch)

    def _fetch(self, places: Sequence[tuple[int, int]]) -> list[DeadLetter]:
        letters = []
        for place, length in places:
            letter = event_of(os.pread(self._fd, length, place)).letter
            assert letter is not None
            letters.append(letter)
        return letters

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailableError(f"the dead letters in {self.path} cannot be used now: {error}") from error


def _sync_folder(folder: Path) -> None:
    """A new file is there after a power cut only when its folder has been written."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
