"""Work that goes on although whoever asked for it has left, and work that comes round by itself.

A request's handler is cancelled when its client disconnects. A step that has begun to write must not be: half of it
would be durable and the other half forgotten. So it runs in a task that belongs to the coordinator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.broker.contracts import Clock

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class OwnTasks:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: set[asyncio.Task[Any]] = set()
        self._naps: set[asyncio.Future[None]] = set()
        self.closed = False

    async def finish(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for the work. If the waiting is cancelled, the work goes on."""
        task = self._start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_report)
            raise

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that nobody waits for. An error that it ends with is logged."""
        self._start(work).add_done_callback(_report)

    def _start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def nap(self, delay_s: float) -> None:
        """Wait for the time to pass, or for `close`."""
        if self.closed:
            return
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(delay_s, lambda: _wake(over))
        self._naps.add(over)
        try:
            await over
        finally:
            timer.cancel()
            self._naps.discard(over)

    def every(self, interval_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do the work again and again, `interval_s` after it was last done, until `close`."""
        self.spawn(self._repeat(interval_s, work))

    async def _repeat(self, interval_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while not self.closed:
            await self.nap(interval_s)
            if not self.closed:
                try:
                    await work()
                except Exception:
                    logger.exception("%s failed; it is done again in %g s", work.__qualname__, interval_s)

    async def close(self) -> None:
        """End all naps, and wait until everything that is under way has come to an end."""
        self.closed = True
        for nap in self._naps:
            _wake(nap)
        while self._running:
            await asyncio.wait(self._running)


def _wake(nap: asyncio.Future[None]) -> None:
    if not nap.done():
        nap.set_result(None)


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a transaction's step ended with an error", exc_info=error)
