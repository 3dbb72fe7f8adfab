"""The intake of a feed: turns librdkafka's messages into batches, partition by partition."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from penstock.errors import PenstockError
from penstock.model import Batch, Pointer
from penstock.streams.kafka.failures import is_passing, refused
from penstock.streams.kafka.reading.batch import KafkaBatch, offset_of

logger = logging.getLogger(__name__)

_MOST_HELD: Final = 10_000
_MOST_HELD_BYTES: Final = 8 * 1024 * 1024
"""How much of a paused partition is held here. With more, librdkafka is told to stop fetching it."""


@dataclass(slots=True)
class Reading:
    """A partition that is being read."""

    next: Pointer
    """Where the next batch starts."""
    paused: bool = False
    held: list[Message] = field(default_factory=list)
    """Messages that came while it was paused. They are returned first."""
    held_bytes: int = 0
    end: Pointer | None = None
    """The end of the partition when it was last seen; None once messages came after it."""
    gone: bool = False
    """Whether librdkafka stopped because the next offset does not exist."""
    stopped: bool = False
    """Whether librdkafka was told to pause it."""

    @property
    def is_full(self) -> bool:
        return len(self.held) >= _MOST_HELD or self.held_bytes >= _MOST_HELD_BYTES


class Intake:
    """The partitions that are read, and how far. Handles messages, not the consumer.

    Messages of a paused partition are first held here. librdkafka's own pause discards what was prefetched, so short
    pauses would fetch everything again and again. librdkafka pauses a partition only once it `is_full`.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.readings: dict[int, Reading] = {}
        self._paused = 0
        self._holding: set[int] = set()
        """Partitions with held messages."""
        self.gone: set[int] = set()
        """Partitions whose next offset does not exist, and that have no messages left before it."""
        self._error: PenstockError | None = None

    @property
    def is_silent(self) -> bool:
        """Whether all partitions are paused."""
        return self._paused == len(self.readings)

    def add(self, partition: int, start: Pointer) -> None:
        self.remove(partition)
        self.readings[partition] = Reading(start)

    def remove(self, partition: int) -> None:
        reading = self.readings.pop(partition, None)
        if reading is not None:
            self._paused -= reading.paused
            self._holding.discard(partition)
            self.gone.discard(partition)

    def pause(self, partition: int) -> None:
        reading = self.readings.get(partition)
        if reading is not None and not reading.paused:
            reading.paused = True
            self._paused += 1

    def resume(self, partition: int) -> bool:
        """Resume a partition. Returns whether librdkafka must resume it, too."""
        reading = self.readings.get(partition)
        if reading is None or not reading.paused:
            return False
        reading.paused = False
        self._paused -= 1
        was_stopped, reading.stopped = reading.stopped, False
        return was_stopped

    def overfull(self) -> list[int]:
        """Partitions that librdkafka must pause now. They are marked as stopped."""
        full = [
            partition
            for partition in self._holding
            if (reading := self.readings[partition]).paused and reading.is_full and not reading.stopped
        ]
        for partition in full:
            self.readings[partition].stopped = True
        return full

    def raise_error(self) -> None:
        """Raise the last permanent error of librdkafka, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def release(self, limit: int) -> list[Batch]:
        """Held messages of partitions that are no longer paused, at most `limit` records."""
        batches: list[Batch] = []
        for partition in [partition for partition in self._holding if not self.readings[partition].paused]:
            if limit <= 0:
                break
            reading = self.readings[partition]
            messages, reading.held = reading.held[:limit], reading.held[limit:]
            if reading.held:
                reading.held_bytes -= sum(map(len, messages))
            else:
                reading.held_bytes = 0
                self._holding.discard(partition)
            limit -= len(messages)
            batches.append(self._batch(partition, reading, messages))
        return batches

    def take(self, messages: list[Message]) -> list[Batch]:
        """The batches of these messages. Those of paused partitions are held."""
        ends: list[int] = []
        if any(map(Message.error, messages)):
            messages = self._without_events(messages, ends)
        runs: dict[int | None, list[Message]] = {}
        for partition, together in itertools.groupby(messages, Message.partition):
            if partition in runs:
                runs[partition].extend(together)
            else:
                runs[partition] = list(together)
        batches: list[Batch] = []
        for partition, run in runs.items():
            assert partition is not None
            batch = self._take_run(partition, run)
            if batch is not None:
                batches.append(batch)
        for partition in ends:
            batch = self._advance_to_end(partition)
            if batch is not None:
                batches.append(batch)
        return batches

    def _take_run(self, partition: int, run: list[Message]) -> Batch | None:
        reading = self.readings.get(partition)
        if reading is None:
            return None  # the partition was removed since
        if offset_of(run[0]) < reading.next:  # the partition was moved since
            run = [message for message in run if offset_of(message) >= reading.next]
            if not run:
                return None
        if reading.end is not None and offset_of(run[-1]) >= reading.end:
            reading.end = None
        if reading.paused or reading.held:
            reading.held += run
            reading.held_bytes += sum(map(len, run))
            self._holding.add(partition)
            return None
        return self._batch(partition, reading, run)

    def _batch(self, partition: int, reading: Reading, messages: Sequence[Message]) -> Batch:
        start, reading.next = reading.next, offset_of(messages[-1]) + 1
        if not reading.held:
            self._settle(partition, reading)
        return KafkaBatch(self._topic, partition, start, reading.next, messages)

    def _settle(self, partition: int, reading: Reading) -> None:
        """Note that all messages of the partition were returned."""
        if reading.end is not None:
            # After the last record there may be transaction markers, or records that compaction has removed.
            reading.next = max(reading.next, reading.end)
        if reading.gone:
            self.gone.add(partition)

    def _advance_to_end(self, partition: int) -> Batch | None:
        """An empty batch up to the end of a partition, if there are only offsets without records before it."""
        reading = self.readings.get(partition)
        if reading is None or reading.held or reading.end is None or reading.end <= reading.next:
            return None
        start, reading.next = reading.next, reading.end
        return KafkaBatch(self._topic, partition, start, reading.next)

    def _without_events(self, messages: list[Message], ends: list[int]) -> list[Message]:
        """The messages that are records. Events are noted, and partitions at their end are added to `ends`."""
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                continue
            partition = message.partition()
            reading = self.readings.get(-1 if partition is None else partition)
            if error.code() == KafkaError._PARTITION_EOF:
                if reading is not None and partition is not None:
                    reading.end = offset_of(message)
                    ends.append(partition)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                if reading is not None and partition is not None:
                    reading.gone = True
                    if not reading.held:
                        self.gone.add(partition)
            else:
                self._note_error(error)
        return records

    def _note_error(self, error: KafkaError) -> None:
        reason = KafkaException(error)
        if not error.fatal() and (is_passing(reason) or error.code() == KafkaError._MAX_POLL_EXCEEDED):
            logger.info("reading topic %r continues after: %s", self._topic, error.str())
        elif self._error is None:
            self._error = refused(f"topic {self._topic!r} cannot be read", reason)
