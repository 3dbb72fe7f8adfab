"""One topic in RabbitMQ streams, as `abc.TopicStream`."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from penstock.abc import Feature, Features
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    DeliveryError,
    UnknownTopicError,
)
from penstock.model import Batch, NewRecord, Pointer, Receipt
from penstock.streams.adapting.append_queue import Appended, AppendQueue, Attempt
from penstock.streams.adapting.servers import import_extra
from penstock.streams.adapting.stream_base import PARTITIONED_LOG, TopicBase, check_limit
from penstock.streams.rabbitmq.client import StreamClient, new_name
from penstock.streams.rabbitmq.messages import message_of
from penstock.streams.rabbitmq.protocol import MESSAGE_OVERHEAD, PUBLISH_OVERHEAD
from penstock.streams.rabbitmq.reader import PartitionReader
from penstock.streams.rabbitmq.settings import RabbitMqSettings
from penstock.streams.rabbitmq.topics import StreamTopic
from penstock.streams.rabbitmq.writer import Outgoing, PartitionWriter

FEATURES: Final[Features] = PARTITIONED_LOG | {Feature.OFFSETS, Feature.IDEMPOTENCE}
_READERS: Final = 4
"""How many places in one partition are kept open for the next read."""
_HASH_SEED: Final = 104729
"""With which clients of RabbitMQ spread keys over the partitions of a super stream."""


class RabbitMqTopicStream(TopicBase):
    """A topic of `RabbitMqBackend`."""

    features = FEATURES

    def __init__(self, topic: str, client: StreamClient, settings: RabbitMqSettings) -> None:
        super().__init__(topic)
        self._client = client
        self._settings = settings
        self._hash = import_mmh3().hash
        self._place = StreamTopic(topic, client, settings)
        self._streams: tuple[str, ...] = ()
        """Names of the partitions; empty if they are not known."""
        self._lock = threading.Lock()
        self._readers: defaultdict[int, list[PartitionReader]] = defaultdict(list)
        """Readers that no thread uses now, by partition."""
        self._queue = AppendQueue(topic, self._plan, timeout_s=settings.delivery_timeout_s)
        self._producer = new_name()
        self._writers: dict[int, PartitionWriter] = {}
        self._numbers = itertools.count(1)
        self._turns = itertools.count()

    def partitions(self) -> Sequence[int]:
        self._check_open()
        self._streams = self._place.required()
        return range(len(self._streams))

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        state = self._place.state(self._stream(partition))
        return state.first, state.end

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        check_limit(limit)
        stream = self._stream(partition)
        reader = self._kept_reader(partition, start)
        if reader is None:
            reader = self._new_reader(partition, stream, start)
        try:
            records = reader.read(limit, wait_s)
        except BaseException:
            self._drop(reader)
            raise
        self._keep(partition, reader)
        self._check_open()
        return Batch(self.topic, partition, start, reader.next if records else start, records)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return self._queue.put(records)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._queue.close()
        with self._lock:
            readers = [reader for kept in self._readers.values() for reader in kept]
            self._readers.clear()
        for reader in readers:
            self._drop(reader)
        self._drop_writers()

    def _stream(self, partition: int) -> str:
        """The stream of a partition. Raises UnknownTopicError."""
        self._check_open()
        if partition >= len(self._streams):
            self._streams = self._place.required()
        if not 0 <= partition < len(self._streams):
            raise self._place.unknown(partition)
        return self._streams[partition]

    def _new_reader(self, partition: int, stream: str, start: Pointer) -> PartitionReader:
        try:
            return PartitionReader(self._place, self._client, partition, stream, start, self._settings.timeout_s)
        except UnknownTopicError:
            self._streams = ()  # it was deleted, and may have been created again with other partitions
            raise

    def _kept_reader(self, partition: int, start: Pointer) -> PartitionReader | None:
        """A reader that goes on at this place."""
        with self._lock:
            kept = self._readers[partition]
            over = [reader for reader in kept if reader.is_over]
            for reader in over:
                kept.remove(reader)
            found = next((reader for reader in kept if reader.next == start), None)
            if found is not None:
                kept.remove(found)
        for reader in over:
            self._drop(reader)
        return found

    def _keep(self, partition: int, reader: PartitionReader) -> None:
        """Keep a reader for the next read, and close the oldest one that was kept."""
        with self._lock:
            kept = self._readers[partition]
            kept.append(reader)
            oldest = kept.pop(0) if len(kept) > _READERS or self._is_closed else None
        if oldest is not None:
            self._drop(oldest)

    def _drop(self, part: PartitionReader | PartitionWriter) -> None:
        with contextlib.suppress(ConnectionClosedError, BrokerUnavailableError):  # it ended with the connection
            part.close()

    def _plan(self, batch: Sequence[Appended]) -> Attempt:
        turn = next(self._turns)
        planned: dict[int, list[Outgoing]] | None = None
        sent: set[int] = set()

        def attempt() -> None:
            nonlocal planned
            self._streams = self._streams or self._place.provided()
            if planned is None:
                planned = self._assigned(batch, turn)
            try:
                for partition, outgoing in planned.items():
                    is_new = partition not in sent
                    sent.add(partition)
                    self._writer(partition).send(outgoing, is_new=is_new)
                for partition in planned:
                    self._writer(partition).wait()
            except UnknownTopicError as error:
                self._streams = ()
                self._drop_writers()
                raise BrokerUnavailableError(f"topic {self.topic!r} is not there any more: {error}") from error

        return attempt

    def _assigned(self, batch: Sequence[Appended], turn: int) -> dict[int, list[Outgoing]]:
        """The messages for each partition. Settles the receipts of records that cannot be sent."""
        count, producer = len(self._streams), self._producer.encode()
        most_bytes = self._client.connection().frame_max - PUBLISH_OVERHEAD - MESSAGE_OVERHEAD
        assigned: dict[int, list[Outgoing]] = {}
        for appended in batch:
            record, number = appended.record, next(self._numbers)
            if record.partition is not None:
                partition = record.partition
            elif count == 1:
                partition = 0
            else:
                key = record.key
                partition = turn % count if key is None else self._hash(key, _HASH_SEED, signed=False) % count
            message = message_of(record, producer, number)
            if not 0 <= partition < count:
                refusal = f"topic {self.topic!r} has no partition {partition}: it has {count}"
            elif len(message) > most_bytes:
                refusal = (
                    f"a record for {self.topic!r} takes {len(message)} bytes, more than {self._client.where} accepts, "
                    f"{most_bytes}: raise stream.frame_max of the server, or keep large values elsewhere"
                )
            else:
                assigned.setdefault(partition, []).append(Outgoing(appended, number, message))
                continue
            appended.receipt.settle(partition, -1, DeliveryError(refusal))
        return assigned

    def _writer(self, partition: int) -> PartitionWriter:
        writer = self._writers.get(partition)
        if writer is None:
            writer = self._writers[partition] = PartitionWriter(
                self._place,
                self._client,
                partition,
                self._streams[partition],
                f"penstock-{self._producer}",
                self._settings.timeout_s,
            )
        return writer

    def _drop_writers(self) -> None:
        while self._writers:
            self._drop(self._writers.popitem()[1])

    def _at_time(self, partition: int, time_ms: int) -> Pointer:
        return self._place.at_time(self._stream(partition), time_ms)

    def _pointer_of(self, text: str) -> Pointer:
        if not (text.isdecimal() and text.isascii()):
            raise ConfigError(f"{text!r} is not an offset of RabbitMQ: they are whole numbers from 0 on")
        return int(text)


def import_mmh3() -> Any:
    return import_extra("mmh3", "RabbitMQ streams", "rabbitmq")
