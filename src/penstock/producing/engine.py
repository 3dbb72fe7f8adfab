"""The parts of a producer, kept apart from it so that they can be released when it is garbage-collected."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.abc import Buffer, Feature, Stream
from penstock.errors import BufferFullError, DeliveryError
from penstock.log.disk import Disk
from penstock.model import NewRecord, Receipt
from penstock.model.observing import OBSERVED
from penstock.producing.buffers import BufferedRecord, NumberedBuffer
from penstock.producing.counts import Counts, ProducerStats
from penstock.producing.delivering import DeliveryParts
from penstock.producing.pending_receipts import PendingReceipts
from penstock.producing.pump import Pump
from penstock.producing.refused import keep_refused
from penstock.producing.settings import ProducerSettings
from penstock.producing.spooling import Spool
from penstock.producing.spooling.folder import load_declared, save_declared
from penstock.serde import Topic
from penstock.streams.declared import DeclaredTopics

logger = logging.getLogger(__name__)

_SLICE_S: Final = 0.05
_TELL_DROPS_EVERY_S: Final = 10.0


class Engine:
    """Buffer, pump and receipts. Thread-safe."""

    def __init__(
        self,
        buffer: NumberedBuffer,
        chosen: DeliveryParts,
        settings: ProducerSettings,
        owned_buffer: Buffer | None,
        owned_stream: Stream | None,
    ) -> None:
        """Parts whose names begin with `owned` are closed with the engine."""
        self.buffer = buffer
        self.settings = settings
        self.durable = Feature.DURABLE in buffer.features
        self.is_whole = chosen.delivery.is_whole
        self.waits_for_disk: bool = getattr(buffer, "waits_for_disk", self.durable)
        """Whether putting records may wait for the disk."""
        self._first = buffer.end
        self.pending = PendingReceipts(self._first, has_older=len(buffer) > 0)
        self.counts = Counts()
        self._declaring = threading.Lock()
        self._spool_folder = buffer.folder if isinstance(buffer, Spool) else None
        self._declared = DeclaredTopics(load_declared(self._spool_folder) if self._spool_folder is not None else None)
        self._owned_buffer = owned_buffer
        self._owned_stream = owned_stream
        self._told_drops_s = 0.0
        self._counting = threading.Lock()
        folder: Path | None = getattr(buffer, "folder", None) if self.durable else None
        refuse = _refuser(folder) if folder is not None else None
        self.pump = Pump(
            buffer, chosen, settings, self.pending, self.counts, refuse, self._declared, on_failure=self.fail_left
        )
        self.hurry: Callable[[], None] = self.pump.hurry
        self.pump.start()
        OBSERVED.enter(self)

    def try_put(self, records: Sequence[NewRecord], receipts: Sequence[Receipt]) -> bool:
        """Put records into the buffer; False if there is no room."""
        pump = self.pump
        if pump.ended:
            raise DeliveryError(f"this producer can send no more: {pump.failure or 'it is closed'}") from pump.failure
        try:
            sequence = self.buffer.put(records)
        except BufferFullError:
            return False
        enter = self.pending.enter
        for receipt in receipts:
            enter(sequence, receipt)
            sequence += 1
        if pump.idle:
            pump.wake.set()
        if pump.ended:  # it ended after the check above
            self.fail_left()
        return True

    def declare(self, topic: Topic[Any]) -> None:
        """Create the topic before records are delivered to it; a spool remembers this for its next owner."""
        if self._declared.declare(topic) and self._spool_folder is not None:
            with self._declaring:
                save_declared(self._spool_folder, dict(self._declared.waiting), Disk())

    def make_room(self) -> bool:
        """Drop the oldest record that is not in flight, with its transaction. Returns whether there was one."""
        with self.pump.taking:
            oldest = self.buffer.peek(self.pump.taken, 1, 1)
            count = oldest[0].together_with - oldest[0].sequence + 1 if oldest else 0
            dropped = self.buffer.drop(count, self.pump.taken) if oldest else ()
        for each in dropped:
            error = DeliveryError(f"a record for topic {each.record.topic!r} was dropped: the buffer was full")
            self.pending.drop(each.sequence, error)
        self._count_drops(len(dropped))
        return bool(dropped)

    def drop_newest(self, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            receipt.seen = True
            receipt.settle(-1, -1, DeliveryError(f"a record for topic {receipt.topic!r} was dropped: no room for it"))
        self._count_drops(len(receipts))

    def _count_drops(self, count: int) -> None:
        if not count:
            return
        with self._counting:
            self.counts.dropped += count
            now_s = time.monotonic()
            if now_s - self._told_drops_s < _TELL_DROPS_EVERY_S and self._told_drops_s:
                return
            self._told_drops_s = now_s
        logger.warning(
            "the buffer is full: dropping records (%s), %d so far",
            self.settings.when_full,
            self.counts.dropped,
            extra={"dropped": self.counts.dropped},
        )

    def no_room(self) -> BufferFullError:
        limits = f"{self.settings.buffer_records} records or {self.settings.buffer_bytes} bytes"
        waited = f" for {self.settings.max_block_s:g} s" if self.settings.when_full != "error" else ""
        return BufferFullError(
            f"the buffer has been full{waited}: {len(self.buffer)} records, {self.buffer.size_bytes} bytes, wait for "
            f"the stream; the limit is {limits}. Check that the stream is reachable and keeps up, send less, raise "
            "buffer_records or buffer_bytes, or choose another when_full"
        )

    def wait(self, timeout_s: float | None) -> None:
        """Wait until everything in the buffer now is done. Raises TimeoutError, or DeliveryError if it cannot be
        delivered."""
        through = self.buffer.end - 1
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self.pump.committed < through and len(self.buffer):
            if self.pump.ended:
                raise DeliveryError(f"{len(self.buffer)} records are not delivered: {self.pump.failure}")
            left_s = _SLICE_S if deadline_s is None else min(_SLICE_S, deadline_s - time.monotonic())
            if left_s <= 0:
                raise TimeoutError(
                    f"{len(self.buffer)} records were not acknowledged within {timeout_s:g} s; they are still "
                    "being delivered"
                )
            self.pump.nudge()
            self.pump.wait_for_news(left_s)

    def stats(self) -> ProducerStats:
        counts, waiting = self.counts, len(self.buffer)
        return ProducerStats(
            sent=self.buffer.end - self._first,
            delivered=counts.delivered,
            refused=counts.refused,
            dropped=counts.dropped,
            failed=counts.failed,
            retried=counts.retried,
            buffered=waiting,
            buffered_bytes=self.buffer.size_bytes,
            oldest_age_s=self.pending.oldest_age_s(is_empty=not waiting),
        )

    def fail_left(self) -> None:
        """Settle the receipts of records that this producer will not deliver."""
        if self.durable:
            folder = getattr(self.buffer, "folder", "its buffer")
            self.pending.fail_all(
                f"is not delivered yet: it stays in the spool {folder} until a producer opens it", seen=True
            )
        else:
            failure = f": {self.pump.failure}" if self.pump.failure is not None else ""
            why = f"was not delivered: the producer ended before it was acknowledged{failure}; it may be stored or not"
            self.counts.failed += self.pending.fail_all(why, seen=False)

    def close(self, timeout_s: float) -> None:
        """Deliver until the timeout, then settle every receipt and release everything."""
        with contextlib.ExitStack() as stack:
            if self._owned_stream is not None:
                stack.callback(self._owned_stream.close)
            if self._owned_buffer is not None:
                stack.callback(self._owned_buffer.close)
            stack.callback(self.pending.raise_failures)
            stack.callback(OBSERVED.leave, self)
            stack.callback(self.fail_left)
            self.pump.stop(time.monotonic() + timeout_s)


def _refuser(folder: Path) -> Callable[[Sequence[BufferedRecord], str], None]:
    disk = Disk()

    def refuse(held: Sequence[BufferedRecord], reason: str) -> None:
        keep_refused(folder, held, reason, disk)
        logger.error("the stream refused %d records, which are kept in %s: %s", len(held), folder, reason)

    return refuse
