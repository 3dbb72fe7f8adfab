"""Since when the stream is away, and from when what is shown is."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.observe.facts import Snapshot


@dataclass(frozen=True, slots=True)
class Outage:
    """The stream does not answer."""

    since_ms: int
    """When it was first asked in vain."""
    known_ms: int | None
    """When it last answered; None: it has not since the console was started, and nothing of it is known."""


class Outages:
    """Follows the snapshots of a watch, each of which only says how things are when it was made."""

    def __init__(self) -> None:
        self._known_ms: int | None = None
        self._now: Outage | None = None

    @property
    def now(self) -> Outage | None:
        """None: the stream answers, or has not been asked yet."""
        return self._now

    @property
    def is_known(self) -> bool:
        """Whether the stream has ever answered: until then, that there is nothing to show means nothing."""
        return self._known_ms is not None

    def heard(self, snapshot: Snapshot) -> None:
        """Take the next snapshot into account."""
        if snapshot.problem is None:
            self._known_ms, self._now = snapshot.at_ms, None
        elif self._now is None:
            self._now = Outage(snapshot.at_ms, self._known_ms)
