"""Workers: threads, one asyncio loop, or processes, that take tasks out of the lanes and report what became of them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from penstock.consuming.handlers import Handler
from penstock.consuming.lanes import Lanes, Task
from penstock.consuming.runners import Caller, Gather, Report, Runner, failed

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.5

Tell = Callable[[Report], None]


class Workers(Protocol):
    """Whoever handles tasks."""

    def start(self) -> None: ...

    def replace_one(self) -> None:
        """A worker hangs in its handler: another one takes its place."""

    def stop(self, timeout_s: float) -> int:
        """Let them finish what they have in hand, once the lanes are closed. Gives how many did not in time."""


def run_one(runner: Runner, task: Task, lanes: Lanes, tell: Tell) -> None:
    """Handle a task, report it, and free its lane, or hold it until the loop has decided about a failure."""
    try:
        report = runner.run(task)
    except BaseException as error:
        lanes.hold(task)
        tell(failed(Report(task, task.low, is_broken=True), error))
        raise
    settle(report, lanes, tell)


def settle(report: Report, lanes: Lanes, tell: Tell) -> None:
    task = report.task
    if report.error is not None:
        task.lap(report.done - task.low + 1)
        lanes.hold(task)
        tell(report)
    elif report.done < task.high:
        high, task.high = task.high, report.done
        tell(report)
        lanes.leave(task, high)
    else:
        if task.laps is not None:
            task.lap(report.done - task.low)
        tell(report)  # before the next task of the lane can be reported
        lanes.done(task)


class ThreadWorkers:
    """Threads, each with a runner of its own."""

    def __init__(self, count: int, make_runner: Callable[[], Runner], lanes: Lanes, tell: Tell, name: str) -> None:
        self._count = count
        self._make_runner = make_runner
        self._lanes = lanes
        self._tell = tell
        self._name = name
        self._threads: list[threading.Thread] = []
        self._replaced = 0

    def start(self) -> None:
        for _ in range(self._count):
            self._start_one()

    def replace_one(self) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if self._replaced < self._count * 4:
            self._replaced += 1
            self._start_one()
        else:
            logger.error("%s: %d workers hang in their handlers; no more are started", self._name, self._replaced)

    def stop(self, timeout_s: float) -> int:
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return sum(thread.is_alive() for thread in self._threads)

    def _start_one(self) -> None:
        number = len(self._threads)
        thread = threading.Thread(target=self._work, name=f"penstock-{self._name}-{number}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        hand = self._lanes.hand()
        runner = self._make_runner()
        try:
            while True:
                task = self._lanes.take(_LOOK_AGAIN_S, hand)
                if task is not None:
                    run_one(runner, task, self._lanes, self._tell)
                elif self._lanes.is_closed:
                    return
        finally:
            runner.close()


class AsyncRunner:
    """For `async def` handlers: one record of a lane after the other, many lanes at a time."""

    def __init__(self, handler: Handler, gather: Gather, caller: Caller) -> None:
        self._function = handler.function
        self._gather = gather
        self._caller = caller

    async def run(self, task: Task) -> Report:
        report = Report(task, task.low)
        call_for = self._caller.calls(task)
        for index in itertools.chain.from_iterable(task.slices()):
            try:
                arguments, context = call_for(index)
                report.calls += 1
                result = await self._function(*arguments)
                self._gather.finish(report, task.share, context, result)
            except Exception as error:
                failed(report, error)
                break
            report.done = index + 1
        if report.outputs:
            return await asyncio.to_thread(self._gather.deliver, report)
        return report


class AsyncWorkers:
    """One thread with an event loop, in which up to `count` tasks are under way."""

    def __init__(self, count: int, runner: AsyncRunner, lanes: Lanes, tell: Tell, name: str) -> None:
        self._count = count
        self._runner = runner
        self._lanes = lanes
        self._tell = tell
        self._loop = asyncio.new_event_loop()
        self._ready = asyncio.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"penstock-{name}-async", daemon=True)

    def start(self) -> None:
        self._lanes.on_ready = self._wake
        self._thread.start()

    def replace_one(self) -> None:
        self._count += 1

    def stop(self, timeout_s: float) -> int:
        self._wake()
        self._thread.join(timeout_s)
        return int(self._thread.is_alive())

    def _wake(self) -> None:
        if not self._ended.is_set():
            try:
                self._loop.call_soon_threadsafe(self._ready.set)
            except RuntimeError:  # it ended just now
                return

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._pump())
        finally:
            self._ended.set()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _pump(self) -> None:
        under_way: set[asyncio.Task[None]] = set()
        hand = self._lanes.hand()
        while True:
            self._ready.clear()
            while len(under_way) < self._count and (task := self._lanes.take(0.0, hand)) is not None:
                running = self._loop.create_task(self._run(task))
                under_way.add(running)
                running.add_done_callback(under_way.discard)
                running.add_done_callback(lambda _: self._ready.set())
            if self._lanes.is_closed and not under_way:
                return
            try:
                await asyncio.wait_for(self._ready.wait(), self._wait_s())
            except TimeoutError:
                continue

    def _wait_s(self) -> float:
        """Until a lane that is held may go on, but not for long."""
        due_s = self._lanes.next_due_s()
        return _LOOK_AGAIN_S if due_s is None else max(0.001, min(_LOOK_AGAIN_S, due_s - self._lanes.now_s()))

    async def _run(self, task: Task) -> None:
        try:
            report = await self._runner.run(task)
        except BaseException as error:
            self._lanes.hold(task)
            self._tell(failed(Report(task, task.low, is_broken=True), error))
            raise
        settle(report, self._lanes, self._tell)
