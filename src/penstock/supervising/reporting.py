"""The side of the supervised program: it tells the supervisor its progress, and why it ended.

The environment variable PENSTOCK_SUPERVISOR holds the process id of the supervisor and the file descriptor of a pipe,
onto which one JSON object per line is written: `Report` while the program runs, `LastReport` when an error ends it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from penstock.app import App, defined_apps
from penstock.errors import PenstockError
from penstock.model.processes import die_with
from penstock.supervising.restarts import Cause, cause_of

logger = logging.getLogger(__name__)

VARIABLE: Final = "PENSTOCK_SUPERVISOR"
EVERY_S: Final = 1.0
_SOON_S: Final = 0.2
_SOON_REPORTS: Final = 25
"""The first reports come sooner, so that a program that dies after a few seconds is known to have made progress."""
_LONGEST_ERROR: Final = 800
_LONGEST_PROBLEM: Final = 200
_MOST_PROBLEMS: Final = 4
"""A report that fits into PIPE_BUF is written whole or not at all."""
_PIPELINES: Final = "penstock.spark.pipeline"
_WORKING: Final = frozenset({"running", "finished"})


class Report(msgspec.Struct, tag="running"):
    """What a running program says about itself."""

    progress: int
    """Records finished and rows read or written by this process; only grows."""
    problems: list[str]
    """What keeps it from being ready; empty when it is."""
    stuck: list[str]
    """What only a restart would fix."""


class LastReport(msgspec.Struct, tag="ended"):
    """Why a program ends."""

    progress: int
    error: str
    cause: Cause


AnyReport = Report | LastReport


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Report to the supervisor inside the block, if this process has one, and die with it."""
    told = os.environ.pop(VARIABLE, None)  # not for the processes that this one starts
    if told is None:
        yield
        return
    parent, _, fd = told.partition(":")
    os.set_inheritable(int(fd), False)
    os.set_blocking(int(fd), False)  # a supervisor that hangs must not hang this process
    die_with(int(parent))
    reporter = _Reporter(int(parent), int(fd))
    reporter.start()
    try:
        yield
    except BaseException as error:
        reporter.end(error)
        raise
    finally:
        reporter.stop()


class _Reporter:
    """Writes a report at an interval, in a thread of its own."""

    def __init__(self, parent: int, fd: int) -> None:
        self._parent = parent
        self._fd = fd
        self._progress = _Progress()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-reporting", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def end(self, error: BaseException) -> None:
        """Report the error that ends this program. A chosen exit code needs no report, nor does Ctrl-C."""
        original = error.__cause__ or error if isinstance(error, SystemExit) or _is_exit(error) else error
        if isinstance(original, SystemExit | KeyboardInterrupt) or _is_exit(original):
            return
        text = str(original) if isinstance(original, PenstockError) else f"{type(original).__name__}: {original}"
        self._write(LastReport(self._progress.now(), text[:_LONGEST_ERROR], cause_of(original)))

    def _run(self) -> None:
        reports = 0
        while not self._stopped.wait(_SOON_S if reports < _SOON_REPORTS else EVERY_S):
            reports += 1
            if os.getppid() != self._parent:  # where the kernel does not end orphans
                os._exit(1)
            try:
                report = Report(self._progress.now(), _shortened(_problems()), _shortened(_stuck()))
            except Exception as error:  # what the program is doing just now must not end its reports
                logger.debug("no report: %s", error, exc_info=True)
                continue
            self._write(report)

    def _write(self, report: AnyReport) -> None:
        with self._lock, contextlib.suppress(OSError):  # the supervisor has gone, and this process follows
            os.write(self._fd, msgspec.json.encode(report) + b"\n")


def _shortened(texts: Iterable[str]) -> list[str]:
    return [text[:_LONGEST_PROBLEM] for text in itertools.islice(texts, _MOST_PROBLEMS)]


def _is_exit(error: BaseException) -> bool:
    """Whether it is a `typer.Exit` or a usage error of the command line, which have exit codes of their own."""
    return type(error).__module__.startswith(("click", "typer"))


def _apps() -> Iterator[App]:
    yield from (app for app in defined_apps() if app.started)


def _pipelines() -> list[Any]:
    """The pipelines of this process, without importing Spark for those that have none."""
    if _PIPELINES not in sys.modules:
        return []
    return [each for each in importlib.import_module(_PIPELINES).defined_pipelines() if each.started]


class _Progress:
    """Counts what the apps and pipelines of this process have finished."""

    def __init__(self) -> None:
        self._most: dict[str, int] = {}
        """By app or pipeline. A consumer that ends takes its count with it."""

    def now(self) -> int:
        for number, app in enumerate(_apps()):
            counts = [consumer.counts for consumer in (*app.consumers, *app.gatherers)]
            self._note(f"app {number}", sum(each.succeeded + each.exhausted + each.ignored for each in counts))
        for pipeline in _pipelines():
            queries = pipeline.progress().values()
            self._note(f"pipeline {pipeline.label}", sum(each.rows_read + each.rows_written for each in queries))
        return sum(self._most.values())

    def _note(self, name: str, count: int) -> None:
        self._most[name] = max(count, self._most.get(name, 0))


def _problems() -> Iterable[str]:
    apps, pipelines = list(_apps()), _pipelines()
    if not apps and not pipelines:
        yield "the program is starting"
    for app in apps:
        yield from app.unready()
    for pipeline in pipelines:
        queries = pipeline.progress()
        if not queries:
            yield f"{pipeline.label} is starting"
        for name, query in queries.items():
            if query.state not in _WORKING:
                yield f"{pipeline.label}.{name} is {query.state}" + (f": {query.error}" if query.error else "")


def _stuck() -> Iterator[str]:
    for app in _apps():
        yield from app.stuck()
