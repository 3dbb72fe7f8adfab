"""Frames in a file: magic bytes, a length, a checksum, a payload. Torn frames are distinguished from damaged ones."""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from crc32c import crc32c

MARK: Final = b"\xf5pck"
HEAD: Final = struct.Struct(">4sII")
"""The magic bytes, the length of the payload, and its CRC-32C."""


class DamagedFileError(ValueError):
    """A frame is damaged and good ones follow it, so this is not an interrupted write."""

    def __init__(self, path: Path, position: int) -> None:
        super().__init__(f"{path} is damaged at byte {position}")


def frame(payload: bytes) -> bytes:
    return HEAD.pack(MARK, len(payload), crc32c(payload)) + payload


def frames_in(data: bytes, path: Path, position: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield each payload with the position after its frame. `position` is where in the file `data` begins.

    Stops at a torn frame: incomplete, or with a wrong checksum and nothing good after it.
    """
    at = 0
    while at < len(data):
        payload = _payload_at(data, at)
        if payload is None:
            if _good_frame_behind(data, at):
                raise DamagedFileError(path, position + at)
            return
        at += HEAD.size + len(payload)
        yield payload, position + at


def replace_file(path: Path, content: bytes, *, among_others: bool = False) -> None:
    """Replace the content of a file: it has the new or the old content, even after a power failure.

    Only one writer at a time may do this, unless `among_others`: then the last one wins.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new" if among_others else f"{path.name}.new")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make files created, renamed and removed in the folder survive a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _payload_at(data: bytes, at: int) -> bytes | None:
    if at + HEAD.size > len(data):
        return None
    mark, length, checksum = HEAD.unpack_from(data, at)
    payload = data[at + HEAD.size : at + HEAD.size + length]
    if mark != MARK or len(payload) != length or crc32c(payload) != checksum:
        return None
    return payload


def _good_frame_behind(data: bytes, at: int) -> bool:
    found = data.find(MARK, at + 1)
    while found >= 0:
        if _payload_at(data, found) is not None:
            return True
        found = data.find(MARK, found + 1)
    return False
