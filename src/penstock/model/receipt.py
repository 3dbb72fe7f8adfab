"""Receipts: what `send` returns."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, ClassVar, Final

from penstock.errors import DeliveryError
from penstock.model.record import RecordMetadata

logger = logging.getLogger(__name__)


class Receipt:
    """What `send` returns: a future for the acknowledgement of the record.

    `result` waits for it, and so does `await receipt`, without blocking the event loop. A failure that was not seen on
    the receipt is raised by `flush` and `close`.
    """

    __slots__ = ("_callbacks", "_error", "_hurry", "_offset", "_partition", "_waiter", "done", "seen", "topic")

    _lock: ClassVar = threading.Lock()
    """Shared by all receipts: it is held for a few instructions only, and there are very many receipts."""
    _hurrying: ClassVar[set[Callable[[], None]]] = set()
    """Streams that a thread is already flushing for an awaited receipt."""

    def __init__(self, topic: str, hurry: Callable[[], None] | None = None) -> None:
        self.topic = topic
        self.done = False
        """Whether the record has been acknowledged or refused."""
        self.seen = False
        """Whether a caller has seen on this receipt that its record was not delivered."""
        self._hurry = hurry
        self._error: DeliveryError | None = None
        self._waiter: threading.Event | None = None
        self._callbacks: list[Callable[[Receipt], object]] | None = None

    @property
    def error(self) -> DeliveryError | None:
        """Why the record was not delivered; None while that is open, and if it was delivered."""
        self.seen = self.seen or self._error is not None
        return self._error

    @property
    def failed(self) -> bool:
        """Whether the record was not delivered. Unlike `error`, this does not count as seen."""
        return self._error is not None

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement and return where the record is stored.

        Raises DeliveryError if it could not be delivered, and TimeoutError if the outcome is unknown after `timeout`
        seconds: the record is still being delivered.
        """
        if not self.done:
            self._wait(timeout)
        if self._error is not None:
            self.seen = True
            raise self._error
        return RecordMetadata(self.topic, self._partition, self._offset)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Await `result`. Cancelling the wait does not take the record back."""
        return self._result_async().__await__()

    async def _result_async(self) -> RecordMetadata:
        if not self.done:
            loop = asyncio.get_running_loop()
            settled = asyncio.Event()
            self.add_done_callback(lambda _: call_in(loop, settled.set))
            if self._hurry is not None and self._hurry not in self._hurrying:
                loop.run_in_executor(None, self._hurry_on)
            await settled.wait()
        return self.result(0)

    def _hurry_on(self) -> None:
        """Ask the stream not to linger until this receipt is done, for a limited time."""
        hurry, until_s = self._hurry, time.monotonic() + _HURRY_S
        assert hurry is not None
        self._hurrying.add(hurry)
        try:
            while not self.done and time.monotonic() < until_s:
                hurry()
        finally:
            self._hurrying.discard(hurry)

    def add_done_callback(self, callback: Callable[[Receipt], object]) -> None:
        """Call it with this receipt once it is done: in the delivery thread, or now if it is done already.

        The callback must not wait for another receipt. What it raises is logged.
        """
        with self._lock:
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
        if self.done:
            self._call_back()

    # Settling takes no lock if nothing waits. `settle` sets `done`, then looks for waiters; a waiter registers itself,
    # then looks at `done`. So one of them always sees the other.

    def settle(self, partition: int, offset: int, error: DeliveryError | None = None) -> None:
        """Set the outcome. Called by the stream, once: the record is stored there, or `error` says why not."""
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
                f"the record for {self.topic!r} was not acknowledged within {timeout:g} s; it is still being delivered"
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
        return f"<Receipt: {RecordMetadata(self.topic, self._partition, self._offset)}>"


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Run the function in the loop's thread, unless the loop is closed."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        logger.debug("an event loop was closed before it heard of a record")


_HURRY_S: Final = 0.05
"""How long an awaited receipt asks the stream not to linger."""
