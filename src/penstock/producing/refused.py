"""Records that the stream rejected for good, kept beside the spool with the reason."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import StorageError
from penstock.log.disk import Disk
from penstock.model import NewRecord
from penstock.producing.buffers import BufferedRecord

REFUSED_FILE: Final = "refused.jsonl"


class RefusedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the file. Bytes are in base64."""

    sequence: int
    topic: str
    value: str | None
    key: str | None = None
    headers: tuple[tuple[str, str | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None
    reason: str

    @property
    def record(self) -> NewRecord:
        """The record as it was sent, to send it again once the reason is gone."""
        return NewRecord(
            self.topic,
            _from_text(self.value),
            _from_text(self.key),
            tuple((name, _from_text(value)) for name, value in self.headers),
            self.timestamp_ms,
            self.partition,
        )


def keep_refused(folder: Path, held: Sequence[BufferedRecord], reason: str, disk: Disk) -> None:
    """Append records to the file. They are durable when this returns. Raises StorageError."""
    lines = b"".join(msgspec.json.encode(_line(each, reason)) + b"\n" for each in held)
    try:
        fd = disk.open(folder / REFUSED_FILE, create=True)
        try:
            end = os.fstat(fd).st_size
            if end and disk.read(fd, 1, end - 1) != b"\n":  # a crash cut the last line
                lines = b"\n" + lines
            disk.write_all(fd, [lines], end)
            disk.sync(fd)
        finally:
            os.close(fd)
        disk.sync_folder(folder)
    except OSError as error:
        raise StorageError(f"refused records could not be kept in {folder}: {error.strerror}") from error


def read_refused(folder: str | os.PathLike[str]) -> list[RefusedRecord]:
    """The refused records of a spool, oldest first. A line cut by a crash is skipped: its record is delivered again."""
    try:
        lines = (Path(folder) / REFUSED_FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found: dict[int, RefusedRecord] = {}
    for line in lines:
        try:
            refused = msgspec.json.decode(line, type=RefusedRecord)
        except msgspec.DecodeError:
            continue
        found[refused.sequence] = refused  # after a crash, a record may have been refused again
    return list(found.values())


def _line(held: BufferedRecord, reason: str) -> RefusedRecord:
    record = held.record
    return RefusedRecord(
        sequence=held.sequence,
        topic=record.topic,
        value=_as_text(record.value),
        key=_as_text(record.key),
        headers=tuple((name, _as_text(value)) for name, value in record.headers),
        timestamp_ms=record.timestamp_ms,
        partition=record.partition,
        reason=reason,
    )


def _as_text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _from_text(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
