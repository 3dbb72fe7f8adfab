"""Transactions: records to several partitions, and offsets of a group, that count together or not at all."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from penstock.errors import ConfigError, PenstockError
from penstock.model import NewRecord
from penstock.streams.kafka.failures import reason_of
from penstock.streams.kafka.header_names import sendable
from penstock.streams.kafka.settings import transactional_configuration
from penstock.streams.options import Options

_SLICE_S: Final = 1.0
"""Waits are cut into slices, so that Ctrl-C is noticed between them. librdkafka goes on where it was."""
_NO_TOPIC: Final = "__consumer_offsets"
"""Every broker may be asked for it, and none creates it when it is."""
_ROOM_S: Final = 0.1
_PAUSE_S: Final = 0.02
_OFTEN: Final = 1_000
"""After so many records librdkafka is asked which have been stored, so that it makes room for others."""
_OVERTAKEN: Final = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.FENCED_INSTANCE_ID}
)


Refused = Callable[[KafkaError, Message], None]
"""Hears of a record that will not be stored, and why."""

Row = tuple[str, bytes | None, bytes | None, int, None, None, int, list[tuple[str, str | bytes | None]] | None]
"""A record as the positions of `Producer.produce` want it: topic, value, key, partition (-1: that of its key), two that
stay None, timestamp in milliseconds (0: now) and headers."""


class TransactionLostError(PenstockError):
    """A transaction could not be carried out. Its producer is of no use any more; the next one under its id ends it.

    Whether it counts is known unless it was being committed: then the next producer waits for what became of it.
    """


class OvertakenError(TransactionLostError):
    """Another producer has been started under the same transactional id, or the transaction took too long."""


class TransactionalProducer:
    """The producer under a transactional id: of all that were ever started under it, only the newest may write.

    Starting it ends what an earlier one has left open, at once, however that one died, and fences it if it lives. One
    thread uses it at a time. After an error it can only be closed.
    """

    def __init__(
        self,
        bootstrap: str,
        options: Options,
        transactional_id: str,
        *,
        timeout_s: float,
        transaction_timeout_s: float,
        on_refused: Refused | None = None,
    ) -> None:
        """`on_refused` hears, from inside the calls of this object, of each record whose refusal spoils a
        transaction."""
        self._id = transactional_id
        self._timeout_s = timeout_s
        configuration = transactional_configuration(bootstrap, options, transactional_id, transaction_timeout_s)
        if on_refused is not None:
            configuration |= {"on_delivery": on_refused, "delivery.report.only.error": True}
        try:
            self._living: Producer | None = Producer(configuration)
        except KafkaException as error:
            raise ConfigError(f"librdkafka does not take its settings: {error}") from error
        try:
            # Asked to start while it has no connection, librdkafka looks again half a second later. With the first
            # answer it learns who the brokers are, and the second one comes over a connection that stays.
            for _ in range(2):
                self._through("reach the broker for", lambda left_s: self._producer.list_topics(_NO_TOPIC, left_s))
            self._through("start", self._producer.init_transactions)
        except BaseException:
            self.close()
            raise

    @property
    def _producer(self) -> Producer:
        if self._living is None:
            raise TransactionLostError(f"the producer of transactions {self._id!r} is closed")
        return self._living

    def begin(self) -> None:
        self._through("begin", lambda _: self._producer.begin_transaction())

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None = None, partition: int = -1, **more: Any
    ) -> None:
        """Take a record into the transaction. Whether it was stored, `commit` will know: it has no receipt."""
        producer = self._producer
        deadline_s = 0.0
        while True:
            try:
                producer.produce(topic, value, key, partition, **more)
                return
            except BufferError:
                deadline_s = deadline_s or time.monotonic() + self._timeout_s
                if time.monotonic() >= deadline_s:
                    raise TransactionLostError(
                        f"no room for a record for topic {topic!r} within {self._timeout_s:g} s; is the broker up?"
                    ) from None
                producer.poll(_ROOM_S)
            except KafkaException as error:
                raise self._lost("take a record into", error) from error

    def append_rows(self, rows: Iterable[Row]) -> None:
        """Take many records into the transaction, in this order: `append` without the cost of making records."""
        producer = self._producer
        produce = producer.produce
        for number, row in enumerate(rows):
            try:
                produce(*row)
            except (BufferError, KafkaException):
                self.produce(row[0], row[1], row[2], row[3], timestamp=row[6], headers=row[7])
            if number % _OFTEN == 0:
                producer.poll(0)

    def append(self, records: Iterable[NewRecord]) -> None:
        """Take records into the transaction, in this order."""
        for record in records:
            more: dict[str, Any] = {}
            if record.headers:
                more["headers"] = sendable(record.headers)
            if record.timestamp_ms is not None:
                more["timestamp"] = record.timestamp_ms
            partition = -1 if record.partition is None else record.partition
            self.produce(record.topic, record.value, record.key, partition, **more)

    def send_offsets(self, group: str, places: list[TopicPartition]) -> None:
        """The group has come so far if the transaction counts."""
        metadata = _membership(group)
        self._through(
            "tell the group's offsets in",
            lambda timeout_s: self._producer.send_offsets_to_transaction(places, metadata, timeout_s),
        )

    def commit(self) -> None:
        self._through("commit", self._producer.commit_transaction)

    def abort(self) -> None:
        self._through("abort", self._producer.abort_transaction)

    def close(self) -> None:
        """Let go of it. A transaction that is open stays so until the next producer is started, or its time is over."""
        producer, self._living = self._living, None
        if producer is not None:
            producer.purge()  # else librdkafka would wait for what it cannot send

    def _through(self, what: str, call: Callable[[float], object]) -> None:
        """Call it, again and again while librdkafka says that this may help and there is time."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                call(max(_ROOM_S, min(_SLICE_S, left_s)))
                return
            except KafkaException as error:
                reason = reason_of(error)
                if reason is None or not reason.retriable() or left_s <= 0:
                    raise self._lost(what, error) from error
            time.sleep(_PAUSE_S)

    def _lost(self, what: str, error: KafkaException) -> TransactionLostError:
        reason = reason_of(error)
        kind = OvertakenError if reason is not None and reason.code() in _OVERTAKEN else TransactionLostError
        return kind(f"could not {what} a transaction of {self._id!r}: {reason.str() if reason else error}")


@functools.lru_cache(maxsize=1_000)
def _membership(group: str) -> object:
    """What librdkafka needs to know of a group to commit its offsets: here, no more than the name. That they come from
    the right owner is what the transactional id is for."""
    consumer = Consumer({"group.id": group})
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()
