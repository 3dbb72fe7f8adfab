"""Appends of many callers, written together by one thread: for systems where each write costs a commit or an fsync."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import BrokerUnavailableError, DeliveryError, PenstockError
from penstock.model import NewRecord, Receipt
from penstock.streams.adapting.append_queue import check_appendable
from penstock.streams.adapting.stream_base import receipts_for
from penstock.streams.forks import FORKS

logger = logging.getLogger(__name__)

BATCH_RECORDS: Final = 5_000
BATCH_BYTES: Final = 8 << 20
WAITING_BYTES: Final = 64 << 20
"""How much may wait to be written before `append` blocks."""
RECORD_BYTES: Final = 200
"""What a record takes in memory besides its key and value."""
IDLE_S: Final = 1.0
"""How long the thread waits for more before it ends. The next append starts it again."""
CLOSE_S: Final = 60.0

Outcome = tuple[int, int] | DeliveryError
"""Partition and pointer of a stored record, or why it was refused."""
Write = Callable[[Sequence[NewRecord]], Iterable[Outcome]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one append."""

    records: Sequence[NewRecord]
    receipts: Sequence[Receipt]
    size_bytes: int


class BatchWriter:
    """Writes the records of one topic in the order of `append`. Any thread may append.

    `write` stores some records and returns the outcome of each. What it raises is the outcome of all of them: records
    are never written again by themselves, because the first attempt may have stored them.
    """

    def __init__(self, topic: str, write: Write, *, max_record_bytes: int) -> None:
        self._topic = topic
        self._write = write
        self._max_record_bytes = max_record_bytes
        self._changed = threading.Condition()
        self._waiting: deque[Chunk] = deque()
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._is_idle = False
        """The thread waits for records, and must be told of new ones."""
        self._is_closed = False
        self._forks = FORKS.count

    def append(self, records: Sequence[NewRecord]) -> list[Receipt]:
        """A receipt for each record. Blocks while too much waits to be written."""
        self.check_open()
        topic = self._topic
        receipts = receipts_for(topic, records)
        sizes = [len(record.value or b"") + len(record.key or b"") for record in records]
        chunks = self._chunks(records, receipts, sizes)
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._waiting_bytes < WAITING_BYTES)
            self.check_open()
            self._waiting.extend(chunks)
            self._waiting_bytes += sum(chunk.size_bytes for chunk in chunks)
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"write-{topic}", daemon=True)
                self._thread.start()
            elif self._is_idle:
                self._changed.notify_all()
        return receipts

    def close(self) -> None:
        """Write what waits, for a limited time. The rest is refused."""
        if self._forks != FORKS.count:
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._thread is None, CLOSE_S)
            left = [receipt for chunk in self._waiting for receipt in chunk.receipts]
            self._waiting.clear()
        for receipt in left:
            receipt.settle(-1, -1, DeliveryError(f"topic {self._topic!r} was closed before the record was written"))

    def check_open(self) -> None:
        check_appendable(self._topic, self._is_closed, self._forks)

    def _run(self) -> None:
        while True:  # ends when nothing has come for a while, or when closed
            with self._changed:
                self._is_idle = True
                self._changed.wait_for(lambda: self._waiting or self._is_closed, IDLE_S)
                self._is_idle = False
                if not self._waiting:
                    self._thread = None
                    self._changed.notify_all()
                    return
                batch = self._take()
                self._changed.notify_all()
            self._settle(batch)

    def _chunks(self, records: Sequence[NewRecord], receipts: Sequence[Receipt], sizes: Sequence[int]) -> list[Chunk]:
        """The records of one append, those that are too large left out, and many divided."""
        if max(sizes, default=0) > self._max_record_bytes:
            for receipt, size_bytes in zip(receipts, sizes, strict=True):
                if size_bytes > self._max_record_bytes:
                    receipt.settle(-1, -1, self._too_large(size_bytes))
            kept = [index for index, size_bytes in enumerate(sizes) if size_bytes <= self._max_record_bytes]
            records, receipts = [records[index] for index in kept], [receipts[index] for index in kept]
            sizes = [sizes[index] for index in kept]
        steps = [slice(first, first + BATCH_RECORDS) for first in range(0, len(records), BATCH_RECORDS)]
        return [
            Chunk(records[step], receipts[step], sum(sizes[step]) + RECORD_BYTES * len(sizes[step])) for step in steps
        ]

    def _take(self) -> list[Chunk]:
        taken: list[Chunk] = []
        count = size_bytes = 0
        while self._waiting:
            chunk = self._waiting[0]
            if taken and (count + len(chunk.records) > BATCH_RECORDS or size_bytes + chunk.size_bytes > BATCH_BYTES):
                break
            taken.append(self._waiting.popleft())
            count += len(chunk.records)
            size_bytes += chunk.size_bytes
        self._waiting_bytes -= size_bytes
        return taken

    def _settle(self, chunks: list[Chunk]) -> None:
        records = [record for chunk in chunks for record in chunk.records] if len(chunks) > 1 else chunks[0].records
        outcomes: Iterable[Outcome]
        try:
            outcomes = self._write(records)
        except Exception as error:
            if not isinstance(error, PenstockError):
                logger.exception("writing to topic %r failed", self._topic)
            is_retriable = isinstance(error, BrokerUnavailableError) and error.retriable
            refusal = DeliveryError(
                f"records for topic {self._topic!r} were not stored: {error}", retriable=is_retriable
            )
            refusal.__cause__ = error
            outcomes = [refusal] * len(records)
        receipts = itertools.chain.from_iterable(chunk.receipts for chunk in chunks)
        for receipt, outcome in zip(receipts, outcomes, strict=True):
            if isinstance(outcome, tuple):
                receipt.settle(outcome[0], outcome[1])
            else:
                receipt.settle(-1, -1, outcome)

    def _too_large(self, size_bytes: int) -> DeliveryError:
        return DeliveryError(
            f"a record of {size_bytes} bytes for topic {self._topic!r} is larger than max_record_bytes="
            f"{self._max_record_bytes}: raise that setting, or send a reference to the data"
        )
