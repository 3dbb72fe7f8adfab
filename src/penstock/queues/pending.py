"""Work that a connection's thread does for a caller."""

from __future__ import annotations

import threading

from penstock.errors import BrokerUnavailableError, PenstockError


class Pending:
    """Work in so many parts, for which a caller waits."""

    def __init__(self, count: int = 1) -> None:
        self.left = count
        self.error: PenstockError | None = None
        self.done = threading.Event()

    def finish(self, error: PenstockError | None = None) -> None:
        """One part of it is done. An error ends the wait at once."""
        self.left -= 1
        self.error = self.error or error
        if not self.left or self.error is not None:
            self.done.set()

    def wait(self, timeout_s: float, what: str) -> None:
        if not self.done.wait(timeout_s):
            raise BrokerUnavailableError(f"{what} was not answered within {timeout_s:g} s: its outcome is unknown")
        if self.error is not None:
            raise self.error
