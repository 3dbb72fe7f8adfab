"""Sending single records to any stream, and the counts that all senders keep."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Final

from penstock.abc import Feature, Stream, TopicStream
from penstock.errors import DeliveryError
from penstock.model import NewRecord, Receipt
from penstock.model.observing import OBSERVED
from penstock.streams.url import without_password

_FAILURES_KEPT: Final = 10_000
"""Failed receipts that are kept until `flush`, which raises those that nobody has looked at; the others are counted."""


class UnseenFailures:
    """The receipts of records that could not be delivered, until somebody is told. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Receipt] = []
        self._beyond = 0

    def add(self, receipt: Receipt) -> None:
        with self._lock:
            if len(self._kept) < _FAILURES_KEPT:
                self._kept.append(receipt)
            else:
                self._beyond += 1

    def raise_first(self) -> None:
        """Forget all failures. If nobody has looked at some of the receipts, raise the first one's DeliveryError."""
        with self._lock:
            kept, beyond = self._kept, self._beyond
            self._kept, self._beyond = [], 0
        unseen = [receipt for receipt in kept if not receipt.seen]
        if unseen:
            first, count = unseen[0].error, len(unseen) + beyond
            others = f" ({count - 1} more were not delivered either)" if count > 1 else ""
            raise DeliveryError(f"{first}{others}") from first


class CountingSender:
    """Counts the records that are in flight, and keeps the receipts of those that failed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self.sent = 0
        """All records that were accepted."""
        self.failed = 0
        """Records that were refused: they were not acknowledged, and will not be."""
        self._failures = UnseenFailures()

    @property
    def unacknowledged(self) -> int:
        return self._open

    def wait_until_settled(self, timeout_s: float | None) -> bool:
        raise NotImplementedError

    def flush(self, timeout_s: float | None) -> None:
        if not self.wait_until_settled(timeout_s):
            raise TimeoutError(
                f"{self._open} records were not acknowledged within {timeout_s:g} s; they are still being sent"
            )
        self._failures.raise_first()

    def _settled(self, receipt: Receipt, is_failure: bool) -> None:
        if is_failure:
            self._failures.add(receipt)  # first: `flush` raises the failures once nothing is open
        with self._lock:
            self._open -= 1
            self.failed += is_failure


class AppendSender(CountingSender):
    """`abc.Sender` by `TopicStream.append`, for streams without a faster way. Any thread may send."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream
        self._topics: dict[str, TopicStream] = {}
        self._opening = threading.Lock()
        self._all_settled = threading.Condition(self._lock)
        if Feature.DURABLE in stream.features:
            OBSERVED.enter(self)

    def send(self, record: NewRecord) -> Receipt:
        opened = self._topics.get(record.topic) or self._open_topic(record.topic)
        with self._lock:
            self._open += 1
            self.sent += 1
        try:
            [receipt] = opened.append([record])
        except BaseException:
            with self._lock:
                self._open -= 1
                self.sent -= 1
            raise
        receipt.add_done_callback(self._count_settled)
        return receipt

    async def send_async(self, record: NewRecord) -> Receipt:
        """Send in a thread, because `append` may wait for room."""
        return await asyncio.to_thread(self.send, record)

    def wait_until_settled(self, timeout_s: float | None) -> bool:
        with self._all_settled:
            return self._all_settled.wait_for(lambda: not self._open, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Flush, then close the topics, which may still deliver what was not acknowledged by then."""
        with contextlib.ExitStack() as stack:
            for topic in self._topics.values():
                stack.callback(topic.close)
            stack.callback(self._topics.clear)
            stack.callback(OBSERVED.leave, self)
            try:
                self.flush(timeout_s)
            except TimeoutError as error:
                url = without_password(self._stream.url)
                raise DeliveryError(f"the connection to {url} was closed, and {error}") from error

    def _open_topic(self, topic: str) -> TopicStream:
        with self._opening:
            if topic not in self._topics:
                self._topics[topic] = self._stream.open_topic(topic)
            return self._topics[topic]

    def _count_settled(self, receipt: Receipt) -> None:
        self._settled(receipt, receipt.failed)
        with self._all_settled:
            if not self._open:
                self._all_settled.notify_all()
