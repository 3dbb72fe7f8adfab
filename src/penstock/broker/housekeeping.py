"""Periodic work of the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from penstock.errors import LogError
from penstock.log.compacting.cleaning import run
from penstock.log.compacting.compaction import install, plan

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.log.compacting.cleaning import Cleaned

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_S: Final = 60.0
IDLE_CHECK_INTERVAL_S: Final = 10.0
FLUSH_CHECK_INTERVAL_S: Final = 1.0


class Housekeeping:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._compacting: asyncio.Future[Cleaned] | None = None

    def start(self) -> None:
        settings = self._broker.settings
        self._every(lambda: CHECKPOINT_INTERVAL_S, self.checkpoint)
        self._every(lambda: min(IDLE_CHECK_INTERVAL_S, self._broker.limits.idle_ms / 1000), self.close_idle)
        self._every(lambda: FLUSH_CHECK_INTERVAL_S, self.flush_old)
        self._every(lambda: settings.retention_check_interval_ms / 1000, self.expire_records)
        # This interval may change while the broker runs.
        self._every(lambda: self._broker.settings.cleaner_backoff_ms / 1000, self.compact)
        self._every(lambda: settings.producer_id_expiration_check_interval_ms / 1000, self.expire_producers)
        self._every(lambda: settings.offsets_retention_check_interval_ms / 1000, self.expire_offsets)

    async def close(self) -> None:
        """Stop. No thread writes to the data folder when this returns."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        running = [self._compacting] if self._compacting is not None else []
        await asyncio.gather(*self._tasks, *running, return_exceptions=True)

    def _every(self, interval_s: Callable[[], float], action: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._repeat(interval_s, action)))

    async def _repeat(self, interval_s: Callable[[], float], action: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_s())
            try:
                await action()
            except Exception:
                logger.exception("housekeeping failed and will try again in %g s", interval_s())

    async def checkpoint(self) -> None:
        """Move the recovery points, so that a crash leaves little to read."""
        for log in list(self._broker.topics.partitions()):
            if log.failed is None and log.checkpointed_offset != log.end_offset:
                try:
                    await self._broker.syncer.sync([log])
                    log.checkpoint()
                except LogError as error:
                    logger.warning("%s: no checkpoint: %s", log.name, error, extra={"partition": log.name})
                await asyncio.sleep(0)

    async def flush_old(self) -> None:
        """Obey `flush.ms`: sync writes that have waited that long, even if no producer asked for it."""
        now_ms = self._broker.clock.wall_ms()
        due = [log for log in self._broker.topics.partitions() if log.flush_due(now_ms)]
        if due:
            await self._broker.syncer.sync(due)

    async def close_idle(self) -> None:
        latest_s = self._broker.clock.monotonic_s() - self._broker.limits.idle_ms / 1000
        for connection in list(self._broker.connections):
            if connection.has_been_idle_since(latest_s):
                connection.close("idle (connections.max.idle.ms)", routine=True)

    async def expire_records(self) -> None:
        now_ms = self._broker.clock.wall_ms()
        for log in list(self._broker.topics.partitions()):
            if log.failed is None and log.segments:
                try:
                    self._broker.stats.segments_deleted += log.expire(now_ms)
                except LogError as error:
                    logger.warning("%s: nothing expired: %s", log.name, error, extra={"partition": log.name})
                await asyncio.sleep(0)

    async def expire_producers(self) -> None:
        now_ms = self._broker.clock.wall_ms()
        for log in self._broker.topics.partitions():
            log.producers.expire(now_ms, self._broker.settings.producer_id_expiration_ms)

    async def expire_offsets(self) -> None:
        await self._broker.groups.expire(self._broker.clock.wall_ms())

    async def compact(self) -> None:
        for log in list(self._broker.topics.partitions()):
            if not log.config.compacts or log.failed is not None:
                continue
            try:
                memory_bytes = self._broker.settings.cleaner_dedupe_buffer_bytes
                work = plan(log, self._broker.clock.wall_ms(), dedupe_buffer_bytes=memory_bytes)
                if work is None:
                    continue
                disk = self._broker.topics.resources.disk
                self._compacting = asyncio.ensure_future(
                    asyncio.to_thread(run, work, disk=disk, stopped=lambda: self._closing)
                )
                cleaned = await asyncio.shield(self._compacting)
                if install(log, cleaned):
                    self._broker.stats.compactions += 1
            except LogError as error:
                logger.error("%s could not be compacted: %s", log.name, error, extra={"partition": log.name})
