"""The committed position of a spool: one number, in two slots that are written in turn.

A process killed during a write damages the slot it wrote; the other one still holds the previous value. The file is
memory-mapped, so a commit costs no system call; it survives the process at once, and a power cut after `sync`.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from pathlib import Path
from typing import Final

from crc32c import crc32c

from penstock.log.disk import Disk

logger = logging.getLogger(__name__)

POSITION_FILE: Final = "position"
_SLOT: Final = struct.Struct(">QqI")
_CHECKED: Final = struct.Struct(">Qq")
_SLOT_BYTES: Final = 32
_FILE_BYTES: Final = 2 * _SLOT_BYTES


class PositionFile:
    """`committed` is the number of the last record that need not be delivered; -1 if there is none."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._disk = disk
        path = folder / POSITION_FILE
        self._fd = disk.open(path, create=True)
        try:
            data = disk.read(self._fd, _FILE_BYTES, 0)
            if len(data) < _FILE_BYTES:
                disk.write_all(self._fd, [bytes(_FILE_BYTES - len(data))], len(data))
                data += bytes(_FILE_BYTES - len(data))
            self._map = mmap.mmap(self._fd, _FILE_BYTES)
        except BaseException:
            os.close(self._fd)
            raise
        self._turn, self.committed = _newest(data)
        if self._turn == 0 and any(data[:_SLOT_BYTES]) and any(data[_SLOT_BYTES:]):
            logger.error("%s is damaged: records that were delivered may be delivered again", path)

    def move(self, committed: int) -> None:
        self._turn += 1
        start = self._turn % 2 * _SLOT_BYTES
        content = _CHECKED.pack(self._turn, committed)
        self._map[start : start + _SLOT.size] = _SLOT.pack(self._turn, committed, crc32c(content))
        self.committed = committed

    def sync(self) -> None:
        self._map.flush()
        self._disk.sync(self._fd)

    def close(self) -> None:
        self._map.close()
        os.close(self._fd)


def _newest(data: bytes) -> tuple[int, int]:
    """The turn and number of the newer valid slot; turn 0 if neither is valid."""
    best = (0, -1)
    for start in (0, _SLOT_BYTES):
        turn, committed, crc = _SLOT.unpack_from(data, start)
        if turn and crc == crc32c(_CHECKED.pack(turn, committed)):
            best = max(best, (turn, committed))
    return best
