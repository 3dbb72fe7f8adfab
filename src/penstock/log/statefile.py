"""Small files that are replaced whole, and in which one damaged byte can be repaired.

The file holds the content twice, each time with its length and checksum. A crash leaves the old file or the new one,
never a mixture; a flipped bit damages one copy, and the other is used.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from crc32c import crc32c

from penstock.errors import LogError
from penstock.log.disk import Disk

_FRAME: Final = struct.Struct(">4sII")
_TAG: Final = b"PSF1"
TEMPORARY_SUFFIX: Final = "~"
"""The suffix of a file until it is complete. Topic names cannot end with it."""


class DamagedStateError(LogError):
    """Neither copy in a state file is intact."""


def write_state(path: Path, content: bytes, disk: Disk, *, durable: bool = True) -> None:
    """Replace the file. If `durable`, the new content survives a power cut when this returns."""
    copy = _FRAME.pack(_TAG, len(content), crc32c(content)) + content
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        disk.write_all(fd, [copy, copy[::-1]], 0)
        if durable:
            disk.sync(fd)
    except OSError:
        temporary.unlink()
        raise
    finally:
        os.close(fd)
    temporary.rename(path)
    if durable:
        disk.sync_folder(path.parent)


def read_state(path: Path) -> bytes | None:
    """The content, or None if the file does not exist. Raises DamagedStateError if both copies are damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    for candidate in (data, data[::-1]):
        if len(candidate) >= _FRAME.size:
            tag, length, crc = _FRAME.unpack_from(candidate)
            content = candidate[_FRAME.size : _FRAME.size + length]
            if tag == _TAG and len(content) == length and crc32c(content) == crc:
                return content
    raise DamagedStateError(f"{path} is damaged: neither of its two copies matches its checksum")
