"""Workers as processes, for CPU-bound handlers.

Each process has a thread on this side that passes it tasks and waits for the results, so lanes, retries and reports
work as with threads. A process that dies fails the record it was handling, and is replaced.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import multiprocessing.connection
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

from penstock.consuming.handlers import Handler, HandlerArgument
from penstock.consuming.workers.lanes import Task
from penstock.consuming.workers.runners import OutputCollector, Report, Runner, decoder_of, failed
from penstock.errors import HandlerError, WorkerDiedError
from penstock.model import Record

_START_S: Final = 60.0
_SPAWN: Final = multiprocessing.get_context("spawn")

Call = tuple[bytes | None, Record | None]
"""The value of a record, and the record itself if the handler takes it."""
CallResults = tuple[list[Any], BaseException | None, str]
ProcessCall = Callable[[Task, range], CallResults]
CallWrapper = Callable[[ProcessCall, Task, range], CallResults]
"""Handles records of a task until one fails. Returns the handler's results, and the error with its traceback."""


def check_importable(handler: Handler) -> None:
    """Raise HandlerError unless another process can import this handler by name."""
    function = handler.function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if handler.is_async:
        raise HandlerError(
            f"{handler.name} is async: processes=True is for plain functions; async handlers already run concurrently"
        )
    if HandlerArgument.CONTEXT in handler.wants:
        raise HandlerError(f"{handler.name} takes a Context, which stays in its process: take the value or the Record")
    if not module or "<" in name:
        raise HandlerError(
            f"{handler.name} cannot be imported by other processes: define it at the top level of a module, not as "
            "lambda"
        )


class ProcessRunner(Runner):
    """Handles tasks in a process of its own."""

    def __init__(self, handler: Handler, collector: OutputCollector, around: CallWrapper | None = None) -> None:
        """`around` wraps every `ProcessCall`: middlewares and tracing."""
        self._handler = handler
        self._collector = collector
        self._around = around
        self._with_records = HandlerArgument.RECORD in handler.wants
        self._process: Any = None
        self._pipe: multiprocessing.connection.Connection | None = None

    def run(self, task: Task) -> Report:
        report = Report(task, task.low)
        for indexes in task.slices():
            try:
                if self._around is None:
                    results, error, trace = self._call_process(task, indexes)
                else:
                    results, error, trace = self._around(self._call_process, task, indexes)
            except Exception as problem:
                report.calls += 1
                return self._collector.deliver(failed(report, problem))
            report.calls += len(results) + (error is not None)
            for result in results:
                try:
                    if result is not None:
                        self._collector.take(report, result)
                except Exception as problem:
                    return self._collector.deliver(failed(report, problem))
                report.done += 1
            if error is not None:
                report.error, report.trace = error, trace
                break
        return self._collector.deliver(report)

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()  # the process ends when it reads the end of the pipe
        if self._process is not None:
            self._process.join(5)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process = None

    def _call_process(self, task: Task, indexes: range) -> CallResults:
        pipe = self._started()
        # The process answers after each record, so that its death can be attributed to the record it was handling.
        calls: list[Call] = [
            (task.batch.values()[index], task.batch[index] if self._with_records else None) for index in indexes
        ]
        answers: list[Any] = []
        try:
            pipe.send(calls)
            while True:
                kind, content, trace = pipe.recv()
                if kind == "result":
                    answers.append(content)
                elif kind == "error":
                    return answers, content, trace
                else:
                    return answers, None, ""
        except (EOFError, OSError) as error:
            code = self._died()
            problem = WorkerDiedError(f"the process that handled the record ended with {code}")
            problem.__cause__ = error
            return answers, problem, str(problem)

    def _started(self) -> multiprocessing.connection.Connection:
        if self._pipe is not None and self._process is not None and self._process.is_alive():
            return self._pipe
        ours, theirs = _SPAWN.Pipe()
        function = self._handler.function
        place = (function.__module__, function.__qualname__)
        self._process = _SPAWN.Process(
            target=_serve,
            args=(theirs, place, self._handler.wants, pickle.dumps(decoder_of(self._handler))),
            daemon=True,
        )
        self._process.start()
        theirs.close()
        if not ours.poll(_START_S):
            raise WorkerDiedError(f"a process for {self._handler.name} did not start within {_START_S:g} s")
        problem = ours.recv()
        if problem is not None:
            raise HandlerError(f"{self._handler.name} cannot be used by another process: {problem}")
        self._pipe = ours
        return ours

    def _died(self) -> str:
        process, self._process = self._process, None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        process.join(5)
        code = process.exitcode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _serve(
    pipe: multiprocessing.connection.Connection,
    place: tuple[str, str],
    wants: tuple[HandlerArgument, ...],
    decoder: bytes,
) -> None:
    """Answer calls until the pipe is closed. Runs in the process."""
    try:
        function, decode = _function(place), pickle.loads(decoder)
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send(None)
    with contextlib.suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while True:
            _handle_all(pipe, pipe.recv(), function, wants, decode)


def _handle_all(
    pipe: multiprocessing.connection.Connection,
    calls: list[Call],
    function: Callable[..., Any],
    wants: tuple[HandlerArgument, ...],
    decode: Callable[[bytes | None], Any] | None,
) -> None:
    for data, record in calls:
        try:
            value = data if decode is None or HandlerArgument.VALUE not in wants else decode(data)
            arguments = [value if wanted is HandlerArgument.VALUE else record for wanted in wants]
            pipe.send(("result", function(*arguments), ""))
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            try:
                pickle.loads(pickle.dumps(error))
            except Exception:
                error = WorkerDiedError(f"{type(error).__name__}: {error}")  # the original cannot be pickled
            pipe.send(("error", error, trace))
            return
    pipe.send(("done", None, ""))


def _function(place: tuple[str, str]) -> Callable[..., Any]:
    module, qualname = place
    found: Any = sys.modules["__main__"] if module in ("__main__", "__mp_main__") else importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]
