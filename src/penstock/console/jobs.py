"""Jobs: what is done with many dead letters, and runs on while people do something else. One at a time for a place."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

from penstock.abc import Clock
from penstock.console.views import Person
from penstock.consuming.dead_letters.redriving import RedriveReport
from penstock.errors import PenstockError, RedriveRunningError

logger = logging.getLogger(__name__)

KEPT_JOBS: Final = 50
_CLOSING_S: Final = 20.0

Work = Callable[["Job"], RedriveReport]
Kind = Literal["redrive", "discard"]
DONE: Final[dict[Kind, str]] = {"redrive": "redriven", "discard": "discarded"}


class Job:
    """One redrive, or one discarding of many letters: how far it has come, and how to end it."""

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
        """Why it ended before its end, if it did."""
        self.is_done = False
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Job], object]] = []
        self._ended = threading.Event()

    @property
    def done(self) -> int:
        """How many letters were redriven, or discarded."""
        return self.report.redriven if self.kind == "redrive" else self.discarded

    @property
    def seen(self) -> int:
        """How many letters it is past, whatever became of them."""
        return self.done + self.report.failed + self.report.gone

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End it in good order: what is under way is waited for, the rest stays waiting."""
        self._cancelled.set()

    def check(self) -> None:
        """Called by the redrive: ends it as Ctrl-C would once it is cancelled."""
        if self._cancelled.is_set():
            raise KeyboardInterrupt

    def pause(self, duration_s: float) -> None:
        """Wait, as a rate limit wants it, but not for longer than until it is cancelled."""
        self._cancelled.wait(duration_s)
        self.check()

    def when_done(self, callback: Callable[[Job], object]) -> None:
        """Call it once it has ended; now, if it has."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback(self)

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended by then."""
        return self._ended.wait(timeout_s)

    def outcome(self) -> str:
        """How it stands, in a sentence."""
        report = self.report
        of = "" if self.total is None else f" of {self.total:,}"
        parts = [f"{self.done:,}{of} {DONE[self.kind]}"]
        if report.failed:
            parts.append(f"{report.failed:,} failed")
        if report.gone:
            parts.append(f"{report.gone:,} dealt with by others")
        if report.interrupted:
            parts.append("cancelled")
        if self.error is not None:
            parts.append(self.error)
        elif report.gave_up:
            parts.append("stopped, as nothing came through")
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
    """The time for one job: its pauses end when it is cancelled."""

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
    """The jobs of this console. Any thread may use it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: list[Job] = []
        self._running: dict[str, Job] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._is_closed = False

    def start(self, job: Job, place: str, begin: Callable[[Job], Work]) -> None:
        """Run it in a thread of its own. RedriveRunningError when there is one at this place.

        `begin` gives what is to be done, and is called here: what it raises, whoever begins the job is told at once.
        """
        with self._lock:
            if self._is_closed:
                raise RedriveRunningError("the console is closing: begin again when it is back")
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
        """Newest first: those that run, and the last that have ended."""
        with self._lock:
            return list(self._jobs)

    def find(self, id: str) -> Job | None:
        return next((job for job in self.all() if job.id == id), None)

    def close(self) -> None:
        """Cancel what runs, and wait until it has ended."""
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
                error = "it stopped, as nothing came through: see that the stream takes records, and redrive again"
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
