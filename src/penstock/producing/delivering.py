"""Delivering: from the buffer to the stream. One contract, whatever the stream can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.errors import DeliveryError
from penstock.producing.kept import Held

Outcome = tuple[int, int, int, DeliveryError | None]
"""What became of one record: its number, partition and offset, or the error, whose `retriable` says whether sending it
again may help. There is one for each record ever sent, so it is no class."""


class UndecidedError(DeliveryError):
    """It may be stored or not, and nobody will ever know: sending it again could store it twice."""


class Delivery(Protocol):
    """Takes records to a stream. Used by one thread, but for `hurry`.

    A FencedError from any method means that another producer has taken this one's place: nothing more can be sent.
    Every other error is told in the outcome of a record.
    """

    @property
    def gathers(self) -> bool:
        """It lingers itself until a batch is full, so records are handed over as they come."""

    @property
    def is_whole(self) -> bool:
        """What is sent in one call is stored whole or not at all; records put together must be sent together."""

    def start(self) -> None:
        """Get ready. DeliveryError when that cannot be done now: it is tried again."""

    def delivered_through(self, first: Held) -> int | None:
        """Up to which number records were delivered by an earlier process, as far as the stream remembers, if `first`,
        the first one in the buffer, was; None when it was not."""

    def send(self, batch: Sequence[Held]) -> None:
        """Hand records over, in this order. It may return before anything is known about them."""

    def outcomes(self, wait_s: float) -> Sequence[Outcome]:
        """What has become known since the last call, as soon as there is something, or nothing after `wait_s`."""

    def hurry(self) -> None:
        """Somebody waits: do not linger. Takes a millisecond or so. May be called from any thread."""

    def abandon(self) -> None:
        """The time is over: no outcome of what is under way will be waited for."""

    def close(self) -> None: ...
