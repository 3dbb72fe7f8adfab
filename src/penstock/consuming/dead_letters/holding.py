"""One redrive of a place of letters at a time, whichever processes people begin them in.

Two at once would lose nothing: both give a record the same id (see `headers`), so a consumer of the library handles it
once. But each record would stand in its topic twice, for whoever else reads there, at twice the rate that either was
allowed, and both would tell that they have sent all of it. So a redrive holds the place: it does so from before its
first letter until after its last, and is let go of when its process dies, however that dies.

A storage that can be held has `hold`. One of a user's own that has none is redriven as it is.
"""

from __future__ import annotations

import datetime
from typing import Final, Protocol, runtime_checkable

from penstock import abc
from penstock.abc import Clock
from penstock.errors import RedriveRunningError

DEAD_AFTER_S: Final = 20.0
"""Where the storage cannot tell that a process has died, one that gives no sign for so long is taken to have."""


class Hold(Protocol):
    """A place that is held."""

    def check(self) -> None:
        """RedriveRunningError when somebody else holds it by now, as after too long a pause of this process."""

    def release(self) -> None:
        """Let go of it. May be called twice."""


@runtime_checkable
class Holdable(Protocol):
    """Letters of a place that can be held."""

    def hold(self, holder: str, wait_s: float, clock: Clock) -> Hold:
        """Hold the place; `holder` is told to others who try. RedriveRunningError while somebody else does.

        Where it must be found out whether that one still lives, it is watched for `wait_s` at most."""


class NoHold:
    """The hold of what cannot be held, or needs not be."""

    def check(self) -> None:
        pass

    def release(self) -> None:
        pass


def hold_of(letters: abc.DeadLetters, holder: str, wait_s: float, clock: Clock) -> Hold:
    """Hold the place of these letters, if it can be. RedriveRunningError while somebody else does."""
    return letters.hold(holder, wait_s, clock) if isinstance(letters, Holdable) else NoHold()


def running_error(where: str, holder: str, since_ms: int | None, more: str = "") -> RedriveRunningError:
    """What somebody is told who begins a second redrive."""
    since = ""
    if since_ms is not None:
        at = datetime.datetime.fromtimestamp(since_ms / 1000, datetime.UTC)
        since = f", since {at:%Y-%m-%d %H:%M:%S} UTC"
    return RedriveRunningError(
        f"{where} is being redriven already, by {holder or 'somebody else'}{since}. Wait until that has ended{more}"
    )
