"""Receipts: what `send` gives back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import ClassVar, Final

from penstock.errors import DeliveryError
from penstock.model.record import Place

logger = logging.getLogger(__name__)


class Receipt:
    """What `send` gives back: the promise that the stream will acknowledge the record, or say why not.

    `result` waits for it. A failure that nobody looks at is not lost: `flush` and `close` raise it.
    """

    __slots__ = ("_callbacks", "_error", "_hurry", "_offset", "_partition", "_waiter", "done", "seen", "topic")

    _lock: ClassVar = threading.Lock()
    """Shared by all receipts, as it is held for a few instructions only, and there are very many of them."""

    def __init__(self, topic: str, hurry: Callable[[], None] | None = None) -> None:
        self.topic = topic
        self.done = False
        """Whether the record has been acknowledged or refused."""
        self.seen = False
        """Whether somebody has learnt from this receipt that its record was not delivered."""
        self._hurry = hurry
        self._error: DeliveryError | None = None
        self._waiter: threading.Event | None = None
        self._callbacks: list[Callable[[Receipt], object]] | None = None

    @property
    def error(self) -> DeliveryError | None:
        """Why the record was not delivered; None while that is open, and when it was."""
        self.seen = self.seen or self._error is not None
        return self._error

    def result(self, timeout: float | None = None) -> Place:
        """Where the record stands, once it is acknowledged.

        Raises DeliveryError when it could not be delivered, and TimeoutError when nothing is known after `timeout`
        seconds: then the record is still on its way.
        """
        if not self.done:
            self._wait(timeout)
        if self._error is not None:
            self.seen = True
            raise self._error
        return Place(self.topic, self._partition, self._offset)

    def add_done_callback(self, callback: Callable[[Receipt], object]) -> None:
        """Call it with this receipt once it is done: in the thread that hears from the stream, or now if it is.

        The callback must not wait for another receipt. What it raises is logged.
        """
        with self._lock:
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
        if self.done:
            self._call_back()

    # Settling takes no lock where nobody waits. It marks the receipt first and looks for who waits then; who wants to
    # wait writes that down first and looks at the mark then. So one of them sees the other.

    def settle(self, partition: int, offset: int, error: DeliveryError | None = None) -> None:
        """Called by the stream, once: the record stands there, or `error` says why it does not."""
        assert not self.done, f"the receipt of a record for {self.topic!r} was settled twice"
        self._partition = partition
        self._offset = offset
        self._error = error
        self.done = True
        if self._waiter is not None:
            self._waiter.set()
        if self._callbacks is not None:
            self._call_back()

    def _wait(self, timeout: float | None) -> None:
        with self._lock:
            if self._waiter is None:
                self._waiter = threading.Event()
            waiter = self._waiter
        if self.done:
            return
        started_s = time.monotonic()
        while self._hurry is not None and not waiter.is_set():
            waited_s = time.monotonic() - started_s
            if waited_s > _HURRY_S or (timeout is not None and waited_s >= timeout):
                break
            self._hurry()
        left_s = None if timeout is None else max(0.0, timeout - (time.monotonic() - started_s))
        if not waiter.wait(left_s):
            raise TimeoutError(
                f"the record for {self.topic!r} was not acknowledged within {timeout:g} s; it is still being tried"
            )

    def _call_back(self) -> None:
        """Call each callback once, whichever thread comes first."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks or (), None
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                logger.exception("a callback of a receipt for %r failed", self.topic)

    def __repr__(self) -> str:
        if not self.done:
            return f"<Receipt for {self.topic!r}: on its way>"
        if self._error is not None:
            return f"<Receipt for {self.topic!r}: {self._error}>"
        return f"<Receipt: {Place(self.topic, self._partition, self._offset)}>"


_HURRY_S: Final = 0.05
"""How long a receipt that is waited for asks the stream not to wait for others to fill the batch."""
