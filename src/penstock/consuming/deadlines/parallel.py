"""Deadlines: run analysers in parallel and return the results that are there when time is up."""

from __future__ import annotations

import asyncio
import datetime
import functools
import inspect
import logging
import math
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from penstock.abc import Clock
from penstock.consuming.deadlines.analyser import Analyser, CallReporter, LoopAnalyser, OnLate, ThreadAnalyser
from penstock.consuming.deadlines.call import Call, Result, Why
from penstock.consuming.deadlines.statistics import AnalyserStatistics, Counting, DeadlineStatistics, Percentiles
from penstock.errors import ClosedError, ConfigError, HandlerError, WorkerDiedError
from penstock.model.clock import SystemClock
from penstock.model.closing import Closing
from penstock.model.observing import OBSERVED

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 5.0
_NICE: Final = 10
_READY: Final = "ready"


class ProcessFunction:
    """A function that is called in another process. Each calling thread has a process of its own.

    A process that dies during a call fails that call, and is replaced for the next one.
    """

    def __init__(self, name: str, function: Callable[[Any], Any], count: int) -> None:
        self._name = name
        try:
            pickle.dumps(function)
        except Exception as error:
            raise ConfigError(
                f"the analyser {name} cannot be pickled: {error}. Define it with def at the top level of a module"
            ) from error
        self._function = function
        self._local = threading.local()
        self._lock = threading.Lock()
        self._closed = False
        self._workers: list[_Worker] = []
        self._spare: list[_Worker] = []
        try:
            for _ in range(count):
                self._spare.append(self._start())
            for worker in self._spare:
                worker.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def __call__(self, argument: Any) -> Any:
        worker: _Worker | None = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._local.worker = self._take()
        try:
            request = pickle.dumps(argument, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise ConfigError(
                f"the argument, a {type(argument).__name__}, cannot be pickled for the process of {self._name}: {error}"
            ) from error
        try:
            return worker.call(request)
        except WorkerDiedError:
            self._local.worker = None
            self._forget(worker)
            if self._closed:
                raise ClosedError(f"the analyser {self._name} was closed during a call") from None
            raise

    def close(self) -> None:
        """Kill the processes at once; running calls fail with ClosedError."""
        with self._lock:
            self._closed = True
            workers, self._workers = self._workers, []
            spare, self._spare = self._spare, []
        for worker in workers:
            worker.kill()
        for worker in spare:
            worker.close_pipe()

    def _take(self) -> _Worker:
        with self._lock:
            worker = self._spare.pop() if self._spare else None
        if worker is None:
            worker = self._start()
            worker.wait_until_ready()
        return worker

    def _start(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise ClosedError(f"the analyser {self._name} is closed")
            worker = _Worker(self._name, self._function)
            self._workers.append(worker)
            return worker

    def _forget(self, worker: _Worker) -> None:
        worker.kill()
        worker.close_pipe()
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)


class _Worker:
    """One process, which answers calls one after the other."""

    def __init__(self, name: str, function: Callable[[Any], Any]) -> None:
        self._name = name
        # Never forked: this process has threads, and a copy might wait for ever for a lock that one of them held.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, function), name=f"within-{name}", daemon=True)
        try:
            self._process.start()
        finally:
            theirs.close()

    def wait_until_ready(self) -> None:
        try:
            if self._pipe.poll(_START_TIMEOUT_S) and self._pipe.recv() == _READY:
                return
        except (EOFError, OSError):
            self._process.join(_START_TIMEOUT_S)
        raise WorkerDiedError(
            f"the process of the analyser {self._name} did not start (exit code {self._process.exitcode}): can its "
            'module be imported, and does the program start under `if __name__ == "__main__":`?'
        )

    def call(self, request: bytes) -> Any:
        try:
            self._pipe.send_bytes(request)
            failed, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(1.0)
            raise WorkerDiedError(
                f"the process of the analyser {self._name} died during a call (exit code "
                f"{self._process.exitcode}); it is replaced"
            ) from error
        if failed:
            raise answer
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.join(_END_TIMEOUT_S)

    def close_pipe(self) -> None:
        """Only for the thread that uses it, or when none does: its file descriptor may be reused right after."""
        self._pipe.close()


def _serve(pipe: Connection, function: Callable[[Any], Any]) -> None:
    """Answer calls until the owner is gone. Runs in the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the owner ends this one
    # When every core computes, a caller whose time is up must get one at once, not at the end of a time slice.
    os.nice(_NICE)
    pipe.send(_READY)
    while True:  # until the pipe is closed
        try:
            request = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            reply: tuple[bool, Any] = (False, function(pickle.loads(request)))
        except Exception as error:
            error.add_note(f"In the process of the analyser:\n{traceback.format_exc()}")
            reply = (True, error)
        try:
            pipe.send(reply)
        except OSError:
            return
        except Exception as error:  # the answer, or the error, cannot be pickled
            what = f"an error, {reply[1]!r}," if reply[0] else f"an answer of type {type(reply[1]).__name__}"
            pipe.send((True, TypeError(f"{what} cannot be pickled by the process of an analyser: {error}")))


__all__ = ["AnalyserStatistics", "Deadline", "DeadlineStatistics", "OnLate", "Percentiles", "Result", "Why", "within"]

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S: Final = 5.0
_THREADS_EACH: Final = 4


def within(
    deadline: float | datetime.timedelta,
    *analysers: Callable[[Any], Any],
    on_late: OnLate | None = None,
    workers: int | None = None,
    queue_size: int = 64,
    processes: bool | Collection[str] = False,
    clock: Clock | None = None,
    **named: Callable[[Any], Any],
) -> Deadline:
    """Run analysers in parallel, for at most `deadline` (seconds or a timedelta) per call.

        fraud = ps.within(0.020, velocity, geo, amount)
        result = fraud(transaction)
        if result.complete: ...

    Each analyser takes the argument and returns an answer. It is `def` or `async def`, and named after its function, or
    by the keyword it is passed as. Each has its own `workers` (4 threads by default; with processes, its part of the
    cores) and at most `queue_size` waiting calls, so one that hangs does not affect the others.

    CPU-bound functions block all threads, callers included: those named in `processes` (True: all) run in processes.
    They must be defined at the top level of a module, and their arguments and answers must be picklable.
    `async def` analysers run on their own event loop, not on the caller's.

    `on_late(name, argument, answer, late_by_s)` is called, on a worker, with answers that come too late.
    """
    allowed_s = _seconds(deadline)
    functions = _named(analysers, named)
    for option, number in (("workers", 1 if workers is None else workers), ("queue_size", queue_size)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigError(f"within: {option}={number!r} must be an integer >= 1")
    if on_late is not None and not callable(on_late):
        raise ConfigError(f"within: on_late={on_late!r} must be a function")
    in_processes = _in_processes(processes, functions)
    return Deadline(allowed_s, functions, in_processes, workers, queue_size, on_late, clock or SystemClock())


class Deadline(Closing):
    """Analysers with a deadline. Thread-safe. Created by `within`; closed by `close` or `with`."""

    def __init__(
        self,
        allowed_s: float,
        functions: dict[str, Callable[[Any], Any]],
        in_processes: frozenset[str],
        workers: int | None,
        queue_size: int,
        on_late: OnLate | None,
        clock: Clock,
    ) -> None:
        self.allowed_s = allowed_s
        self.names = tuple(functions)
        self._clock = clock
        self._counting = Counting(self.names, allowed_s)
        self._closed = False
        self._pid = os.getpid()
        self._analysers: list[Analyser] = []
        self._processes: list[ProcessFunction] = []
        self._forgotten = weakref.finalize(self, _clean_up, self._analysers, self._processes)
        # Not needed at the end of the program, which ends its threads and processes.
        self._forgotten.atexit = False
        OBSERVED.enter(self._counting)
        self._left = weakref.finalize(self, OBSERVED.leave, self._counting)
        self._left.atexit = False
        reporter = CallReporter(clock, self._counting, on_late)
        try:
            for name, function in functions.items():
                count = workers or (_processes_each(len(in_processes)) if name in in_processes else _THREADS_EACH)
                if name in in_processes:
                    function = ProcessFunction(name, function, count)
                    self._processes.append(function)
                kind = LoopAnalyser if _is_async(function) else ThreadAnalyser
                self._analysers.append(kind(name, function, count, queue_size, reporter))
        except BaseException:
            self.close(0.0)
            raise

    def __call__(self, argument: Any) -> Result:
        """Ask all analysers, and return the answers when all are done or time is up."""
        call = Call(argument, self.names, self._clock.monotonic_s(), self.allowed_s)
        self._submit(call)
        call.wait(self._clock)
        return self._result(call)

    async def call_async(self, argument: Any) -> Result:
        """The same without blocking the event loop. The deadline follows the loop's clock."""
        loop = asyncio.get_running_loop()
        settled = asyncio.Event()
        call = Call(argument, self.names, self._clock.monotonic_s(), self.allowed_s, lambda: _tell(loop, settled))
        self._submit(call)
        try:
            async with asyncio.timeout(max(0.0, call.deadline_s - self._clock.monotonic_s())):
                await settled.wait()
        except TimeoutError:
            logger.debug("the deadline of %g s has passed", self.allowed_s)
        finally:
            result = self._result(call)
        return result

    @property
    def statistics(self) -> DeadlineStatistics:
        """Counts since the start."""
        return self._counting.snapshot()

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """End all workers within `timeout_s`, all together. Those that take longer are logged and abandoned, or killed
        if they are processes."""
        if self._closed or self._pid != os.getpid():  # a forked process has none of the threads
            return
        self._closed = True
        self._forgotten.detach()
        self._left()
        until_s = time.monotonic() + timeout_s
        analysers = self._analysers
        for analyser in analysers:
            analyser.stop()
        hanging = [each.name for each in analysers if not each.join(max(0.0, until_s - time.monotonic()))]
        for function in self._processes:
            function.close()
        if hanging:
            logger.warning("analysers still running %g s after close: %s", timeout_s, ", ".join(hanging))

    def __repr__(self) -> str:
        return f"<within {self.allowed_s:g} s: {', '.join(self.names)}{' (closed)' if self._closed else ''}>"

    def _submit(self, call: Call) -> None:
        if self._closed:
            raise ClosedError(f"{self!r} was called after close: create another with within()")
        if self._pid != os.getpid():
            raise ClosedError(f"{self!r} belongs to process {self._pid}: create one in this process, too")
        for analyser in self._analysers:
            if not analyser.submit(call):
                call.reject(analyser.name)

    def _result(self, call: Call) -> Result:
        result = call.take_result(self.names, self._clock.monotonic_s())
        if self._counting.called(result):
            logger.warning(
                "%r returned after %.1f ms: if its analysers are CPU-bound, name them in processes=...; otherwise the "
                "machine is overloaded. Logged once; statistics.overdue counts further ones",
                self,
                result.took_s * 1000,
            )
        return result


def _clean_up(analysers: list[Analyser], processes: list[ProcessFunction]) -> None:
    """Clean up after a deadline that was garbage collected without `close`."""
    for analyser in analysers:
        analyser.stop()
    for function in processes:
        function.close()


def _processes_each(analysers: int) -> int:
    """Enough to keep all cores busy when all analysers in processes compute at once."""
    return min(_THREADS_EACH, max(1, (os.cpu_count() or 1) // analysers))


def _tell(loop: asyncio.AbstractEventLoop, settled: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(settled.set)
    except RuntimeError:  # the loop was closed meanwhile, so no caller waits
        logger.debug("an event loop was closed before its analysers had answered")


def _seconds(deadline: object) -> float:
    if isinstance(deadline, datetime.timedelta):
        deadline = deadline.total_seconds()
    if callable(deadline):
        raise ConfigError("within: the deadline is missing: pass it first, in seconds: within(0.020, ...)")
    if isinstance(deadline, bool) or not isinstance(deadline, int | float):
        raise ConfigError(f"within: the deadline {deadline!r} must be a number of seconds or a timedelta")
    if not math.isfinite(deadline) or deadline <= 0:
        raise ConfigError(f"within: the deadline {deadline!r} must be positive and finite")
    return float(deadline)


def _named(analysers: Collection[object], named: dict[str, Any]) -> dict[str, Callable[[Any], Any]]:
    functions: dict[str, Callable[[Any], Any]] = {}
    for function in analysers:
        if not callable(function):
            raise HandlerError(f"within: {function!r} is not an analyser: pass functions")
        name = getattr(function, "__name__", "")
        if not name.isidentifier():
            raise HandlerError(f"within: {function!r} has no name: pass it as a keyword, name=function")
        if name in functions:
            raise HandlerError(f"within: two analysers are called {name}: pass one as a keyword, other_name={name}")
        functions[name] = function
    for name, function in named.items():
        if not callable(function):
            raise HandlerError(f"within: {name}={function!r} is neither an analyser nor an option")
        if name in functions:
            raise HandlerError(f"within: two analysers are called {name}: rename one of them")
        functions[name] = function
    if not functions:
        raise HandlerError("within: there are no analysers: pass functions after the deadline")
    for name, function in functions.items():
        _check_takes_one_argument(name, function)
    return functions


def _check_takes_one_argument(name: str, function: Callable[[Any], Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have no signature
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise HandlerError(
            f"within: the analyser {name}{signature} cannot be called with one argument: {error}"
        ) from error


def _in_processes(processes: object, functions: dict[str, Callable[[Any], Any]]) -> frozenset[str]:
    if isinstance(processes, str):
        processes = (processes,)
    if not isinstance(processes, bool | Collection):
        raise ConfigError(f"within: processes={processes!r} must be True or the names of analysers")
    chosen = frozenset((functions if processes else ()) if isinstance(processes, bool) else processes)
    if unknown := sorted(map(repr, chosen - functions.keys())):
        raise ConfigError(f"within: processes names {', '.join(unknown)}; the analysers are {', '.join(functions)}")
    for name in chosen:
        if _is_async(functions[name]):
            raise HandlerError(f"within: the analyser {name} is async def and cannot run in a process: make it def")
    return chosen


def _is_async(function: Callable[[Any], Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
