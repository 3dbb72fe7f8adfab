"""What is going to happen: decided before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What whoever runs the demo may choose."""

    seconds: float = 60.0
    """How long events are sent."""
    rate: int = 400
    """Events a second, of both kinds together."""
    seed: int = 1
    """Decides what is sent. When, the clock decides."""
    with_spark: bool = True
    with_console: bool = True
    stay: bool = False
    """Go on after the summary, until Ctrl-C."""
    report: Path
    """Where the report is written."""
    since_s: float | None = None
    """When whoever called for the demo began, in seconds since 1970: before packages were installed."""
    fault: str | None = None
    """A lie in the generator's account, to see that the check finds it."""

    @property
    def events(self) -> int:
        return max(1, round(self.seconds * self.rate))
