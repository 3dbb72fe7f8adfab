"""Answers of a listener to its senders: a request carries one record or more, and is answered as a whole.

A transport tells `OpenRequests` which records a request brought and how to reply; `acknowledge` and `refuse` pass
records on to it. The reply is sent once every record of the request is answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import DeliveryError
from penstock.model import Record

MOST_OPEN: Final = 100_000
"""Records without an answer that are remembered; the senders of older ones have given up."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a record was not stored."""

    reason: str
    again: bool
    """Whether sending the same again may help."""

    def error(self, shown: str) -> DeliveryError:
        """This refusal as the error that the sender raises. `shown` is where the record was sent to."""
        advice = "send it again" if self.again else "sending it again will not help"
        return DeliveryError(f"the receiver at {shown} refused a record: {self.reason}; {advice}", retriable=self.again)


Reply = Callable[[Refusal | None], None]
"""Tells the sender of a request; None: every record is stored."""


@dataclass(slots=True)
class _Request:
    reply: Reply
    left: int
    refusal: Refusal | None = None


class OpenRequests:
    """Requests whose records are not all answered yet. Thread-safe."""

    def __init__(self) -> None:
        self._requests: dict[int, _Request] = {}
        """By the offset of each record."""
        self._lock = threading.Lock()

    def add(self, records: Sequence[Record], reply: Reply) -> None:
        """Remember which records a request brought, before they are returned by `listen`."""
        request = _Request(reply, len(records))
        with self._lock:
            for record in records:
                self._requests[record.offset] = request
            while len(self._requests) > MOST_OPEN:
                del self._requests[next(iter(self._requests))]

    def settle(self, records: Sequence[Record], refusal: Refusal | None = None) -> None:
        """Answer for these records, and reply to requests that are complete. Records answered before are ignored."""
        complete: list[_Request] = []
        with self._lock:
            for record in records:
                request = self._requests.pop(record.offset, None)
                if request is None:
                    continue
                request.left -= 1
                if refusal is not None and (request.refusal is None or request.refusal.again):
                    request.refusal = refusal  # one that is final outweighs one that is not
                if not request.left:
                    complete.append(request)
        for request in complete:
            request.reply(request.refusal)
