"""The settings of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    seconds: float = 60.0
    rate: int = 400
    """Events a second, of both kinds together."""
    seed: int = 1
    """Determines the events, but not their times."""
    with_spark: bool = True
    with_console: bool = True
    stay: bool = False
    """Continue after the summary, until Ctrl-C."""
    report: Path
    since_s: float | None = None
    """When `make demo` started, in seconds since 1970: before packages were installed."""
    fault: str | None = None
    """A falsified account, to see that the check finds it."""

    @property
    def events(self) -> int:
        return max(1, round(self.seconds * self.rate))
