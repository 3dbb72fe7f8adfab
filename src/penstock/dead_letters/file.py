"""Dead letters in a file of JSON lines."""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from penstock.abc import Clock, Feature, Features
from penstock.checkpoints.durable_files import sync_folder
from penstock.dead_letters.holding import FileHold, is_file_at
from penstock.dead_letters.letter_index import HELD_BYTES, Event, EventKind, LetterIndex
from penstock.dead_letters.merging import FAILURE, admitted, failure_of
from penstock.errors import ConfigError, ConnectionClosedError, StoreUnavailableError
from penstock.model import DeadLetter, DeadLetterFilter, Headers, Record


class NotALine(ValueError):
    """A line that is damaged, or does not describe a letter."""


class _Base64(msgspec.Struct, frozen=True):
    base64: str


class _Letter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    group: str
    topic: str
    partition: int
    pointer: str
    key: str | None = None
    key_base64: str | None = None
    value: str | None = None
    value_base64: str | None = None
    headers: tuple[tuple[str, str | _Base64 | None], ...] = ()
    timestamp_ms: int | None = None
    error: str
    error_kind: str
    attempts: int
    first_ms: int
    last_ms: int
    handler: str
    handler_version: str
    redrives: int = 0
    traceback: str = ""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    event: EventKind
    id: str
    taker: str = ""
    letter: _Letter | None = None


_decoder = msgspec.json.Decoder(_Line)


def line_of(event: Event) -> bytes:
    """The event as a line, including the newline."""
    letter = None if event.letter is None else _line_letter(event.letter)
    return msgspec.json.encode(_Line(event=event.kind, id=event.id, taker=event.taker, letter=letter)) + b"\n"


def event_of(line: bytes) -> Event:
    """The event of a line. Raises NotALine."""
    try:
        found = _decoder.decode(line)
        if (found.event is EventKind.PUT) != (found.letter is not None):
            raise NotALine("only a put event contains a letter, and every put event does")
        letter = None if found.letter is None else _letter(found.id, found.letter)
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError) as error:
        raise NotALine(str(error)) from error
    return Event(found.event, found.id, letter, found.taker)


def _line_letter(letter: DeadLetter) -> _Letter:
    record = letter.record
    key, value = _text(record.key), _text(record.value)
    return _Letter(
        group=letter.group,
        topic=record.topic,
        partition=record.partition,
        pointer=record.pointer,
        key=None if isinstance(key, _Base64) else key,
        key_base64=key.base64 if isinstance(key, _Base64) else None,
        value=None if isinstance(value, _Base64) else value,
        value_base64=value.base64 if isinstance(value, _Base64) else None,
        headers=tuple((name, _text(content)) for name, content in record.headers),
        timestamp_ms=record.timestamp_ms,
        **failure_of(letter),
    )


def _letter(id: str, line: _Letter) -> DeadLetter:
    headers: Headers = tuple((name, _bytes(content)) for name, content in line.headers)
    record = Record(
        topic=line.topic,
        partition=line.partition,
        offset=_pointer(line.pointer),
        key=_bytes(line.key if line.key_base64 is None else _Base64(line.key_base64)),
        value=_bytes(line.value if line.value_base64 is None else _Base64(line.value_base64)),
        headers=headers,
        timestamp_ms=line.timestamp_ms,
    )
    return DeadLetter(id=id, group=line.group, record=record, **{name: getattr(line, name) for name in FAILURE})


def _text(content: bytes | None) -> str | _Base64 | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return _Base64(base64.b64encode(content).decode())


def _bytes(text: str | _Base64 | None) -> bytes | None:
    if isinstance(text, _Base64):
        return base64.b64decode(text.base64, validate=True)
    return None if text is None else text.encode()


def _pointer(text: str) -> int:
    if not text.lstrip("-").isdecimal():
        raise NotALine(f"{text!r} is not a pointer")
    return int(text)


logger = logging.getLogger(__name__)

