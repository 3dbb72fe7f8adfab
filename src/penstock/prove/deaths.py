"""Killing one process after the other, each at a step or at a moment, until one is let live and comes to its end."""

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
    """A process kills itself at the nth call of an operation, before it takes effect or after it."""

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
    """A process is killed so long after it was started, whatever it is doing."""

    after_s: float

    def __str__(self) -> str:
        return f"{self.after_s:.3f} s after its start"


Kill = Death | Moment


class Victim(Protocol):
    """A process that was started: what `multiprocessing` makes."""

    @property
    def exitcode(self) -> int | None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def kill(self) -> None: ...


@dataclass(slots=True)
class Ending:
    """How it went on until a process came to its end."""

    runs: int = 0
    kills: list[Kill] = field(default_factory=list)
    """Those that hit, in turn. A step that is not reached, and a moment that comes too late, kill nobody."""
    exit_code: int | None = None
    """Of the last process, which nobody killed: 0 if all went well, None if it had to be given up because it hung."""

    @property
    def problem(self) -> str:
        """What was wrong with the last process, or nothing."""
        if self.exit_code == 0:
            return ""
        what = "did not come to an end" if self.exit_code is None else f"ended with exit code {self.exit_code}"
        return f"process number {self.runs}, which nobody killed, {what}"

    @property
    def story(self) -> str:
        """The kills that hit, in turn, for whoever has to find out why something went wrong."""
        return ", ".join(map(str, self.kills)) or "nobody"


def until_one_ends(
    start: Callable[[Death | None], Victim], kills: deque[Kill], timeout_s: float = END_TIMEOUT_S
) -> Ending:
    """Start processes one after the other, each killed as the next of `kills` says, which is taken off the left. It is
    over with the first that is not killed; when no kill is left, the next one is let live."""
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
