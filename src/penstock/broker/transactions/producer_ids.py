"""Producer ids: numbers that are never assigned twice.

A partition tells producers apart by their id. If one were assigned again after a crash, the batches of the new producer
would be dropped as duplicates of the old one's. So ids are reserved on disk a block at a time before the first of them
is used; a crash loses the rest of the block, and there are 2^63 of them.

The file may be deleted, damaged, or restored from an old copy. So before the first block after a start, it is compared
with every id that a partition or a transactional id remembers. A file that cannot be right is replaced, and ids
continue above all of those and above the clock in milliseconds. The clock covers ids that are no longer remembered but
whose producers may still run: fewer than a thousand ids are reserved per second, so no assigned id is as large as the
time at which the loss is noticed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from penstock.errors import StorageError
from penstock.log.disk import Disk
from penstock.log.statefile import DamagedStateError, read_state, write_state

logger = logging.getLogger(__name__)

BLOCK_SIZE: Final = 1_000
NOBODY: Final = -1
"""The highest remembered id if there is none."""


class ProducerIds(Protocol):
    async def next_block(self) -> range:
        """Ids that were never assigned before, and never will be again, even after a crash. Raises StorageError."""


class FileProducerIds:
    """Stores the first free id in a small file.

    `highest_known` returns the highest id that anything in the data folder remembers. It is called on the event loop,
    once, before the first block is reserved.
    """

    def __init__(
        self,
        path: Path,
        disk: Disk | None = None,
        block_size: int = BLOCK_SIZE,
        *,
        highest_known: Callable[[], int] = lambda: NOBODY,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._path = path
        self._disk = disk or Disk()
        self._block_size = block_size
        self._highest_known = highest_known
        self._wall_ms = wall_ms
        self._next = NOBODY
        """The first id after those that this process has reserved."""
        self._one_at_a_time = threading.Lock()

    def create(self) -> None:
        """Write the file of a new data folder. From then on, a missing file was lost. Raises OSError."""
        write_state(self._path, b"0", self._disk)

    async def next_block(self) -> range:
        highest_known = self._highest_known() if self._next == NOBODY else self._next - 1
        return await asyncio.to_thread(self._reserve, highest_known)

    def _reserve(self, highest_known: int) -> range:
        with self._one_at_a_time:
            try:
                first = self._first_free(highest_known)
                write_state(self._path, str(first + self._block_size).encode(), self._disk)
            except OSError as error:
                raise StorageError(
                    f"no producer ids can be reserved in {self._path}: {error}. Free space, or make the file readable "
                    "and writable"
                ) from error
            self._next = first + self._block_size
        return range(first, first + self._block_size)

    def _first_free(self, highest_known: int) -> int:
        try:
            content = read_state(self._path)
            first = NOBODY if content is None else int(content)
            problem = "is missing" if content is None else None
        except (DamagedStateError, ValueError):
            first, problem = NOBODY, "is damaged"
        if problem is None and first <= highest_known:
            problem = f"says that ids from {first} on are free, but producer id {highest_known} is in use"
        if problem is None:
            return first
        first = max(highest_known + 1, first, self._wall_ms())
        logger.warning(
            "%s %s. New producers get ids from %d on, above every id that a partition or a transactional id remembers. "
            "Keep this file when data folders are copied or restored.",
            self._path,
            problem,
            first,
            extra={"first_producer_id": first},
        )
        return first


class ProducerIdPool:
    def __init__(self, source: ProducerIds) -> None:
        self._source = source
        self._left = iter(range(0))
        self._refilling = asyncio.Lock()

    async def take(self) -> int:
        """A new id. Raises StorageError if no block can be reserved."""
        async with self._refilling:
            for producer_id in self._left:
                return producer_id
            block = await self._source.next_block()
            self._left = iter(block)
            return next(self._left)
