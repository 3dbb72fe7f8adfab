"""Group commit: many requests that wait for the disk share one sync.

While one sync runs in a worker thread, new requests gather for the next. A single request on a fast disk is synced in
place instead, because switching to a thread and back takes longer than the sync.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.errors import StorageError
from penstock.log.partition import PartitionLog, SyncTicket

Failures = Mapping[PartitionLog, StorageError]
Done = Callable[[Failures], None]

INLINE_BELOW_S: Final = 0.001
"""Syncs of a slower disk always run in a thread, so that nothing else waits."""
_SMOOTHING: Final = 0.2
_THREADS: Final = 4


class Syncer:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-sync")
        self._pending: list[tuple[Iterable[PartitionLog], Done]] = []
        self._waiting: dict[PartitionLog, int] = {}
        self._running = False
        self.usual_s = 0.0
        self.syncs = 0

    def is_waiting(self, log: PartitionLog) -> bool:
        """Whether records of this partition wait for a sync, so that readers must not see them yet."""
        return log in self._waiting

    def submit(self, logs: Iterable[PartitionLog], done: Done) -> None:
        """Sync everything written to these partitions; `done` gets those that failed. See `kick`."""
        for log in logs:
            self._waiting[log] = self._waiting.get(log, 0) + 1
        self._pending.append((logs, done))

    def kick(self) -> None:
        """Start on what was submitted, unless a sync is running, which then starts the next one itself."""
        if self._running or not self._pending:
            return
        alone = len(self._pending) == 1 and self.usual_s < INLINE_BELOW_S
        batch, self._pending = self._pending, []
        tickets: dict[PartitionLog, SyncTicket] = {}
        for log in (log for logs, _ in batch for log in logs):
            try:
                ticket = log.sync_ticket()
            except StorageError as error:  # its topic was deleted meanwhile: the others of the batch go on
                log.refuse_writes(str(error))
                continue
            if ticket is not None:
                tickets[log] = ticket
        if alone and len(tickets) <= 1:
            self._finish(batch, tickets, *_run(list(tickets.values())))
            return
        self._running = True
        future = self._loop.run_in_executor(self._pool, _run, list(tickets.values()))
        future.add_done_callback(lambda finished: self._finished(batch, tickets, finished))

    async def sync(self, logs: Iterable[PartitionLog]) -> None:
        """Return once everything written to these partitions is safe. Raises StorageError."""
        future: asyncio.Future[None] = self._loop.create_future()

        def done(failures: Failures) -> None:
            if future.done():
                return
            if failures:
                future.set_exception(next(iter(failures.values())))
            else:
                future.set_result(None)

        self.submit(list(logs), done)
        self.kick()
        await future

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def _finished(
        self,
        batch: list[tuple[Iterable[PartitionLog], Done]],
        tickets: dict[PartitionLog, SyncTicket],
        finished: asyncio.Future[tuple[dict[SyncTicket, OSError], float]],
    ) -> None:
        self._running = False
        self._finish(batch, tickets, *finished.result())
        self.kick()

    def _finish(
        self,
        batch: list[tuple[Iterable[PartitionLog], Done]],
        tickets: dict[PartitionLog, SyncTicket],
        errors: dict[SyncTicket, OSError],
        seconds: float,
    ) -> None:
        self.usual_s += (seconds - self.usual_s) * _SMOOTHING
        self.syncs += 1
        failures: dict[PartitionLog, StorageError] = {}
        for logs, _ in batch:
            for log in logs:
                self._waiting[log] -= 1
                if not self._waiting[log]:
                    del self._waiting[log]
                if log.failed is not None:
                    failures[log] = StorageError(log.failed)
        for log, ticket in tickets.items():
            if ticket in errors:
                failures[log] = log.sync_failed(errors[ticket])
            elif log.failed is None:
                log.synced(ticket)
        for log in {log: None for logs, _ in batch for log in logs}:
            if log.failed is None:
                log.publish(log.synced_offset if log in self._waiting else log.end_offset)
        for logs, done in batch:
            done({log: failures[log] for log in logs if log in failures} if failures else failures)


def _run(tickets: list[SyncTicket]) -> tuple[dict[SyncTicket, OSError], float]:
    """Sync in this thread, one partition after the other. An error of one does not stop the others."""
    started = time.perf_counter()
    errors: dict[SyncTicket, OSError] = {}
    for ticket in tickets:
        try:
            ticket.run()
        except OSError as error:
            errors[ticket] = error.with_traceback(None)
    return errors, time.perf_counter() - started
