"""Producer ids: numbers that are given out once, for ever.

A partition tells producers apart by their id. Were one given out again after a crash, the batches of the new producer
would be taken for repetitions of the old one's and dropped. So ids are reserved on disk a block at a time before the
first of them is used; a crash loses what is left of the block, and there are 2^63 of them.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Final, Protocol

from penstock.errors import StorageError
from penstock.log.disk import Disk
from penstock.log.statefile import DamagedStateError, read_state, write_state

BLOCK_SIZE: Final = 1_000


class ProducerIds(Protocol):
    """Where blocks of ids come from."""

    async def next_block(self) -> range:
        """Ids that were never given before and never will be again, not even after a crash; raises StorageError."""


class FileProducerIds:
    """Keeps the first id that is still free in a small file."""

    def __init__(self, path: Path, disk: Disk | None = None, block_size: int = BLOCK_SIZE) -> None:
        self._path = path
        self._disk = disk or Disk()
        self._block_size = block_size
        self._one_at_a_time = threading.Lock()

    async def next_block(self) -> range:
        return await asyncio.to_thread(self._reserve)

    def _reserve(self) -> range:
        with self._one_at_a_time:
            try:
                first = self._first_free()
                write_state(self._path, str(first + self._block_size).encode(), self._disk)
            except (OSError, DamagedStateError) as error:
                raise StorageError(
                    f"no producer ids can be reserved in {self._path}: {error}. Free space, or restore the file from a "
                    "copy; where it is lost, write a new one only with a number above every id ever given"
                ) from error
        return range(first, first + self._block_size)

    def _first_free(self) -> int:
        content = read_state(self._path)
        return 0 if content is None else int(content)


class ProducerIdPool:
    """Gives ids out one by one, and reserves the next block when they run out."""

    def __init__(self, source: ProducerIds) -> None:
        self._source = source
        self._left = iter(range(0))
        self._refilling = asyncio.Lock()

    async def take(self) -> int:
        """An id of its own for the caller; raises StorageError when no block can be reserved."""
        async with self._refilling:
            for producer_id in self._left:
                return producer_id
            block = await self._source.next_block()
            self._left = iter(block)
            return next(self._left)
