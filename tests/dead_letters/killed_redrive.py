"""Redrives in processes of their own, which are killed on their way."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Final

import penstock
from penstock.dead_letters import open_dead_letters, redrive
from penstock.model import DeadLetterFilter
from penstock.testing.crashing import CrashPoint
from penstock.testing.interception import InterceptedLetters, InterceptedStream
from tests.dead_letters.hasty_clock import HastyClock
from tests.forking import FORKING

PAGE: Final = 3
URL_VARIABLE: Final = "PENSTOCK_TEST_REDRIVE_URL"
END_TIMEOUT_S: Final = 60.0


def redrive_all(url: str, spec: str, at: str, nth: int, after: bool, said: Connection) -> None:
    """What the child does. Letters and streams share one crash point, and count together."""
    point = CrashPoint(at, nth, after)
    with penstock.connect(url) as streams:
        between = InterceptedStream(streams, point)
        letters = open_dead_letters(spec, between)
        report = redrive(
            InterceptedLetters(letters, point), between, DeadLetterFilter(), clock=HastyClock(), rate_per_s=PAGE
        )
        said.send((report.redriven, dict(point.steps)))
        letters.close()


@dataclass(frozen=True, slots=True)
class Redriving:
    """A redrive that runs in a child process."""

    process: ForkServerProcess
    said: Connection

    def wait_until_killed(self, timeout_s: float = END_TIMEOUT_S) -> None:
        assert self._code(timeout_s) == -signal.SIGKILL, "the redrive ended before it came to where it was to be killed"

    def wait_until_done(self, timeout_s: float = END_TIMEOUT_S) -> tuple[int, dict[str, int]]:
        """How many letters it redrove, and how often it called what."""
        assert self.said.poll(timeout_s), "the redrive did not end"
        redriven, steps = self.said.recv()
        assert self._code(timeout_s) == 0
        return redriven, steps

    def _code(self, timeout_s: float) -> int | None:
        self.process.join(timeout_s)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join(timeout_s)
        self.process.close()
        self.said.close()
        return code


def run_redrive(spec: str, at: str, nth: int, after: bool) -> Redriving:
    ours, theirs = FORKING.Pipe(duplex=False)
    arguments = (os.environ[URL_VARIABLE], spec, at, nth, after, theirs)
    process = FORKING.Process(target=redrive_all, args=arguments, daemon=True)
    process.start()
    theirs.close()
    return Redriving(process, ours)
