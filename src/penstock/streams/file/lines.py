"""Files of lines, JSON or CSV, that grow like logs, and are rotated like them.

Rotation is noticed by the file's identity (device and inode), by its first bytes, and by its size:
- by renaming (`orders.jsonl` becomes `orders.jsonl.1`): the rest of the old file is read first, found by its first
  bytes among files whose names begin like the topic's. When it is gone or compressed, unread lines are an error.
- by copying and truncating (`copytruncate`): the same, if the copy is kept uncompressed.
What cannot be noticed: lines written between the copy and the truncation are lost by the rotation itself; a file that
was truncated and has grown beyond where it was, with the same first bytes; a rotation by a file with the same inode and
first bytes; lines that were written, rotated away and removed before anybody looked.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import itertools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.errors import BrokerUnavailableError, OffsetOutOfRangeError, StorageError, StreamError, UnknownTopicError
from penstock.model import Batch, NewRecord, Pointer, Record
from penstock.streams.adapting.batch_writer import Outcome
from penstock.streams.file.records import decode_line, encode_line, from_object
from penstock.streams.file.settings import FileSettings
from penstock.streams.file.sidecar import Sidecar, lock_file

GENERATION_BITS: Final = 48
"""Below them is the byte offset."""
OFFSET_MASK: Final = (1 << GENERATION_BITS) - 1
HEAD_BYTES: Final = 1_024
CHUNK_BYTES: Final = 1 << 20
TAIL_BYTES: Final = 1 << 16
"""In such pieces, the last newline is looked for from the end."""
OURS: Final = b'{"penstock":'
NEWLINE: Final = b"\n"


class Generation(msgspec.Struct):
    """One file that had the name."""

    number: int
    device: int
    inode: int
    head_bytes: int
    head: str
    """The hash of the first `head_bytes` bytes."""
    end: int
    """Where its last complete line ended when it was last looked at."""


class LineFile:
    """One file of JSON lines, as a source of records. Any thread may use it."""

    def __init__(self, topic: str, path: Path, settings: FileSettings) -> None:
        self.topic = topic
        self.path = path
        self._settings = settings
        self._lock = threading.Lock()
        self._sidecar: Sidecar[Generation] | None = None

    def check(self) -> None:
        with self._lock, self._opened():
            pass

    def span(self) -> tuple[Pointer, Pointer]:
        with self._lock, self._opened() as (file, generation):
            first = generation.number
            for each in reversed(self._generations()[:-1]):
                if self._find(each) is None:
                    break
                first = each.number
            end = (generation.number << GENERATION_BITS) + self._end(file)
            return (first << GENERATION_BITS) + (self._begin(file) if first == generation.number else 0), end

    def read(self, start: Pointer, limit: int) -> Batch:
        number, offset = max(0, start) >> GENERATION_BITS, max(0, start) & OFFSET_MASK
        with self._lock, self._opened() as (file, generation):
            known = {each.number: each for each in self._generations()}
            while number in known and number != generation.number:
                batch = self._read_rotated(start, known[number], offset, limit)
                if batch is not None:
                    return batch
                number, offset = number + 1, 0
            if number != generation.number or (offset and offset > self._end(file)):
                raise OffsetOutOfRangeError(f"{self.topic}-0", start, *self._newest_span())
            lines, following = self._lines(file, offset, limit)
            return self._batch(start, number, file, lines, following)

    def write(self, records: Sequence[NewRecord]) -> Sequence[Outcome]:
        """Append lines, and fsync. Other processes that append in this way wait for each other."""
        lines = [encode_line(record, self._settings) for record in records]
        data = b"".join(line for line in lines if isinstance(line, bytes))
        with self._lock, self._opened(os.O_RDWR | os.O_APPEND) as (file, generation):
            lock_file(file, self.path)
            start = os.fstat(file).st_size
            try:
                self._end_torn_line(file)
                start = os.fstat(file).st_size
                _write_all(file, data)
                start = os.lseek(file, 0, os.SEEK_CUR) - len(data)  # where O_APPEND has put it
                if self._settings.fsync:
                    os.fsync(file)
            except OSError as error:
                os.ftruncate(file, start)
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise BrokerUnavailableError(f"{self.path} could not be appended to: {error}. Make room") from error
                raise StorageError(f"{self.path} could not be appended to: {error}") from error
        outcomes: list[Outcome] = []
        for line in lines:
            if isinstance(line, bytes):
                outcomes.append((0, (generation.number << GENERATION_BITS) + start))
                start += len(line)
            else:
                outcomes.append(line)
        return outcomes

    def _begin(self, file: int) -> int:
        return 0

    def _end(self, file: int) -> int:
        """The position after the last complete line."""
        return self._last_newline(file, os.fstat(file).st_size)

    def _last_newline(self, file: int, before: int) -> int:
        """The offset behind the last newline before an offset; 0 if there is none."""
        end = before
        while end > 0:
            begin = max(0, end - TAIL_BYTES)
            found = os.pread(file, end - begin, begin).rfind(NEWLINE)
            if found >= 0:
                return begin + found + 1
            end = begin
        return 0

    def _lines(self, file: int, start: int, limit: int) -> tuple[list[tuple[int, bytes]], int]:
        """Complete lines from `start` on with their offsets, and where the next one begins. A start within a line
        leads to the next one."""
        found: list[tuple[int, bytes]] = []
        offset = self._line_start(file, start)
        rest = b""
        while len(found) < limit:
            chunk = os.pread(file, CHUNK_BYTES, offset + len(rest))
            if not chunk:
                break
            lines, rest = self._split(rest + chunk)
            if len(rest) > self._settings.max_record_bytes:
                raise StreamError(
                    f"{self.path}: the line at byte {offset} is longer than max_record_bytes="
                    f"{self._settings.max_record_bytes}: raise that setting"
                )
            for line in lines:
                if len(found) == limit:
                    return found, offset
                if line.strip():
                    found.append((offset, line))
                offset += len(line) + 1
        return found, offset

    def _split(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Complete lines without their ends, and the rest."""
        *lines, rest = data.split(NEWLINE)
        return lines, rest

    def _line_start(self, file: int, offset: int) -> int:
        if offset == 0 or os.pread(file, 1, offset - 1) == NEWLINE:
            return offset
        while chunk := os.pread(file, CHUNK_BYTES, offset):
            found = chunk.find(NEWLINE)
            if found >= 0:
                return offset + found + 1
            offset += len(chunk)
        return offset

    def _records(self, file: int, number: int, lines: Sequence[tuple[int, bytes]]) -> list[Record]:
        base = number << GENERATION_BITS
        return [decode_line(self.topic, base + offset, line, self._settings) for offset, line in lines]

    def _batch(self, start: Pointer, number: int, file: int, lines: list[tuple[int, bytes]], following: int) -> Batch:
        next_pointer = max(start, (number << GENERATION_BITS) + following)
        return Batch(self.topic, 0, start, next_pointer, self._records(file, number, lines))

    def _read_rotated(self, start: Pointer, generation: Generation, offset: int, limit: int) -> Batch | None:
        """The rest of an older file; None when all of it was read."""
        path = self._find(generation)
        if path is None:
            if offset < generation.end:
                raise OffsetOutOfRangeError(f"{self.topic}-0", start, *self._newest_span())
            return None
        file = os.open(path, os.O_RDONLY)
        try:
            lines, following = self._lines(file, offset, limit)
            status = os.fstat(file)
            if not lines:
                if time.time() - status.st_mtime < self._settings.rotation_wait_s:
                    return Batch(self.topic, 0, start, start)  # its writer may not have noticed yet
                tail = os.pread(file, status.st_size - following, following) if offset <= status.st_size else b""
                if not tail.strip():
                    return None
                lines, following = [(following, tail)], status.st_size
            return self._batch(start, generation.number, file, lines, following)
        finally:
            os.close(file)

    def _newest_span(self) -> tuple[Pointer, Pointer]:
        newest = self._generations()[-1]
        base = newest.number << GENERATION_BITS
        return base, base + newest.end

    @contextmanager
    def _opened(self, flags: int = os.O_RDONLY) -> Iterator[tuple[int, Generation]]:
        """The file that has the name now, and its generation. The caller holds the lock."""
        try:
            file = os.open(self.path, flags)
        except FileNotFoundError:
            raise UnknownTopicError(f"there is no file {self.path}: create topic {self.topic!r} first") from None
        except OSError as error:
            raise StorageError(f"{self.path} cannot be opened: {error}") from error
        try:
            yield file, self._generation(file)
        finally:
            os.close(file)

    def _generations(self) -> list[Generation]:
        if self._sidecar is None:
            self._sidecar = Sidecar(self.path, Generation)
        return self._sidecar.entries

    def _generation(self, file: int) -> Generation:
        """The generation of an open file, which is a new one if it is not the newest that is known."""
        entries = self._generations()
        end = self._end(file)
        if not entries or not _is_same(file, entries[-1], end):
            assert self._sidecar is not None
            self._sidecar.change(lambda newest: self._add(newest, file, end))
            return self._generations()[-1]
        newest = entries[-1]
        newest.end = max(newest.end, end)
        if newest.head_bytes < HEAD_BYTES and end >= min(HEAD_BYTES, 2 * newest.head_bytes + 1):
            assert self._sidecar is not None
            self._sidecar.change(lambda newest: self._add(newest, file, end))
        return self._generations()[-1]

    def _add(self, entries: list[Generation], file: int, end: int) -> None:
        status = os.fstat(file)
        head_bytes = min(HEAD_BYTES, end)
        head = _head(file, head_bytes)
        if entries and _is_same(file, entries[-1], end):
            entries[-1].head_bytes, entries[-1].head, entries[-1].end = head_bytes, head, end
            return
        number = entries[-1].number + 1 if entries else 0
        entries.append(Generation(number, status.st_dev, status.st_ino, head_bytes, head, end))

    def _find(self, generation: Generation) -> Path | None:
        """The file of an older generation, under whichever name it has now."""
        found = [path for path in sorted(self.path.parent.glob(f"{self.path.stem}*")) if path != self.path]
        for path in found:
            if path.is_file() and (path.stat().st_dev, path.stat().st_ino) == (generation.device, generation.inode):
                return path
        for path in found if generation.head_bytes else ():
            if path.is_file() and path.stat().st_size >= generation.end:
                with path.open("rb") as file:
                    if _head(file.fileno(), generation.head_bytes) == generation.head:
                        return path
        return None

    def _end_torn_line(self, file: int) -> None:
        """A line of ours without an end was written by a process that was killed: nobody was told that it is stored.
        Somebody else's gets its end, so that ours is a line of its own."""
        size, end = os.fstat(file).st_size, self._end(file)
        if size > end:
            if os.pread(file, len(OURS), end) == OURS:
                os.ftruncate(file, end)
            else:
                os.write(file, NEWLINE)


