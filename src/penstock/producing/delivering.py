"""The interface between the producer and what delivers to a stream, and delivery to any stream."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.abc import Feature, Stream, TopicStream
from penstock.errors import ConfigError, DeliveryError, PenstockError
from penstock.model import Receipt
from penstock.producing.buffers import BufferedRecord
from penstock.producing.partitioners import BatchPartitioner
from penstock.streams.declared import Provide

Outcome = tuple[int, int, int, DeliveryError | None]
"""The outcome of one record: its number, partition and offset, or the error, whose `retriable` says whether to send it
again. A tuple, because there is one for each record ever sent."""


class UndecidedError(DeliveryError):
    """The record may be stored or not, and this cannot be found out: sending it again could store it twice."""


class Delivery(Protocol):
    """Delivers records to a stream. Used by one thread, except for `hurry`.

    A FencedError from any method means that another producer took over: nothing more can be sent. Every other error is
    reported in the outcome of a record.
    """

    @property
    def gathers(self) -> bool:
        """Whether the delivery itself waits until a batch is full. Records are then handed over as they come."""

    @property
    def is_whole(self) -> bool:
        """Whether each call of `send` is one transaction. Records of one unit must then be in one call."""

    def start(self) -> None:
        """Prepare for sending. Raises DeliveryError if that is impossible for now; it is called again."""

    def delivered_through(self, first: BufferedRecord) -> int | None:
        """The last number that an earlier process delivered, as far as the stream knows, if that includes `first`, the
        first record in the buffer; else None."""

    def send(self, batch: Sequence[BufferedRecord]) -> None:
        """Hand records over, in this order. May return before their outcomes are known."""

    def outcomes(self, wait_s: float) -> Sequence[Outcome]:
        """The outcomes since the last call, as soon as there are any; empty after `wait_s`."""

    def hurry(self) -> None:
        """Do not linger: a caller waits. Takes about a millisecond. May be called from any thread."""

    def abandon(self) -> None:
        """Stop waiting for outcomes, as the time is over."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DeliveryParts:
    delivery: Delivery
    in_flight: int
    check: Callable[[], None]
    """Raises when the stream cannot be used any more."""
    provide: Provide
    """Creates a topic that was declared."""
    look: Callable[[int, int], object]
    """Warns of a stall, given how many records are in flight and how many were acknowledged."""


def nothing_to_watch(waiting: int, acknowledged: int) -> None:
    """Nothing to do: the delivery warns of stalls itself."""


class StreamDelivery:
    """Appends batches and takes outcomes from the receipts. It adds nothing to the stream's guarantees."""

    gathers = False
    is_whole = False

    def __init__(self, stream: Stream, partitioner: BatchPartitioner | None) -> None:
        if partitioner is not None and Feature.CHOSEN_PARTITION not in stream.features:
            raise ConfigError(f"a partitioner cannot be used on {stream.url}: it has no {Feature.CHOSEN_PARTITION}")
        self._stream = stream
        self._partitioner = partitioner
        self._open: dict[str, TopicStream] = {}
        self._news: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def start(self) -> None:
        """Nothing to do: a connected stream is ready."""

    def delivered_through(self, first: BufferedRecord) -> int | None:
        return None

    def send(self, batch: Sequence[BufferedRecord]) -> None:
        if self._partitioner is not None:
            self._partitioner.new_batch()
        for topic, run in itertools.groupby(batch, key=lambda held: held.record.topic):
            self._append(topic, list(run))

    def _append(self, topic: str, run: list[BufferedRecord]) -> None:
        try:
            stream = self._open.get(topic) or self._open.setdefault(topic, self._stream.open_topic(topic))
            if self._partitioner is not None:
                run = self._placed(stream, run, self._partitioner)
            receipts = stream.append([held.record for held in run])
        except DeliveryError as error:
            self._refuse(run, error)
        except PenstockError as error:
            self._refuse(run, DeliveryError(f"a record for topic {topic!r} was not delivered: {error}"))
        else:
            for held, receipt in zip(run, receipts, strict=True):
                receipt.add_done_callback(functools.partial(self._heard, held.sequence))

    def _heard(self, sequence: int, receipt: Receipt) -> None:
        if receipt.error is not None:
            self._news.put((sequence, -1, -1, receipt.error))
        else:
            place = receipt.result(0)
            self._news.put((sequence, place.partition, place.offset, None))

    def _refuse(self, run: list[BufferedRecord], error: DeliveryError) -> None:
        for held in run:
            self._news.put((held.sequence, -1, -1, error))

    def _placed(
        self, stream: TopicStream, run: list[BufferedRecord], partitioner: BatchPartitioner
    ) -> list[BufferedRecord]:
        """The records with their partitions. Records for which none can be chosen are refused here."""
        count = len(stream.partitions())
        placed = []
        for held in run:
            if held.record.partition is None:
                try:
                    chosen = partitioner(stream.topic, held.record.key, count)
                except ConfigError as error:
                    self._refuse([held], DeliveryError(str(error)))
                    continue
                placed.append(held._replace(record=dataclasses.replace(held.record, partition=chosen)))
            else:
                placed.append(held)
        return placed

    def outcomes(self, wait_s: float) -> Sequence[Outcome]:
        found: list[Outcome] = []
        try:
            found.append(self._news.get(timeout=wait_s) if wait_s > 0 else self._news.get_nowait())
            while True:  # ends when nothing is left
                found.append(self._news.get_nowait())
        except queue.Empty:
            return found

    def hurry(self) -> None:
        """Nothing to do: `append` does not linger."""

    def abandon(self) -> None:
        """Nothing to do: the stream settles what was appended."""

    def close(self) -> None:
        for stream in self._open.values():
            stream.close()
