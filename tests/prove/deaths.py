"""Killing one process after the other, each at a step or a moment, until one may live and finish."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

KILLED: Final = -signal.SIGKILL
"""The exit code of a process that was killed."""
END_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Death:
    """A process kills itself at the nth call of an operation, before or after it takes effect."""

    at: str
    nth: int
    after: bool

    def __str__(self) -> str:
        return f"{self.step} number {self.nth}"

    @property
    def step(self) -> str:
        return f"{'after' if self.after else 'before'} {self.at}"


@dataclass(frozen=True, slots=True)
class Moment:
    """A process is killed this long after its start, whatever it is doing."""

    after_s: float

    def __str__(self) -> str:
        return f"{self.after_s:.3f} s after its start"


Kill = Death | Moment


class Victim(Protocol):
    """A started process, as of `multiprocessing`."""

    @property
    def exitcode(self) -> int | None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def kill(self) -> None: ...


@dataclass(slots=True)
class Ending:
    """The sequence of processes until one finished."""

    runs: int = 0
    kills: list[Kill] = field(default_factory=list)
    """The kills that hit, in order. A step that is not reached, or a moment that comes too late, kills nothing."""
    exit_code: int | None = None
    """Of the last process, which was not killed: 0 if all went well, None if it hung and was abandoned."""

    @property
    def problem(self) -> str:
        """What was wrong with the last process, or empty."""
        if self.exit_code == 0:
            return ""
        what = "did not end" if self.exit_code is None else f"ended with exit code {self.exit_code}"
        return f"process number {self.runs}, which was not killed, {what}"

    @property
    def story(self) -> str:
        """The kills that hit, in order, for debugging."""
        return ", ".join(map(str, self.kills)) or "nobody"


def until_one_ends(
    start: Callable[[Death | None], Victim], kills: deque[Kill], timeout_s: float = END_TIMEOUT_S
) -> Ending:
    """Start processes one after the other, each killed by the next of `kills`, which is removed from the left. Returns
    after the first process that is not killed; when no kill is left, the next one may live."""
    ending = Ending()
    while True:
        kill = kills.popleft() if kills else None
        ending.runs += 1
        process = start(kill if isinstance(kill, Death) else None)
        if isinstance(kill, Moment):
            process.join(kill.after_s)
            if process.exitcode is None:
                process.kill()
        process.join(timeout_s)
        ending.exit_code = process.exitcode
        if process.exitcode is None:
            process.kill()
            process.join()
            return ending
        if kill is None or process.exitcode != KILLED:
            return ending
        ending.kills.append(kill)
