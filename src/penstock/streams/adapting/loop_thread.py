"""An event loop in a thread of its own, for callers of other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from penstock.errors import BrokerUnavailableError, ConnectionClosedError
from penstock.streams.forks import FORKS

R = TypeVar("R")

_STOP_S: Final = 10.0


class LoopThread:
    """Starts with the first use, and ends with `close`. A forked process cannot use that of its parent."""

    def __init__(self, name: str, what: str, again: str) -> None:
        """`name` is that of the thread. `what` it serves, and how to get it `again`, are for error messages."""
        self._name = name
        self._what = what
        self._again = again
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._forks = FORKS.count

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed or self._forks != FORKS.count:
                raise ConnectionClosedError(f"{self._what} is closed: {self._again}")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    def run(self, work: Coroutine[Any, Any, R], timeout_s: float) -> R:
        """The result of a coroutine. It is cancelled by `close`, or after `timeout_s`."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except BaseException:
            work.close()
            raise
        try:
            return future.result(timeout_s)
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            raise ConnectionClosedError(f"{self._what} was closed") from None
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise BrokerUnavailableError(f"{self._what} did not finish within {timeout_s:g} s") from None

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Run `last`, cancel what still runs, and end the thread. A second call does nothing."""
        with self._lock:
            loop, thread = self._loop, self._thread
            was_closed, self._closed = self._closed, True
        if was_closed or loop is None or thread is None or self._forks != FORKS.count:
            if last is not None:
                last.close()
            return
        if last is not None:
            future = asyncio.run_coroutine_threadsafe(last, loop)
            try:
                future.result(_STOP_S)
            except TimeoutError:
                future.cancel()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_STOP_S)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
