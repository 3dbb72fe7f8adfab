"""Analysers: functions with their own workers, so that one that hangs does not affect the others."""

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
from penstock.consuming.deadlines.call import Call
from penstock.consuming.deadlines.statistics import Counting
from penstock.errors import ClosedError, HandlerError

logger = logging.getLogger(__name__)

OnLate = Callable[[str, Any, Any, float], object]
"""Called with a late answer: the analyser's name, the argument, the answer, and how many seconds late it was."""


@dataclass(frozen=True, slots=True)
class CallReporter:
    """Reports the ends of calls, for all analysers of one `within`."""

    clock: Clock
    counting: Counting
    on_late: OnLate | None

    def ended(self, name: str, call: Call, begun_s: float, answer: Any, error: BaseException | None) -> None:
        """Record the end of an analyser's call, and pass a late answer on."""
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
    """Answers calls."""

    @property
    def name(self) -> str: ...

    def submit(self, call: Call) -> bool:
        """Submit a call. False when its queue is full."""

    def stop(self) -> None:
        """Take no more calls, and end after those submitted."""

    def join(self, timeout_s: float) -> bool:
        """Wait until it has ended. False if it is still running after this time."""


class ThreadAnalyser:
    """An analyser in threads, for functions that wait or are fast.

    At most `workers` calls run and `queue_size` wait. A call that is over when its turn comes is skipped, so that a
    slow analyser does not compute answers that are no longer needed.
    """

    def __init__(
        self, name: str, function: Callable[[Any], Any], workers: int, queue_size: int, reporter: CallReporter
    ) -> None:
        self.name = name
        self._function = function
        self._queue_size = queue_size
        self._reporter = reporter
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"within-{name}-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Call) -> bool:
        # Two threads may both see the last free slot: the bound limits memory, and one more does no harm.
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
        reporter, name = self._reporter, self.name
        while (call := self._queue.get()) is not None:
            if not call.begin(name):
                reporter.counting.skipped(name)
                continue
            reporter.counting.begun(name)
            begun_s = reporter.clock.monotonic_s()
            answer, error = None, None
            try:
                answer = self._function(call.argument)
                if isinstance(answer, Coroutine):
                    answer.close()
                    raise HandlerError(f"the analyser {name} returned a coroutine: make it an `async def` itself")
            except BaseException as raised:  # fails the call, does not end the worker
                error = raised
            reporter.ended(name, call, begun_s, answer, error)
            del call, answer, error  # an idle worker keeps no references


class LoopAnalyser:
    """An `async def` analyser, on its own event loop in its own thread."""

    def __init__(
        self,
        name: str,
        function: Callable[[Any], Awaitable[Any]],
        workers: int,
        queue_size: int,
        reporter: CallReporter,
    ) -> None:
        self.name = name
        self._function = function
        self._most = workers + queue_size
        self._turns = asyncio.Semaphore(workers)
        self._reporter = reporter
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
        self._loop.call_soon_threadsafe(self._cancel)  # cancels what waits; a call that blocks the loop continues
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
        reporter, name = self._reporter, self.name
        try:
            async with self._turns:
                if not call.begin(name):
                    reporter.counting.skipped(name)
                    return
                reporter.counting.begun(name)
                begun_s = reporter.clock.monotonic_s()
                answer, error = None, None
                try:
                    answer = await self._function(call.argument)
                except BaseException as raised:
                    error = raised
                reporter.ended(name, call, begun_s, answer, error)
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
