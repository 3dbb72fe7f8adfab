"""Work that the thread of a connection does for a caller, who waits for it."""

from __future__ import annotations

import threading
from typing import Final

from penstock.errors import BrokerUnavailableError, PenstockError

STORE_FULL: Final = ". A broker whose store is full does not answer: check its disk and its limits"
"""The advice for brokers that keep senders waiting without saying so."""


class Pending:
    """Counts the parts of some work that are not done yet."""

    def __init__(self, count: int = 1) -> None:
        self.left = count
        self.error: PenstockError | None = None
        self.done = threading.Event()
        self.is_abandoned = False
        """The caller has stopped waiting."""

    def finish(self, error: PenstockError | None = None) -> None:
        """Note that one part is done. An error ends the wait at once."""
        self.left -= 1
        self.error = self.error or error
        if not self.left or self.error is not None:
            self.done.set()

    def wait(self, timeout_s: float, what: str, hint: str = "") -> None:
        """Wait until all parts are answered. Raises the error of a part, or, when time is up, BrokerUnavailableError
        with the hint."""
        if not self.done.wait(timeout_s):
            self.is_abandoned = True
            raise BrokerUnavailableError(
                f"{what} was not answered within {timeout_s:g} s: its outcome is unknown{hint}"
            )
        if self.error is not None:
            raise self.error
