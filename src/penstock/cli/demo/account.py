"""The generator's own account of what it has sent: what everything that comes out is held against."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.cli.demo.events import LARGE_CENTS, Event, MalformedRow, PageEvent, Transaction, window_of

WindowTotals = dict[str, int]
"""How often each page was seen in each window, by `window_name`."""


def window_name(window_s: int, page: str) -> str:
    return f"{window_s} {page}"


@dataclass(slots=True)
class Account:
    """Events of each kind are numbered from 0, so a count says which ones there were."""

    transactions: int = 0
    malformed: int = 0
    pages: int = 0
    acknowledged: int = 0
    """How many of all these the log has acknowledged."""
    large: list[int] = field(default_factory=list)
    """The transactions that are large payments."""
    windows: WindowTotals = field(default_factory=dict)

    @property
    def sent(self) -> int:
        return self.transactions + self.malformed + self.pages

    def enter(self, event: Event) -> None:
        """Count an event that was sent."""
        match event:
            case MalformedRow():
                self.malformed += 1
            case Transaction():
                self.transactions += 1
                if event.cents >= LARGE_CENTS:
                    self.large.append(event.number)
            case PageEvent():
                self.pages += 1
                name = window_name(window_of(event.at), event.page)
                self.windows[name] = self.windows.get(name, 0) + 1
