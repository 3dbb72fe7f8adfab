"""Transactions: records in several partitions, and offsets of a group, written atomically."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.errors import OvertakenError, TransactionLostError
from penstock.model import NewRecord
from penstock.streams.kafka.failures import reason_of
from penstock.streams.kafka.header_names import sendable
from penstock.streams.kafka.producing.producer import KafkaProducer, Row
from penstock.streams.kafka.settings import Configuration, transactional_configuration
from penstock.streams.options import Options

_SLICE_S: Final = 1.0
"""Waits are cut into slices, so that Ctrl-C works. librdkafka resumes most calls, but begins to commit offsets all over
again: each slice is longer than the one before, so that a slow broker gets through in one of them."""
_NO_TOPIC: Final = "__consumer_offsets"
"""A topic that any client may ask for, and that no broker creates for it."""
_SHORTEST_S: Final = 0.1
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5
_OFTEN: Final = 1_000
"""After this many records, deliveries are polled, which makes room in the queue."""
_OVERTAKEN: Final = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.FENCED_INSTANCE_ID}
)


_GRACE_S: Final = 10.0
"""How much longer than its timeout a call may take before it counts as one that never returns."""

Refused = Callable[[KafkaError, Message], None]
"""Called with each record that will not be stored, and the reason."""


class TransactionalProducer(KafkaProducer):
    """A producer with a transactional id. Only the newest producer with the same id may write.

    Starting it aborts what an earlier one left open, and fences that one if it still runs. Use it from one thread at a
    time. After a TransactionLostError it can only be closed, or abort and continue if `must_abort` is set.
    """

    def __init__(
        self,
        configuration: Configuration,
        transactional_id: str,
        timeout_s: float,
        stopping: threading.Event | None = None,
    ) -> None:
        """When `stopping` is set, calls are no longer retried."""
        super().__init__(configuration, timeout_s)
        self._id = transactional_id
        self._stopping = stopping or threading.Event()
        self._is_stuck = False

    def start(self) -> None:
        # Without a connection, librdkafka retries `init_transactions` after half a second. The first answer tells it
        # who the brokers are, and the second one comes over a connection that stays.
        for _ in range(2):
            self._through("reach the broker for", lambda left_s: self.client.list_topics(_NO_TOPIC, left_s))
        self._through("start", self.client.init_transactions)

    def begin(self) -> None:
        self._through("begin", lambda _: self.client.begin_transaction())

    def poll(self, timeout_s: float) -> None:
        self._through("go on with", lambda _: self.client.poll(timeout_s))

    def flush(self, timeout_s: float) -> int:
        self._through("go on with", lambda _: self.client.flush(timeout_s))
        return len(self.client)

    def append_rows(self, rows: Iterable[Row]) -> None:
        """Like `append`, without the cost of creating records."""
        produce, poll = self.try_produce, self.client.poll
        for number, row in enumerate(rows):
            try:
                produce(*row)
            except (BufferError, KafkaException):
                self.produce(row[0], row[1], row[2], row[3], None, row[6], row[7])
            if number % _OFTEN == 0:
                poll(0)

    def append(self, records: Iterable[NewRecord]) -> None:
        """Add records to the transaction, in this order."""
        for record in records:
            self.produce(
                record.topic,
                record.value,
                record.key,
                -1 if record.partition is None else record.partition,
                None,
                record.timestamp_ms or 0,
                sendable(record.headers) if record.headers else None,
            )

    def send_offsets(self, group: str, places: list[TopicPartition]) -> None:
        """Add the group's offsets to the transaction.

        librdkafka (2.16) ignores the timeout of this call while it waits for the group's coordinator, and never returns
        if that broker is gone (librdkafka issues 5456 and 5511). So each attempt has a thread of its own. One that does
        not return is left behind, and the next producer with this id fences the transaction.
        """
        metadata, client = _membership(group), self.client

        def attempt(timeout_s: float) -> None:
            returned = threading.Event()
            errors: list[BaseException] = []

            def send() -> None:
                try:
                    client.send_offsets_to_transaction(places, metadata, timeout_s)
                except BaseException as error:  # raised below, in the thread that waits
                    errors.append(error)
                returned.set()

            threading.Thread(target=send, name="penstock-send-offsets", daemon=True).start()
            if not returned.wait(timeout_s + _GRACE_S):
                self._is_stuck = True
                raise TransactionLostError(
                    f"could not commit the offsets of group {group!r} in a transaction of {self._id!r}: librdkafka "
                    "does not return from the call, most likely because the group's coordinator is gone"
                )
            if errors:
                raise errors[0]

        self._through("commit the group's offsets in", attempt)

    def commit(self, timeout_s: float | None = None) -> None:
        self._through("commit", self.client.commit_transaction, timeout_s)

    def abort(self) -> None:
        self._through("abort", self.client.abort_transaction)

    def close(self) -> None:
        """Close it. An open transaction stays open until the next producer starts, or until it times out."""
        if not self._is_stuck:
            self.purge()  # else librdkafka would wait for records that it cannot send
        super().close()

    def no_room(self, topic: str) -> TransactionLostError:
        return TransactionLostError(
            f"no room for a record for topic {topic!r} within {self.timeout_s:g} s; check that the broker runs"
        )

    def _not_taken(self, topic: str, error: KafkaException) -> TransactionLostError:
        return self._lost("take a record into", error)

    def _is_closed(self) -> TransactionLostError:
        return TransactionLostError(f"the producer of transactions {self._id!r} is closed")

    def _through(self, what: str, call: Callable[[float], object], timeout_s: float | None = None) -> None:
        """Call it, and retry retriable errors until the timeout."""
        if self._is_stuck:
            raise TransactionLostError(f"could not {what} a transaction of {self._id!r}: an earlier call hangs")
        deadline_s = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        pause_s, slice_s = _FIRST_PAUSE_S, _SLICE_S
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                call(max(_SHORTEST_S, min(slice_s, left_s)))
                return
            except KafkaException as error:
                reason = reason_of(error)
                if reason is None or not reason.retriable() or left_s <= 0 or self._stopping.wait(pause_s):
                    raise self._lost(what, error) from error
            pause_s, slice_s = min(2 * pause_s, _LONGEST_PAUSE_S), 2 * slice_s

    def _lost(self, what: str, error: KafkaException) -> TransactionLostError:
        reason = reason_of(error)
        kind = OvertakenError if reason is not None and reason.code() in _OVERTAKEN else TransactionLostError
        lost = kind(f"could not {what} a transaction of {self._id!r}: {reason.str() if reason else error}")
        lost.must_abort = reason is not None and reason.txn_requires_abort()
        return lost


def start_transactional(
    bootstrap: str,
    options: Options,
    transactional_id: str,
    *,
    timeout_s: float,
    transaction_timeout_s: float,
    on_refused: Refused | None = None,
) -> TransactionalProducer:
    """Start a producer with this id. Its calls report each refused record to `on_refused`."""
    configuration = transactional_configuration(bootstrap, options, transactional_id, transaction_timeout_s)
    if on_refused is not None:
        configuration |= {"on_delivery": on_refused, "delivery.report.only.error": True}
    producer = TransactionalProducer(configuration, transactional_id, timeout_s)
    try:
        producer.start()
    except BaseException:
        producer.close()
        raise
    return producer


@functools.lru_cache(maxsize=1_000)
def _membership(group: str) -> object:
    """The group metadata for committing offsets: only the name, because the transactional id fences old owners."""
    consumer = Consumer({"group.id": group})
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()
