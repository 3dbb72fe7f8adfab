"""Frames in a file: a mark, a length, a checksum, a payload. What is torn or damaged is told from what is whole."""

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
"""The mark, the length of the payload, and its CRC-32C."""


class DamagedFileError(ValueError):
    """A frame is damaged, and good ones follow it: this is no write that was cut short."""

    def __init__(self, path: Path, position: int) -> None:
        super().__init__(f"{path} is damaged at byte {position}")


def frame(payload: bytes) -> bytes:
    return HEAD.pack(MARK, len(payload), crc32c(payload)) + payload


def frames_in(data: bytes, path: Path, position: int = 0) -> Iterator[tuple[bytes, int]]:
    """Each payload with the place behind its frame. `position` is where in the file `data` begins.

    Ends at a frame that is torn: one that is incomplete, or whose checksum is wrong, with nothing good behind it.
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
    """The file has this content from now on, or still its old one, whatever happens, a power cut too.

    Only one at a time may do this to a file, unless it is said that others may be at it, too: then the last one wins.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new" if among_others else f"{path.name}.new")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """What was made, renamed and removed in the folder stays so through a power cut."""
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
