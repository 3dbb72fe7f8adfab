"""Jobs: redriving or discarding many dead letters in the background, one at a time per store."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

from penstock.abc import Clock
from penstock.console.views import Person
from penstock.dead_letters.redriving import RedriveReport
from penstock.errors import PenstockError, RedriveRunningError

logger = logging.getLogger(__name__)

KEPT_JOBS: Final = 50
_CLOSING_S: Final = 20.0

Work = Callable[["Job"], RedriveReport]
Kind = Literal["redrive", "discard"]
DONE: Final[dict[Kind, str]] = {"redrive": "redriven", "discard": "discarded"}


class Job:
    """One redrive, or one discarding of many letters: its progress, and how to cancel it."""

    def __init__(
        self,
        spec: str,
        by: Person,
        begun_ms: int,
        *,
        kind: Kind = "redrive",
        to: str | None = None,
        rate_per_s: float | None = None,
        limit: int | None = None,
    ) -> None:
        self.id = secrets.token_hex(6)
        self.spec = spec
        self.by = by
        self.kind: Kind = kind
        self.begun_ms = begun_ms
        self.ended_ms: int | None = None
        self.to = to
        self.rate_per_s = rate_per_s
        self.limit = limit
        self.total: int | None = None
        """How many letters there were when it began; None until they are counted."""
        self.report = RedriveReport()
        self.discarded = 0
        self.error: str | None = None
        self.is_done = False
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Job], object]] = []
        self._ended = threading.Event()

    @property
    def done(self) -> int:
        return self.report.redriven if self.kind == "redrive" else self.discarded

    @property
    def seen(self) -> int:
        """How many letters it has processed, whatever the outcome."""
        return self.done + self.report.failed + self.report.gone

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End it in good order: sends in progress are finished, the other letters stay waiting."""
        self._cancelled.set()

    def check(self) -> None:
        """Called by the redrive: raises KeyboardInterrupt once it is cancelled."""
        if self._cancelled.is_set():
            raise KeyboardInterrupt

    def pause(self, duration_s: float) -> None:
        """Wait for the rate limit, at most until it is cancelled."""
        self._cancelled.wait(duration_s)
        self.check()

    def when_done(self, callback: Callable[[Job], object]) -> None:
        """Call it when the job has ended; at once if it has."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback(self)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; whether it has ended."""
        return self._ended.wait(timeout_s)

    def outcome(self) -> str:
        report = self.report
        of = "" if self.total is None else f" of {self.total:,}"
        parts = [f"{self.done:,}{of} {DONE[self.kind]}"]
        if report.failed:
            parts.append(f"{report.failed:,} failed")
        if report.gone:
            parts.append(f"{report.gone:,} settled by others")
        if report.interrupted:
            parts.append("cancelled")
        if self.error is not None:
            parts.append(self.error)
        elif report.gave_up:
            parts.append("stopped, as every send failed")
        return ", ".join(parts)

    def end(self, ended_ms: int, error: str | None) -> None:
        with self._lock:
            self.error = error
            self.ended_ms = ended_ms
            self.is_done = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
        self._ended.set()


class JobClock:
    """The clock of one job: its pauses end when the job is cancelled."""

    def __init__(self, clock: Clock, job: Job) -> None:
        self._clock = clock
        self._job = job

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def sleep(self, duration_s: float) -> None:
        self._job.pause(duration_s)


class Jobs:
    """The jobs of this console. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: list[Job] = []
        self._running: dict[str, Job] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._is_closed = False

    def start(self, job: Job, place: str, begin: Callable[[Job], Work]) -> None:
        """Run it in its own thread. Raises RedriveRunningError when this store has a running one.

        `begin` returns the work. It is called here, so that what it raises reaches the caller.
        """
        with self._lock:
            if self._is_closed:
                raise RedriveRunningError("the console is closing: start again when it is back")
            running = self._running.get(place)
            if running is not None:
                what = "redriving" if running.kind == "redrive" else "discarding letters of"
                raise RedriveRunningError(
                    f"{running.by.name} ({running.by.address}) is {what} {job.spec} already: {running.outcome()}. "
                    "Wait until it has ended, or cancel it"
                )
            self._running[place] = job
        try:
            work = begin(job)
        except BaseException:
            with self._lock:
                del self._running[place]
            raise
        thread = threading.Thread(target=self._run, args=(job, place, work), name=f"{job.kind}-{job.id}", daemon=True)
        with self._lock:
            self._threads[job.id] = thread
            running_longest = [each for each in self._jobs[KEPT_JOBS:] if not each.is_done]
            self._jobs = [job, *self._jobs[:KEPT_JOBS], *running_longest]
            if self._is_closed:
                job.cancel()
            thread.start()

    def all(self) -> list[Job]:
        """Newest first: the running ones, and the last that have ended."""
        with self._lock:
            return list(self._jobs)

    def find(self, id: str) -> Job | None:
        return next((job for job in self.all() if job.id == id), None)

    def close(self) -> None:
        """Cancel the running jobs, and wait for their end."""
        with self._lock:
            self._is_closed = True
            running, threads = list(self._running.values()), list(self._threads.values())
        for job in running:
            job.cancel()
        for thread in threads:
            thread.join(_CLOSING_S)

    def _run(self, job: Job, place: str, work: Work) -> None:
        error: str | None = None
        try:
            job.report = work(job)
            if job.report.gave_up:
                error = "it stopped, as every send failed: check that the stream accepts records, and redrive again"
        except KeyboardInterrupt:
            job.report = replace(job.report, interrupted=True)
        except PenstockError as failure:
            error = str(failure)
        except Exception as failure:
            logger.exception("the %s of %s failed", job.kind, job.spec)
            error = f"{type(failure).__name__}: {failure}"
        finally:
            with self._lock:
                self._running.pop(place, None)
                self._threads.pop(job.id, None)
            job.end(self._clock.wall_ms(), error)
