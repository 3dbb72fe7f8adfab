"""The journal of one partition in a folder: a file to which each change is appended as one frame, all or nothing.

When it has grown, it is replaced by a new one that starts with everything still valid, and its history entries move to
a file of their own, `history.1`, `history.2` and so on. The first frame says which of these belong to it, so that files
left incomplete by a crash do not.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from penstock.checkpoints.format import corrupt, decode_history, encode_checkpoint, encode_history, id_bytes
from penstock.checkpoints.frames import DamagedFileError, frame, frames_in, replace_file, sync_folder
from penstock.errors import StoreUnavailableError
from penstock.model import Change, CheckpointKey, HistoryEntry

logger = logging.getLogger(__name__)

JOURNAL: Final = "journal"
KEY: Final = "key"
"""The file that names the partition, even if the journal is damaged."""
ROTATE_BYTES: Final = 1 << 20
ROTATE_FACTOR: Final = 4
"""Replace a journal when it is this many times as large as at its start, and above the minimum size."""

SYNCED_PARENTS: Final = 2
"""How many parent folders are created together with that of a partition."""
SWEEP: Final = 1000
"""From this many idempotency keys on, expired ones are removed whenever their number has doubled."""
READ_ATTEMPTS: Final = 10
EVER: Final = -(1 << 63)
"""Before any time."""


class JournalHeader(msgspec.Struct, array_like=True):
    """The first frame of a journal."""

    oldest_history: int = 1
    newest_history: int = 0
    """The history files that belong to it are those from the oldest to the newest."""


class Saved(msgspec.Struct, array_like=True):
    """Every other frame: a change."""

    checkpoint: bytes
    happenings: bytes = b""
    state: list[tuple[bytes, bytes | None]] = []
    handled: list[tuple[bytes, int]] = []
    forget_handled_before_ms: int = EVER
    forget_happenings_before_ms: int = EVER


class HistoryPart(msgspec.Struct, array_like=True):
    """A frame of a history file."""

    happenings: bytes
    last_ended_ms: int


class Journal:
    """One partition's journal, as far as this process has read it. Writers hold the lock."""

    def __init__(self, folder: Path, key: CheckpointKey, rotate_bytes: int = ROTATE_BYTES) -> None:
        self.key = key
        self.folder = folder
        self._path = folder / JOURNAL
        self._rotate_bytes = rotate_bytes
        self._clear()

    def _clear(self) -> None:
        self._file_id: tuple[int, int] | None = None
        self._position = 0
        self._begun_with_bytes = 0
        self._is_suspect = False
        self._head = JournalHeader()
        self.checkpoint: bytes | None = None
        self.state: dict[bytes, bytes] = {}
        self._handled: dict[bytes, int] = {}
        self._sweep_handled_at = SWEEP
        self._forget_handled_before_ms = EVER
        self._forget_happenings_before_ms = EVER

    def refresh(self) -> None:
        """Read what was appended since the last time. CorruptCheckpointError when it is damaged."""
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if self._file_id != (status.st_dev, status.st_ino) or status.st_size < self._position:
                    self._clear()
                    self._file_id = (status.st_dev, status.st_ino)
                if status.st_size == self._position:
                    return
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            self._clear()
            return
        except OSError as error:
            raise StoreUnavailableError(f"{self._path} cannot be read: {error}") from error
        try:
            for payload, end in frames_in(data, self._path, self._position):
                self._apply(payload)
                self._position = end
        except (DamagedFileError, msgspec.MsgspecError) as error:
            self._clear()
            raise corrupt(f"the checkpoint of {self.key}", str(error)) from error

    def append(self, change: Change) -> None:
        """Append a change; it is on disk when this returns."""
        saved = Saved(
            encode_checkpoint(change.checkpoint),
            encode_history(change.happenings) if change.happenings else b"",
            list(change.state.items()),
            [(id_bytes(each.id), each.at_ms) for each in change.handled],
            _or_ever(change.forget_handled_before_ms),
            _or_ever(change.forget_happenings_before_ms),
        )
        payload = _encode(saved)
        try:
            if self._position == 0:
                self._make_folder()
                self._begin(_encode(self._head), payload)
            elif self._is_suspect or self._position > max(self._rotate_bytes, ROTATE_FACTOR * self._begun_with_bytes):
                self._rotate(payload)
            else:
                self._write(frame(payload))
        except OSError as error:
            # It is unknown how much of it has reached the disk, so the next change starts a new file.
            self._is_suspect = True
            raise StoreUnavailableError(f"{self._path} cannot be written: {error}; check the disk") from error
        self.refresh()

    def set_aside(self) -> None:
        """Keep a damaged journal under another name, for inspection, and allow a new one."""
        aside = self._path.with_name(f"{JOURNAL}.damaged")
        logger.warning("%s is damaged; it is kept as %s, and a new one is started", self._path, aside.name)
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._path, aside)
        self._clear()

    def history(self) -> list[HistoryEntry]:
        """All history entries, oldest first."""
        for _ in range(READ_ATTEMPTS):
            self.refresh()
            lines = [line for number in self._histories() for line in self._lines_of_history(number)]
            lines += self._journal_entries()
            if self._is_current():  # otherwise a new journal was started meanwhile, and entries have moved
                return lines
        raise StoreUnavailableError(f"{self._path} changes faster than it can be read; try again")

    def _histories(self) -> range:
        return range(self._head.oldest_history, self._head.newest_history + 1)

    def _is_current(self) -> bool:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return self._file_id is None
        return self._file_id == (status.st_dev, status.st_ino)

    def _lines_of_history(self, number: int) -> Iterator[HistoryEntry]:
        for payload, _ in self._frames_of(self._history_path(number)):
            yield from self._kept(_PART.decode(payload).happenings)

    def _journal_entries(self) -> Iterator[HistoryEntry]:
        """The entries of the journal as far as it was read; after that, a write may be incomplete."""
        for payload, end in itertools.islice(self._frames_of(self._path), 1, None):
            if end > self._position:
                return
            yield from self._kept(_SAVED.decode(payload).happenings)

    def _frames_of(self, path: Path) -> Iterator[tuple[bytes, int]]:
        try:
            yield from frames_in(path.read_bytes(), path)
        except FileNotFoundError:
            return  # a writer has started a new journal since, and removed expired files
        except OSError as error:
            raise StoreUnavailableError(f"{path} cannot be read: {error}") from error
        except DamagedFileError as error:
            raise corrupt(f"the history of {self.key}", str(error)) from error

    def _kept(self, data: bytes) -> list[HistoryEntry]:
        if not data:
            return []
        lines = decode_history(data, self.key)
        return [each for each in lines if each.ended_ms >= self._forget_happenings_before_ms]

    def _apply(self, payload: bytes) -> None:
        if self._position == 0:
            self._head = _HEAD.decode(payload)
            return
        saved = _SAVED.decode(payload)
        if self.checkpoint is None:
            self._begun_with_bytes = len(payload)
        self.checkpoint = saved.checkpoint
        for name, value in saved.state:
            if value is None:
                self.state.pop(name, None)
            else:
                self.state[name] = value
        self._handled.update(saved.handled)
        self._forget_handled_before_ms = max(self._forget_handled_before_ms, saved.forget_handled_before_ms)
        self._forget_happenings_before_ms = max(self._forget_happenings_before_ms, saved.forget_happenings_before_ms)
        if len(self._handled) > self._sweep_handled_at:
            before_ms = self._forget_handled_before_ms
            self._handled = {id: at_ms for id, at_ms in self._handled.items() if at_ms >= before_ms}
            self._sweep_handled_at = max(SWEEP, 2 * len(self._handled))

    def is_handled(self, id: bytes) -> bool:
        """Whether an idempotency key is remembered. Call `refresh` first."""
        at_ms = self._handled.get(id)
        return at_ms is not None and at_ms >= self._forget_handled_before_ms

    def _make_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        key = (self.key.group, self.key.topic, self.key.partition)
        replace_file(self.folder / KEY, frame(_encode(key)))
        for folder in (self.folder.parent, *self.folder.parent.parents[:SYNCED_PARENTS]):
            sync_folder(folder)

    def _begin(self, head: bytes, *payloads: bytes) -> None:
        replace_file(self._path, b"".join(map(frame, (head, *payloads))))

    def _write(self, data: bytes) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if os.fstat(handle).st_size > self._position:
                logger.warning("%s: removing an incomplete write at byte %d", self._path, self._position)
                os.ftruncate(handle, self._position)
            view = memoryview(data)
            at = self._position
            while view:
                written = os.pwrite(handle, view, at)
                view, at = view[written:], at + written
            os.fdatasync(handle) if hasattr(os, "fdatasync") else os.fsync(handle)
        finally:
            os.close(handle)

    def _rotate(self, payload: bytes) -> None:
        """Start a new journal with everything still valid, and the new change."""
        happenings = list(self._journal_entries())
        head = msgspec.structs.replace(self._head)
        if happenings:
            head.newest_history += 1
            last_ms = max(each.ended_ms for each in happenings)
            part = _encode(HistoryPart(encode_history(happenings), last_ms))
            replace_file(self._history_path(head.newest_history), frame(part))
        removed = self._outdated(head)
        head.oldest_history += len(removed)
        assert self.checkpoint is not None, "a journal that is rotated has at least one change"
        whole = Saved(
            self.checkpoint,
            b"",
            list(self.state.items()),
            [(id, at_ms) for id, at_ms in self._handled.items() if at_ms >= self._forget_handled_before_ms],
            self._forget_handled_before_ms,
            self._forget_happenings_before_ms,
        )
        self._begin(_encode(head), _encode(whole), payload)
        for path in removed:
            path.unlink(missing_ok=True)

    def _outdated(self, head: JournalHeader) -> list[Path]:
        """The oldest history files, whose entries have all expired."""
        outdated: list[Path] = []
        for number in range(head.oldest_history, head.newest_history + 1):
            path = self._history_path(number)
            parts = [_PART.decode(payload) for payload, _ in self._frames_of(path)]
            if any(part.last_ended_ms >= self._forget_happenings_before_ms for part in parts):
                break
            outdated.append(path)
        return outdated

    def _history_path(self, number: int) -> Path:
        return self.folder / f"history.{number}"


def key_of(folder: Path) -> CheckpointKey | None:
    """The partition of this folder; None when nothing was saved in it."""
    try:
        data = (folder / KEY).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailableError(f"{folder / KEY} cannot be read: {error}") from error
    try:
        ((payload, _),) = frames_in(data, folder / KEY)
        return CheckpointKey(*_KEY.decode(payload))
    except (ValueError, msgspec.MsgspecError) as error:
        raise corrupt(f"the name of the partition in {folder}", str(error)) from error


def _or_ever(before_ms: int | None) -> int:
    return EVER if before_ms is None else before_ms


_encode: Final = msgspec.msgpack.Encoder().encode
_KEY: Final = msgspec.msgpack.Decoder(tuple[str, str, int])
_HEAD: Final = msgspec.msgpack.Decoder(JournalHeader)
_SAVED: Final = msgspec.msgpack.Decoder(Saved)
_PART: Final = msgspec.msgpack.Decoder(HistoryPart)
