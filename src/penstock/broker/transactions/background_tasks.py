"""Tasks that outlive the request that started them, and periodic tasks.

A request's handler is cancelled when its client disconnects. A step that has started to write must not be: half of it
would be durable and the other half lost. So it runs in a task of the coordinator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.broker.contracts import Clock

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class BackgroundTasks:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: set[asyncio.Task[Any]] = set()
        self._sleeping: set[asyncio.Future[None]] = set()
        self.closed = False

    async def finish(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for the work. If the waiting is cancelled, the work continues."""
        task = self._start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_report)
            raise

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._start(work).add_done_callback(_report)

    def _start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def sleep(self, delay_s: float) -> None:
        """Wait for the time to pass, or for `close`."""
        if self.closed:
            return
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(delay_s, lambda: _wake(over))
        self._sleeping.add(over)
        try:
            await over
        finally:
            timer.cancel()
            self._sleeping.discard(over)

    def every(self, interval_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Repeat the work, `interval_s` after the previous run, until `close`."""
        self.spawn(self._repeat(interval_s, work))

    async def _repeat(self, interval_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while not self.closed:
            await self.sleep(interval_s)
            if not self.closed:
                try:
                    await work()
                except Exception:
                    logger.exception("%s failed; it is retried in %g s", work.__qualname__, interval_s)

    async def close(self) -> None:
        """Wake all sleepers, and wait until everything running has ended."""
        self.closed = True
        for waiter in self._sleeping:
            _wake(waiter)
        while self._running:
            await asyncio.wait(self._running)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a transaction's step ended with an error", exc_info=error)
