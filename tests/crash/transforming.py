"""A program that reads one topic and writes another, a transaction at a time: exactly once, whatever crashes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.clients import confluent
from tests.crash.load import PATIENT, Worker
from tests.servers import Server

STEP_TIMEOUT_S: Final = 10.0
RETRY_TIMEOUT_S: Final = 60.0

Answer = TypeVar("Answer")


class FatalError(Exception):
    """The producer is of no use any more: the program starts over, as it would after a crash of its own."""


class Transformer(Worker):
    """One instance. Several share the work as members of one group."""

    def __init__(self, server: Server, source: str, target: str, group: str, name: str, seed: int) -> None:
        super().__init__(name)
        self.starts = 0
        self.aborted = 0
        self._server = server
        self._source = source
        self._target = target
        self._group = group
        self._rng = random.Random(seed)

    def work(self) -> None:
        while not self.finishing.is_set():
            self.starts += 1
            try:
                self._live()
            except FatalError:
                continue

    def _live(self) -> None:
        settings = {**PATIENT, "transactional.id": self.name, "transaction.timeout.ms": 20_000, "linger.ms": 0}
        producer = confluent.producer(self._server, settings)
        retried(lambda: producer.init_transactions(STEP_TIMEOUT_S))
        committed = {**PATIENT, "isolation.level": "read_committed"}
        with confluent.consumer(self._server, self._group, committed) as consumer:
            consumer.subscribe([self._source])
            while not self.finishing.is_set():
                self._step(consumer, producer)

    def _step(self, consumer: Consumer, producer: Producer) -> None:
        messages = [message for message in consumer.consume(100, timeout=0.1) if message.error() is None]
        if not messages:
            return
        records = [confluent.received_from(message) for message in messages]
        positions = {record.partition: record.offset + 1 for record in records}
        places = [TopicPartition(self._source, *place) for place in positions.items()]
        try:
            producer.begin_transaction()
            for record in records:
                producer.produce(self._target, record.value, record.key)
            member = consumer.consumer_group_metadata()
            retried(lambda: producer.send_offsets_to_transaction(places, member, STEP_TIMEOUT_S))
            if self.aborted == 0 or self._rng.random() < 0.1:
                self._go_back(consumer, producer)
                return
            retried(lambda: producer.commit_transaction(STEP_TIMEOUT_S))
        except KafkaException as error:
            reason = error.args[0]
            assert isinstance(reason, KafkaError)
            if not reason.txn_requires_abort():
                raise FatalError(str(reason)) from error
            self._go_back(consumer, producer)
            return
        self.progress += len(records)

    def _go_back(self, consumer: Consumer, producer: Producer) -> None:
        """Abort, and read again what was read in vain."""
        self.aborted += 1
        try:
            retried(lambda: producer.abort_transaction(STEP_TIMEOUT_S))
            assigned = consumer.assignment()
            committed = retried(lambda: consumer.committed(assigned, STEP_TIMEOUT_S)) if assigned else []
            for place in committed:
                consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))
        except KafkaException as error:
            raise FatalError(str(error)) from error


def retried(call: Callable[[], Answer]) -> Answer:
    """Call again while the error is one that says so."""
    deadline = time.monotonic() + RETRY_TIMEOUT_S
    while True:
        try:
            return call()
        except KafkaException as error:
            reason = error.args[0]
            assert isinstance(reason, KafkaError)
            if not reason.retriable() or time.monotonic() > deadline:
                raise
