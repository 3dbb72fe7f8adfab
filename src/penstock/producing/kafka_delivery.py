"""Delivering to Kafka's streams without transactions: librdkafka gathers, orders and tries again by itself."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.errors import ConfigError, DeliveryError
from penstock.model import NewRecord
from penstock.producing.delivering import Outcome
from penstock.producing.kafka_client import PartitionCounts, configuration, make_producer, undelivered
from penstock.producing.kept import Held
from penstock.producing.partitioners import BatchPartitioner
from penstock.producing.settings import ProducerSettings
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.failures import reason_of
from penstock.streams.kafka.header_names import sendable
from penstock.streams.kafka.introduction import Introduction

logger = logging.getLogger(__name__)

_ROOM_S: Final = 0.01


class Handover:
    """Hands records to librdkafka, and collects what it reports about them. For one producer after the other."""

    def __init__(self, partitioner: BatchPartitioner | None) -> None:
        self._partitioner = partitioner
        self._counts = PartitionCounts()
        self._news: list[Outcome] = []
        self.fatal: KafkaError | None = None
        """Why the producer can send no more, if it said so."""
        self.given_up: str | None = None
        """Why we let go of what was under way, if we did."""

    def produce(self, producer: Producer, held: Held) -> None:
        """What goes wrong is an outcome."""
        sequence, record = held[0], held[1]
        partition = record.partition
        try:
            if partition is None:
                partition = -1 if self._partitioner is None else self._choose(producer, record, self._partitioner)
            heard = functools.partial(self._heard, record.topic, sequence)
            while True:  # ends: librdkafka's buffer empties, by acknowledgements or by timeouts
                try:
                    producer.produce(
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
            reason = reason_of(error)
            self.report(held, undelivered(record.topic, reason) if reason else DeliveryError(str(error)))

    def _choose(self, producer: Producer, record: NewRecord, partitioner: BatchPartitioner) -> int:
        return partitioner(record.topic, record.key, self._counts.of(record.topic, producer))

    def new_batch(self) -> None:
        if self._partitioner is not None:
            self._partitioner.new_batch()

    def note_fatal(self, error: KafkaException) -> None:
        """The producer can send no more. It reports every record that is under way as failed."""
        self.fatal = reason_of(error)
        logger.warning("librdkafka gave up: %s", error)

    def report(self, held: Held, error: DeliveryError) -> None:
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
        self._news.append((sequence, -1, -1, undelivered(topic, error, self.given_up)))


class KafkaDelivery:
    """In order for each partition, and each record once while this process lives, where the producer is idempotent."""

    gathers = True
    is_whole = False

    def __init__(
        self,
        connection: Connection,
        settings: ProducerSettings,
        partitioner: BatchPartitioner | None,
        *,
        durable: bool,
    ) -> None:
        self._configuration = configuration(connection, settings, durable=durable)
        self._durable = durable
        self._producer: Producer | None = make_producer(self._configuration)
        self._introduction: Introduction | None = None
        self._handover = Handover(partitioner)
        self._hurried = False

    def start(self) -> None:
        """librdkafka connects by itself."""

    def delivered_through(self, first: Held) -> int | None:
        return None

    def send(self, batch: Sequence[Held]) -> None:
        if self._handover.fatal is not None:
            self._handover.fatal = None
            self._producer = make_producer(self._configuration)
            self._end_introduction()
        assert self._producer is not None
        self._handover.new_batch()
        for held in batch:
            self._handover.produce(self._producer, held)
        if self._introduction is None and batch:
            self._introduction = Introduction(self._producer, batch[0].record.topic)

    def outcomes(self, wait_s: float) -> Sequence[Outcome]:
        assert self._producer is not None
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
        # librdkafka has tried for as long as a record in memory may be tried.
        for outcome in news:
            if outcome[3] is not None:
                outcome[3].retriable = False
        return news

    def hurry(self) -> None:
        self._hurried = True

    def abandon(self) -> None:
        producer = self._producer
        if producer is None:
            return
        self._handover.given_up = "the producer was closed before it was acknowledged; it may be stored or not"
        try:
            producer.purge()
            producer.flush(_ROOM_S)
        except KafkaException as error:
            self._handover.note_fatal(error)

    def close(self) -> None:
        self._end_introduction()
        self._producer = None  # with the last reference go librdkafka's threads and sockets

    def _end_introduction(self) -> None:
        introduction, self._introduction = self._introduction, None
        if introduction is not None:
            introduction.close()
