"""Workers: threads, one asyncio loop, or processes that take tasks from the lanes and report the outcome."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from penstock.consuming.handlers import Handler
from penstock.consuming.workers.lanes import Lanes, Task
from penstock.consuming.workers.runners import CallBuilder, OutputCollector, Report, Runner, failed

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.5

SendReport = Callable[[Report], None]


class Workers(Protocol):
    """Handle tasks."""

    def start(self) -> None: ...

    def replace_one(self) -> None:
        """Add a worker for one that hangs in its handler."""

    def stop(self, timeout_s: float) -> int:
        """Wait for running tasks, once the lanes are closed. Returns how many did not end in time."""


def run_one(runner: Runner, task: Task, lanes: Lanes, send_report: SendReport) -> None:
    """Handle a task, report it, and release its lane, or block it until the loop has decided about a failure."""
    try:
        report = runner.run(task)
    except BaseException as error:
        lanes.hold(task)
        send_report(failed(Report(task, task.low, is_broken=True), error))
        raise
    finish_task(report, lanes, send_report)


def finish_task(report: Report, lanes: Lanes, send_report: SendReport) -> None:
    task = report.task
    if report.error is not None:
        task.lap(report.done - task.low + 1)
        lanes.hold(task)
        send_report(report)
    elif lanes.saves_each_task and not report.is_saved:
        task.lap(report.done - task.low)
        lanes.await_save(task)
        send_report(report)
    elif report.done < task.high:
        high, task.high = task.high, report.done
        send_report(report)
        lanes.leave(task, high)
    else:
        if task.laps is not None:
            task.lap(report.done - task.low)
        send_report(report)  # before the next task of the lane can be reported
        lanes.done(task)


class ThreadWorkers:
    """Threads, each with a runner of its own."""

    def __init__(
        self, count: int, make_runner: Callable[[], Runner], lanes: Lanes, send_report: SendReport, name: str
    ) -> None:
        self._count = count
        self._make_runner = make_runner
        self._lanes = lanes
        self._send_report = send_report
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
        reserved = self._lanes.add_worker()
        runner = self._make_runner()
        try:
            while True:
                task = self._lanes.take(_LOOK_AGAIN_S, reserved)
                if task is not None:
                    run_one(runner, task, self._lanes, self._send_report)
                elif self._lanes.is_closed:
                    return
        finally:
            runner.close()


class AsyncRunner:
    """For `async def` handlers: the records of a lane in order, many lanes concurrently."""

    def __init__(self, handler: Handler, collector: OutputCollector, call_builder: CallBuilder) -> None:
        self._function = handler.function
        self._collector = collector
        self._call_builder = call_builder

    async def run(self, task: Task) -> Report:
        report = Report(task, task.low)
        call_for = self._call_builder.calls(task)
        for index in itertools.chain.from_iterable(task.slices()):
            try:
                arguments, context = call_for(index)
                report.calls += 1
                result = await self._function(*arguments)
                self._collector.finish(report, task.assigned, context, result)
            except Exception as error:
                failed(report, error)
                break
            report.done = index + 1
        if report.outputs:
            return await asyncio.to_thread(self._collector.deliver, report)
        return report


class AsyncWorkers:
    """One thread with an event loop, which runs up to `count` tasks concurrently."""

    def __init__(self, count: int, runner: AsyncRunner, lanes: Lanes, send_report: SendReport, name: str) -> None:
        self._count = count
        self._runner = runner
        self._lanes = lanes
        self._send_report = send_report
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
            except RuntimeError:  # it has just ended
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
        reserved = self._lanes.add_worker()
        while True:
            self._ready.clear()
            while len(under_way) < self._count and (task := self._lanes.take(0.0, reserved)) is not None:
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
        """Until the next held lane is released, but not long."""
        due_s = self._lanes.next_due_s()
        return _LOOK_AGAIN_S if due_s is None else max(0.001, min(_LOOK_AGAIN_S, due_s - self._lanes.now_s()))

    async def _run(self, task: Task) -> None:
        try:
            report = await self._runner.run(task)
        except BaseException as error:
            self._lanes.hold(task)
            self._send_report(failed(Report(task, task.low, is_broken=True), error))
            raise
        finish_task(report, self._lanes, self._send_report)
