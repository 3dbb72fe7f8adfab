"""Delivering to any stream, by `append`."""

from __future__ import annotations

import dataclasses
import itertools
import queue
from collections.abc import Sequence

from penstock.abc import Feature, Stream, Streams
from penstock.errors import ConfigError, DeliveryError, PenstockError
from penstock.model import Receipt
from penstock.producing.delivering import Outcome
from penstock.producing.kept import Held
from penstock.producing.partitioners import BatchPartitioner


class StreamDelivery:
    """Appends batches, and hears of each record from its receipt. It adds nothing to what the stream promises."""

    gathers = False
    is_whole = False

    def __init__(self, streams: Streams, partitioner: BatchPartitioner | None) -> None:
        if partitioner is not None and Feature.CHOSEN_PARTITION not in streams.features:
            raise ConfigError(f"a partitioner cannot be used on {streams.url}: it has no {Feature.CHOSEN_PARTITION}")
        self._streams = streams
        self._partitioner = partitioner
        self._open: dict[str, Stream] = {}
        self._news: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def start(self) -> None:
        """A stream that is connected is ready."""

    def delivered_through(self, first: Held) -> int | None:
        return None

    def send(self, batch: Sequence[Held]) -> None:
        if self._partitioner is not None:
            self._partitioner.new_batch()
        for topic, run in itertools.groupby(batch, key=lambda held: held.record.topic):
            self._append(topic, list(run))

    def _append(self, topic: str, run: list[Held]) -> None:
        try:
            stream = self._open.get(topic) or self._open.setdefault(topic, self._streams.stream(topic))
            if self._partitioner is not None:
                run = self._placed(stream, run, self._partitioner)
            receipts = stream.append([held.record for held in run])
        except DeliveryError as error:
            self._refuse(run, error)
        except PenstockError as error:
            self._refuse(run, DeliveryError(f"a record for topic {topic!r} was not delivered: {error}"))
        else:
            for held, receipt in zip(run, receipts, strict=True):
                receipt.add_done_callback(_Listener(self._news, held.sequence))

    def _refuse(self, run: list[Held], error: DeliveryError) -> None:
        for held in run:
            self._news.put((held.sequence, -1, -1, error))

    def _placed(self, stream: Stream, run: list[Held], partitioner: BatchPartitioner) -> list[Held]:
        """The records with their partitions chosen; those for which it could not be are refused here."""
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
        """`append` is all that can be done."""

    def abandon(self) -> None:
        """What was appended is the stream's."""

    def close(self) -> None:
        for stream in self._open.values():
            stream.close()


class _Listener:
    """Hears from a receipt of the stream."""

    __slots__ = ("_news", "_sequence")

    def __init__(self, news: queue.SimpleQueue[Outcome], sequence: int) -> None:
        self._news = news
        self._sequence = sequence

    def __call__(self, receipt: Receipt) -> None:
        if receipt.error is not None:
            self._news.put((self._sequence, -1, -1, receipt.error))
        else:
            place = receipt.result(0)
            self._news.put((self._sequence, place.partition, place.offset, None))