FILE_NAME: Final = "letters.jsonl"
_READ_BYTES: Final = 4 * 1024 * 1024


class FileDeadLetters:
    """`abc.DeadLetters` in an append-only file: one line for each letter, and one for each later event.

    `path` is the file, or a folder in which `letters.jsonl` is created. Processes of one machine may share it: writers
    lock it. A line is on disk when a method returns; the next writer truncates a line that a killed process left
    incomplete. To start over, move the file away.
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
            raise ConfigError(f"dead letters cannot be stored in {self.path}: {error}") from error

    @property
    def features(self) -> Features:
        return frozenset({Feature.DURABLE})

    def put(self, letters: Sequence[DeadLetter]) -> None:
        if letters:
            with self._writing():
                self._write([Event(EventKind.PUT, letter.id, admitted(letter)) for letter in letters])

    def browse(self, which: DeadLetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        with self._reading() as index:
            return self._letters(list(islice(index.find(which, after), max(0, limit))))

    def count(self, which: DeadLetterFilter) -> int:
        with self._reading() as index:
            return sum(1 for _ in index.find(which))

    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        with self._writing() as index:
            self._write_events(EventKind.TAKEN, ids, taker)
            return self._letters([id for id in index.in_order(ids) if index.taken_by(id, taker)])

    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        with self._writing():
            self._write_events(EventKind.REDRIVEN if redriven else EventKind.RETURNED, ids, taker)

    def discard(self, ids: Collection[str]) -> int:
        with self._writing():
            return self._write_events(EventKind.DISCARDED, ids)

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
            sync_folder(self.path.parent)

    def _begin(self) -> None:
        self._index = LetterIndex(self._budget_bytes)
        self._read_bytes = 0

    @contextlib.contextmanager
    def _reading(self) -> Iterator[LetterIndex]:
        with self._lock, self._translated():
            self._follow_path()
            self._read_on()
            yield self._index

    @contextlib.contextmanager
    def _writing(self) -> Iterator[LetterIndex]:
        with self._lock, self._translated():
            while True:  # until the file is not replaced between opening and locking it
                self._follow_path()
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                if is_file_at(self.path, self._fd):
                    break
            try:
                self._read_on()
                if os.fstat(self._fd).st_size > self._read_bytes:
                    logger.warning("%s: truncating the last line, which a killed process left incomplete", self.path)
                    os.ftruncate(self._fd, self._read_bytes)
                yield self._index
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _follow_path(self) -> None:
        """Open the file that is at the path now, if the old one was moved away."""
        if self._fd < 0:
            raise ConnectionClosedError(f"the dead letters in {self.path} are closed: open them again")
        if not is_file_at(self.path, self._fd):
            os.close(self._fd)
            self._fd = -1
            self._open()

    def _read_on(self) -> None:
        """Apply every complete line."""
        if os.fstat(self._fd).st_size < self._read_bytes:
            self._begin()
        rest = b""
        try:
            while chunk := os.pread(self._fd, _READ_BYTES, self._read_bytes + len(rest)):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._apply(line)
        except BaseException:
            self._begin()  # it is unknown whether the last line was applied
            raise

    def _apply(self, line: bytes) -> None:
        place = self._read_bytes
        self._read_bytes += len(line) + 1
        try:
            self._index.apply(event_of(line), (place,), (place, len(line)))
        except NotALine as error:
            logger.warning("%s: the line at byte %d is not a dead letter: %s", self.path, place, error)

    def _write_events(self, kind: EventKind, ids: Collection[str], taker: str = "") -> int:
        """Write an event for each of the letters that it can apply to. Returns how many."""
        events = [Event(kind, id, taker=taker) for id in self._index.in_order(ids)]
        return self._write([event for event in events if self._index.allows(event)])

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
        return self._index.letters(ids, self._fetch)

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
            raise StoreUnavailableError(f"the dead letters in {self.path} are unavailable: {error}") from error