class CsvFile(LineFile):
    """A file of CSV with a header line: rows as JSON objects. A quoted field may contain newlines."""

    def __init__(self, topic: str, path: Path, settings: FileSettings) -> None:
        super().__init__(topic, path, settings)
        self._row_start = (0, 0)
        """An inode, and an offset in that file at which a row begins: quotes are counted from there."""

    def write(self, records: Sequence[NewRecord]) -> Sequence[Outcome]:
        raise StreamError(f"{self.path} is only read: JSON lines can be appended to, CSV cannot")

    def _begin(self, file: int) -> int:
        lines, following = super()._lines(file, 0, 1)
        return following if lines else 0

    def _lines(self, file: int, start: int, limit: int) -> tuple[list[tuple[int, bytes]], int]:
        begin = self._begin(file)
        return super()._lines(file, max(start, begin), limit) if begin or start else ([], 0)

    def _line_start(self, file: int, offset: int) -> int:
        """A newline ends a row if the quotes before it come in pairs."""
        while offset > 0:
            offset = super()._line_start(file, offset)
            if os.pread(file, 1, offset - 1) != NEWLINE or self._is_row_start(file, offset):
                return offset
            offset += 1
        return offset

    def _is_row_start(self, file: int, offset: int) -> bool:
        inode = os.fstat(file).st_ino
        at = self._row_start[1] if self._row_start[0] == inode and self._row_start[1] <= offset else 0
        quotes = 0
        while at < offset:
            chunk = os.pread(file, min(CHUNK_BYTES, offset - at), at)
            if not chunk:
                break
            quotes += chunk.count(b'"')
            at += len(chunk)
        if quotes % 2 == 0:
            self._row_start = (inode, offset)
        return quotes % 2 == 0

    def _add(self, entries: list[Generation], file: int, end: int) -> None:
        self._row_start = (0, 0)
        super()._add(entries, file, end)

    def _split(self, data: bytes) -> tuple[list[bytes], bytes]:
        rows: list[bytes] = []
        held: list[bytes] = []
        quotes = 0
        lines, rest = super()._split(data)
        for line in lines:
            held.append(line)
            quotes += line.count(b'"')
            if quotes % 2 == 0:
                rows.append(NEWLINE.join(held))
                held, quotes = [], 0
        return rows, NEWLINE.join((*held, rest))

    def _end(self, file: int) -> int:
        end = super()._end(file)
        while end > 0 and not self._is_row_start(file, end):
            end = self._last_newline(file, end - 1)
        return end

    def _records(self, file: int, number: int, lines: Sequence[tuple[int, bytes]]) -> list[Record]:
        if not lines:
            return []
        [(_, header)], _ = super()._lines(file, 0, 1)
        names = self._row(header.removeprefix(b"\xef\xbb\xbf"))
        base = number << GENERATION_BITS
        records = []
        for offset, line in lines:
            cells = self._row(line)
            extra = (f"column_{number}" for number in itertools.count(len(names) + 1))
            fields: dict[str, Any] = dict(zip((*names, *itertools.islice(extra, len(cells))), cells, strict=False))
            fields.update(dict.fromkeys(names[len(cells) :]))
            records.append(from_object(self.topic, base + offset, fields, self._settings))
        return records

    def _row(self, line: bytes) -> list[str]:
        text = line.removesuffix(b"\r").decode(errors="replace")
        return next(csv.reader(io.StringIO(text, newline=""), delimiter=self._settings.delimiter), [])


def pointer_text(pointer: Pointer) -> str:
    """A pointer as GENERATION/BYTE."""
    return f"{pointer >> GENERATION_BITS}/{pointer & OFFSET_MASK}"


def _is_same(file: int, generation: Generation, end: int) -> bool:
    status = os.fstat(file)
    return (
        (status.st_dev, status.st_ino) == (generation.device, generation.inode)
        and end >= generation.end
        and _head(file, generation.head_bytes) == generation.head
    )


def _head(file: int, size: int) -> str:
    return hashlib.sha256(os.pread(file, size, 0)).hexdigest()[:32]


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
