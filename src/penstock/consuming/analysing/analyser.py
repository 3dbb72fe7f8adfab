"""An analyser: a function with workers of its own, so that one that hangs takes nothing from the others."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.abc import Clock
from penstock.consuming.analysing.call import Call
from penstock.consuming.analysing.statistics import Counting
from penstock.errors import ClosedError, HandlerError

logger = logging.getLogger(__name__)

OnLate = Callable[[str, Any, Any, float], object]
"""Hears of a late answer: the analyser's name, the argument, the answer, and by how many seconds it was late."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all analysers of one `within` share."""

    clock: Clock
    counting: Counting
    on_late: OnLate | None

    def ended(self, name: str, call: Call, begun_s: float, answer: Any, error: BaseException | None) -> None:
        """An analyser is done with a call: tell the call, count it, and pass on what is late."""
        in_time = call.answer(name, answer) if error is None else call.fail(name, error)
        now_s = self.clock.monotonic_s()
        self.counting.ended(name, now_s - begun_s, failed=error is not None, in_time=in_time)
        if in_time:
            return
        if isinstance(error, ClosedError):
            return
        if error is not None:
            logger.warning("the analyser %s failed after its deadline", name, exc_info=error)
        elif self.on_late is not None:
            try:
                self.on_late(name, call.argument, answer, now_s - call.deadline_s)
            except Exception:
                logger.exception("on_late failed for a late answer of the analyser %s", name)


class Analyser(Protocol):
    """Takes calls and answers them, in its own time."""

    @property
    def name(self) -> str: ...

    def submit(self, call: Call) -> bool:
        """Ask it. False, and nothing happens, when as many calls as it may have are waiting for it already."""

    def stop(self) -> None:
        """Take no more calls, and end when those there are have been dealt with."""

    def join(self, timeout_s: float) -> bool:
        """Wait until it has ended. False when it was still at work after this time."""


class ThreadAnalyser:
    """An analyser in threads: for functions that wait for something, or are quick.

    At most `workers` calls are under way, and `queue_size` wait. A call that is over when its turn comes is skipped, so
    that a slow analyser does not spend its time on answers nobody waits for.
    """

    def __init__(
        self, name: str, function: Callable[[Any], Any], workers: int, queue_size: int, around: Surroundings
    ) -> None:
        self.name = name
        self._function = function
        self._queue_size = queue_size
        self._around = around
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"within-{name}-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Call) -> bool:
        # Two threads may both find the last free place: the bound is on memory, and one more does no harm.
        if self._queue.qsize() >= self._queue_size:
            return False
        self._queue.put(call)
        return True

    def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def join(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        around, name = self._around, self.name
        while (call := self._queue.get()) is not None:
            if not call.begin(name):
                around.counting.skipped(name)
                continue
            around.counting.begun(name)
            begun_s = around.clock.monotonic_s()
            answer, error = None, None
            try:
                answer = self._function(call.argument)
                if isinstance(answer, Coroutine):
                    answer.close()
                    raise HandlerError(f"the analyser {name} gave a coroutine: make it an `async def` itself")
            except BaseException as raised:  # whatever it raises is its failure, and not the end of the worker
                error = raised
            around.ended(name, call, begun_s, answer, error)
            del call, answer, error  # an idle worker keeps nothing alive


class LoopAnalyser:
    """An analyser that is `async def`: on an event loop of its own, in a thread of its own."""

    def __init__(
        self, name: str, function: Callable[[Any], Awaitable[Any]], workers: int, queue_size: int, around: Surroundings
    ) -> None:
        self.name = name
        self._function = function
        self._most = workers + queue_size
        self._turns = asyncio.Semaphore(workers)
        self._around = around
        self._lock = threading.Lock()
        self._under_way = 0
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"within-{name}", daemon=True)
        self._thread.start()

    def submit(self, call: Call) -> bool:
        with self._lock:
            if self._under_way >= self._most:
                return False
            self._under_way += 1
        try:
            self._loop.call_soon_threadsafe(self._start, call)
        except RuntimeError as error:
            raise ClosedError(f"the analyser {self.name} is closed") from error
        return True

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop_when_done)

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return True
        self._loop.call_soon_threadsafe(self._cancel)  # what waits is cancelled; what blocks the loop goes on
        return False

    def _start(self, call: Call) -> None:
        task = self._loop.create_task(self._analyse(call))
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._stopping and not self._tasks:
            self._loop.stop()

    def _stop_when_done(self) -> None:
        self._stopping = True
        if not self._tasks:
            self._loop.stop()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _analyse(self, call: Call) -> None:
        around, name = self._around, self.name
        try:
            async with self._turns:
                if not call.begin(name):
                    around.counting.skipped(name)
                    return
                around.counting.begun(name)
                begun_s = around.clock.monotonic_s()
                answer, error = None, None
                try:
                    answer = await self._function(call.argument)
                except BaseException as raised:
                    error = raised
                around.ended(name, call, begun_s, answer, error)
                if isinstance(error, asyncio.CancelledError):
                    raise error
        finally:
            with self._lock:
                self._under_way -= 1

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
