"""Publishing: the rows of a batch and its mark in one Kafka transaction, by the one run of the query that may.

All runs of a query use one transactional id for a target. Starting a producer under it ends what an earlier one has
left open, waits for what that one has under way, and fences it. What the mark says from then on changes by this
producer or by none. So: start it, read the mark, compare, write; if the transaction is committed, nothing came between.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from confluent_kafka import KafkaError, Message

from penstock.errors import (
    BrokerUnavailableError,
    CheckpointMismatchError,
    DeliveryError,
    FencedError,
    OutcomeUnknownError,
    StreamError,
    TransactionAbortedError,
)
from penstock.producing.kafka_client import REFUSED_FOR_GOOD, undelivered
from penstock.spark.sink.marks import NOTHING, TOPIC, Mark, Marks, encode
from penstock.spark.targets import QueryIdentity
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.failures import reason_of
from penstock.streams.kafka.transactions import Row, TransactionalProducer, TransactionLostError

logger = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_S: Final = 60.0
"""How long publishing a batch may take, and how long readers wait for a driver that died inside it and stays away."""

_PREFIX: Final = "penstock.spark"
_ATTEMPTS: Final = 5
_MOST_FREED: Final = 50
_QUEUE_KBYTES: Final = 64 << 10
_QUEUE_RECORDS: Final = 200_000
_AWAY: Final = (TransactionLostError, BrokerUnavailableError, StreamError)


class Publisher:
    """Publishes batches for one target of one query. Used by one thread, and open while the query runs."""

    def __init__(self, connection: Connection, identity: QueryIdentity, target: str, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._id = f"{_PREFIX}.{identity.id}"
        self._key = self._id.encode()
        self._marks = Marks(connection, 2 * timeout_s)
        self._producer: TransactionalProducer | None = None
        self._refused: DeliveryError | None = None
        self._is_in_doubt = False
        """Whether a transaction was being committed when it was lost."""
        self._mark = Mark(
            pipeline=identity.pipeline,
            query=identity.query,
            target=target,
            run=uuid.uuid4().hex,
            epoch=0,
            batch=NOTHING,
            rows=0,
        )

    def open(self) -> None:
        """Fence every other run of the query, and learn which batch was delivered last."""

        def mine() -> Mark | None:
            found = self._marks.find(self._key)
            if found is None:
                return msgspec.structs.replace(self._mark, epoch=1)
            if found.run == self._mark.run:
                return None
            return msgspec.structs.replace(self._mark, epoch=found.epoch + 1, batch=found.batch, rows=found.rows)

        self._settle("open", mine, tuple)

    @property
    def last(self) -> Mark:
        """What was delivered last, by this run or those before it."""
        return self._mark

    def is_delivered(self, batch_id: int) -> bool:
        """CheckpointMismatchError for one so old that Spark would never bring it again."""
        check_order(batch_id, self._mark.batch, self._mark.target)
        return batch_id == self._mark.batch

    def publish(self, batch_id: int, rows: Callable[[], Iterable[Row]], count: int) -> None:
        """Make the rows of a batch count, once. `rows` is asked for them again when a transaction is lost.

        FencedError: a newer run has opened the target. DeliveryError: a record can never be stored, and nothing was.
        TransactionAbortedError, OutcomeUnknownError: it could not be done for now; a run that tries again finds out.
        """

        def mine() -> Mark | None:
            found = self._marks.find(self._key)
            if found is None or found.run != self._mark.run:
                raise FencedError(
                    f"{self._mark.target} of query {self._mark.query!r} of pipeline {self._mark.pipeline!r} was opened "
                    f"by a newer run: this one delivers no more, and batch {batch_id} is for that one to deliver"
                )
            if found.batch == batch_id:
                return None
            return msgspec.structs.replace(found, batch=batch_id, rows=count)

        self._settle(f"publish batch {batch_id}", mine, rows)

    def forget(self) -> None:
        """Remove the mark: nobody will deliver anything again under this identity."""
        if self._producer is not None:
            try:
                self._producer.begin()
                self._producer.produce(TOPIC, None, self._key, 0)
                self._producer.commit()
            except TransactionLostError as error:
                self._discard()
                logger.info("the mark of %s stays: %s", self._id, error)

    def close(self) -> None:
        self._discard()
        self._marks.close()

    def _settle(self, what: str, mine: Callable[[], Mark | None], rows: Callable[[], Iterable[Row]]) -> None:
        """Write rows and the mark that `mine` gives in view of what is there, unless it says that they are there."""
        problem: Exception | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(random.uniform(0, min(1.0, 0.02 * 4**attempt)))
            try:
                if self._producer is None:
                    self._marks.look()
                    mine()  # who was fenced finds out without fencing who is the owner now
                    self._start()
                mark = mine()
                if mark is not None:
                    self._transact(mark, rows)
                    self._marks.wrote(self._key, mark)
                found = mark or self._marks.find(self._key)
                assert found is not None
                self._mark = found
                self._is_in_doubt = False
                return
            except _AWAY as error:
                self._discard()
                problem = error
                logger.info("could not %s of %s: %s", what, self._id, error)
        advice = (
            f"see that the broker runs, and that {self._timeout_s:g} s, the transaction_timeout_s of the target, are "
            "enough for a batch: raise it, or take fewer records per batch"
        )
        kind = OutcomeUnknownError if self._is_in_doubt else TransactionAbortedError
        raise kind(f"could not {what} to {self._mark.target}: {problem}; {advice}") from problem

    def _start(self) -> None:
        producer = self._new_producer(self._id)
        try:
            self._marks.look_to_the_end(self._free)
        except BaseException:
            producer.close()
            raise
        self._producer = producer

    def _transact(self, mark: Mark, rows: Callable[[], Iterable[Row]]) -> None:
        producer = self._producer
        assert producer is not None
        self._refused = None
        try:
            producer.begin()
            producer.append_rows(rows())
            producer.produce(TOPIC, encode(mark), self._key, 0)
            self._is_in_doubt = True
            producer.commit()
        except TransactionLostError as error:
            refused = self._refused or _refused_by(error)
            if refused is None:
                raise
            self._abort(producer)
            self._is_in_doubt = False
            raise refused from error
        except BaseException:
            self._abort(producer)
            raise

    def _abort(self, producer: TransactionalProducer) -> None:
        """Let readers go on at once, where that can be done; else the next producer under the id ends it."""
        try:
            producer.abort()
        except TransactionLostError as error:
            logger.info("a transaction of %s is left to the next producer: %s", self._id, error)
        finally:
            self._discard()

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _new_producer(self, transactional_id: str) -> TransactionalProducer:
        options = self._connection.options
        bounded = {
            "queue.buffering.max.kbytes": _QUEUE_KBYTES,
            "queue.buffering.max.messages": _QUEUE_RECORDS,
            **options.librdkafka,
        }
        return TransactionalProducer(
            self._connection.bootstrap,
            dataclasses.replace(options, librdkafka=bounded),
            transactional_id,
            timeout_s=self._timeout_s,
            transaction_timeout_s=self._timeout_s,
            on_refused=self._hear_refused,
        )

    def _hear_refused(self, error: KafkaError, message: Message) -> None:
        if self._refused is None and error.code() in REFUSED_FOR_GOOD:
            self._refused = undelivered(str(message.topic()), error)

    def _free(self) -> None:
        """Somebody's transaction keeps the marks from being read: perhaps a driver that died while it committed.

        Those who may have left it are overtaken, which ends it. One who lives begins that transaction again.
        """
        for key in self._marks.keys()[-_MOST_FREED:]:
            if key != self._key:
                self._new_producer(key.decode()).close()


def check_order(batch_id: int, last: int, target: str) -> None:
    """After a crash Spark brings the last batch again, or the next one: never one before."""
    if batch_id < last:
        raise CheckpointMismatchError(
            f"batch {batch_id} comes for {target}, to which batch {last} of this query was delivered already: the "
            "checkpoint is older than what was delivered, perhaps restored from a copy. Restore a newer one, or remove "
            "it and choose where the query starts"
        )


def _refused_by(error: TransactionLostError) -> DeliveryError | None:
    """Whether librdkafka did not even take a record, for good."""
    reason = reason_of(error.__cause__) if error.__cause__ is not None else None
    if reason is None or reason.code() not in REFUSED_FOR_GOOD:
        return None
    return DeliveryError(f"a record was not delivered, and its batch was not: {reason.str()}")
