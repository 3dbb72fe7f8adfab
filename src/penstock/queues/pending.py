"""Work that the thread of a connection does for a caller, who waits for it."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Final

from penstock.errors import BrokerUnavailableError, PenstockError, RecordTooLargeError

STORE_FULL: Final = ". A broker whose store is full does not answer: check its disk and its limits"
"""The advice for brokers that keep senders waiting without saying so."""

_TOO_LARGE: Final = (
    "larger than",
    "bigger than",
    "too large",
    "too big",
    "max frame",
    "body size",
    "maximum data length",
    "maximum header length",
)
"""By which brokers say that a message is over a limit."""
_LONGEST_TEXT: Final = 500


class Pending:
    """Counts the parts of some work that are not done yet."""

    def __init__(self, count: int = 1, largest_bytes: int = 0) -> None:
        self.left = count
        self.largest_bytes = largest_bytes
        """The size of the largest message that is sent."""
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


def finish_lost(waiting: Collection[Pending], problem: PenstockError, replaced: PenstockError) -> None:
    """Tell those who wait why their connection was lost. A message that is too large is the problem of whoever sent the
    largest one: the others get `replaced`, and try again."""
    largest_bytes = max((each.largest_bytes for each in waiting), default=0)
    for each in waiting:
        is_theirs = not isinstance(problem, RecordTooLargeError) or each.largest_bytes == largest_bytes > 0
        each.finish(problem if is_theirs else replaced)


def says_too_large(text: str) -> bool:
    """Whether a broker's error is about the size of a message."""
    return any(words in text.lower() for words in _TOO_LARGE)


def too_large(queue: str, shown: str, text: str, remedy: str) -> RecordTooLargeError:
    """The error for such a message."""
    return RecordTooLargeError(
        f"a message for {queue} is larger than {shown} allows: {shortened(text)}. Send a reference to the data, keep "
        f"large headers in the value, or {remedy}"
    )


def shortened(text: str) -> str:
    """A broker's error without most of the message that some of them repeat in it."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT // 2]}...{text[-_LONGEST_TEXT // 2 :]}"
