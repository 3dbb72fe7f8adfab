"""Delivery to Kafka without transactions: librdkafka batches, orders and retries."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from penstock.errors import ConfigError, DeliveryError
from penstock.model import NewRecord
from penstock.producing.buffers import BufferedRecord
from penstock.producing.delivering import Outcome
from penstock.producing.kafka.client import PartitionCounts, configuration
from penstock.producing.partitioners import BatchPartitioner
from penstock.producing.settings import ProducerSettings
from penstock.streams.kafka.failures import not_delivered, not_taken, reason_of
from penstock.streams.kafka.header_names import sendable
from penstock.streams.kafka.producing.producer import KafkaProducer
from penstock.streams.kafka.producing.stalls import StallWatch
from penstock.streams.kafka.stream import KafkaStream

logger = logging.getLogger(__name__)

_ROOM_S: Final = 0.01


class Handover:
    """Hands records to librdkafka, and collects its delivery reports. Survives a change of the producer."""

    def __init__(self, partitioner: BatchPartitioner | None, stalls: StallWatch) -> None:
        """`stalls` knows why records are not acknowledged."""
        self._partitioner = partitioner
        self._stalls = stalls
        self._counts = PartitionCounts()
        self._news: list[Outcome] = []
        self.fatal: KafkaError | None = None
        """The fatal error of the producer, if it reported one."""
        self.given_up: str | None = None
        """Why the records in flight were abandoned, if they were."""

    def produce(self, producer: KafkaProducer, held: BufferedRecord) -> None:
        """Hand records to librdkafka. Errors become outcomes."""
        sequence, record = held[0], held[1]
        partition = record.partition
        try:
            if partition is None:
                partition = -1 if self._partitioner is None else self._choose(producer, record, self._partitioner)
            heard = functools.partial(self._heard, record.topic, sequence)
            while True:  # ends: librdkafka's queue empties, by acknowledgements or by timeouts
                try:
                    producer.try_produce(
                        record.topic,
                        record.value,
                        record.key,
                        partition,
                        heard,
                        None,
                        record.timestamp_ms or 0,
                        sendable(record.headers) if record.headers else None,
                    )
                    return
                except BufferError:
                    producer.poll(_ROOM_S)
        except ConfigError as error:
            self.report(held, DeliveryError(f"a record for topic {record.topic!r} was not delivered: {error}"))
        except DeliveryError as error:
            self.report(held, error)
        except KafkaException as error:
            self.report(held, not_taken(record.topic, error))

    def _choose(self, producer: KafkaProducer, record: NewRecord, partitioner: BatchPartitioner) -> int:
        return partitioner(record.topic, record.key, self._counts.of(record.topic, producer))

    def new_batch(self) -> None:
        if self._partitioner is not None:
            self._partitioner.new_batch()

    def note_fatal(self, error: KafkaException) -> None:
        """Note that the producer can no longer send. It reports every record in flight as failed."""
        self.fatal = reason_of(error)
        logger.warning("librdkafka gave up: %s", error)

    def report(self, held: BufferedRecord, error: DeliveryError) -> None:
        self._news.append((held.sequence, -1, -1, error))

    def take_news(self) -> list[Outcome]:
        news, self._news = self._news, []
        return news

    def _heard(self, topic: str, sequence: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._news.append((sequence, message.partition(), message.offset(), None))  # type: ignore[arg-type]
            return
        if error.fatal():
            self.fatal = error
        self._news.append((sequence, -1, -1, not_delivered(topic, error, self.given_up, self._stalls.why)))


class KafkaDelivery:
    """Delivers records in order per partition. With an idempotent producer, each is stored once while this process
    lives."""

    gathers = True
    is_whole = False

    def __init__(
        self,
        connection: KafkaStream,
        settings: ProducerSettings,
        partitioner: BatchPartitioner | None,
        *,
        durable: bool,
    ) -> None:
        self._configuration = configuration(connection, settings, durable=durable)
        self._durable = durable
        self._timeout_s = settings.delivery_timeout_s
        self._producer = KafkaProducer(self._configuration, self._timeout_s)
        self.stalls = StallWatch(connection.bootstrap, connection.options)
        self._handover = Handover(partitioner, self.stalls)
        self._hurried = False

    def start(self) -> None:
        """Nothing to do: librdkafka connects by itself."""

    def delivered_through(self, first: BufferedRecord) -> int | None:
        return None

    def send(self, batch: Sequence[BufferedRecord]) -> None:
        if self._handover.fatal is not None:
            self._handover.fatal = None
            self._producer.close()
            self._producer = KafkaProducer(self._configuration, self._timeout_s)
        self._handover.new_batch()
        for held in batch:
            self._handover.produce(self._producer, held)
        if batch:
            self._producer.warm_up(batch[0].record.topic)

    def outcomes(self, wait_s: float) -> Sequence[Outcome]:
        news = self._handover.take_news()
        try:
            if news:
                self._producer.poll(0)
            elif self._hurried:
                self._hurried = False
                self._producer.flush(wait_s)
            else:
                self._producer.poll(wait_s)
        except KafkaException as error:
            self._handover.note_fatal(error)
        news += self._handover.take_news()
        if self._durable:
            return news
        # librdkafka has retried as long as a record in memory may be retried.
        for outcome in news:
            if outcome[3] is not None:
                outcome[3].retriable = False
        return news

    def hurry(self) -> None:
        self._hurried = True

    def abandon(self) -> None:
        self._handover.given_up = "the producer was closed before it was acknowledged; it may be stored or not"
        try:
            self._producer.purge()
            self._producer.flush(_ROOM_S)
        except KafkaException as error:
            self._handover.note_fatal(error)

    def close(self) -> None:
        self._producer.close()
