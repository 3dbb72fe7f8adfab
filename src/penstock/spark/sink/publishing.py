"""Publishing: write the rows of a batch and its mark in one Kafka transaction.

A mark is the last delivered batch of a query, a record in a compacted topic of the same stream. It is the last record
of the transaction that delivers its batch: both are committed, or neither is.

All runs of a query use the same transactional id for a target. Starting a producer with that id aborts an open
transaction of an earlier producer, waits for one that is being committed, and fences that producer. From then on, only
the new producer can change the mark. So the publisher starts a producer, reads the mark, compares it, and writes; if
the transaction commits, no other run has written in between.
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
    PipelineError,
    StreamError,
    TransactionAbortedError,
    TransactionLostError,
)
from penstock.model import Position
from penstock.spark.sink.target import QueryIdentity
from penstock.streams.kafka.failures import REFUSED_FOR_GOOD, not_delivered, reason_of
from penstock.streams.kafka.producing.producer import Row
from penstock.streams.kafka.producing.transactions import Refused, TransactionalProducer, start_transactional
from penstock.streams.kafka.stream import KafkaStream
from penstock.streams.options import Options

TOPIC: Final = "penstock.spark.batches"
NOTHING: Final = -1
"""The batch number before the first delivery."""

_SETTINGS: Final = {
    "cleanup.policy": "compact",
    # The newest segment is never compacted, and opening a target reads the whole topic.
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_AT_ONCE: Final = 5_000
_WAIT_S: Final = 0.1
_PATIENCE_S: Final = 3.0
"""How long another producer's open transaction may block reading before it is fenced."""


class TaskTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction with rows of a batch, which a task has flushed and left open for the driver to commit."""

    id: str
    """The transactional id of the task's attempt."""
    producer_id: int
    epoch: int
    witness: str
    """The value of a record in the transaction, by which readers see whether it was committed."""
    files: tuple[str, ...]
    """The staged files with its rows, to publish them again if it is aborted."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The last delivery to one target of one query."""

    pipeline: str
    query: str
    target: str
    run: str
    """The run of the query that opened the target last: all others are fenced."""
    epoch: int
    """The number of runs that have opened the target."""
    batch: int
    """The last delivered batch."""
    rows: int
    """The number of its rows."""
    open: tuple[TaskTransaction, ...] = ()
    """Transactions of tasks with rows of this batch, which are committed next. Empty once all of them are."""


class LastRecords:
    """The last committed record of each key in a compacted topic, as of the last `look`. Used by one thread."""

    def __init__(self, connection: KafkaStream, topic: str, timeout_s: float) -> None:
        connection.administration.provide(topic, 1, _SETTINGS)
        self._topic = topic
        self._topics = connection.administration
        self._stream = connection.open_topic(topic)
        self._timeout_s = timeout_s
        self._next = self._stream.locate(0, Position.EARLIEST)
        self._found: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self._found.get(key)

    def keys(self) -> list[bytes]:
        """All keys, the newest last."""
        return list(self._found)

    def look(self) -> None:
        """Read the records up to the first open transaction."""
        self._read(self._topics.latest(self._topic, [0])[0], None)

    def look_to_the_end(self, when_stuck: Callable[[], None] | None = None) -> None:
        """Read all records. This waits for open transactions to end; `when_stuck` is called once to end them."""
        self._read(self._topics.ends(self._topic, [0])[0], when_stuck)

    def close(self) -> None:
        self._stream.close()

    def _read(self, end: int, when_stuck: Callable[[], None] | None) -> None:
        begun_s = time.monotonic()
        while self._next < end:
            batch = self._stream.read(0, self._next, _AT_ONCE, _WAIT_S)
            for key, value in zip(batch.keys(), batch.values(), strict=True):
                self._take(key, value)
            self._next = batch.next
            waited_s = time.monotonic() - begun_s
            if waited_s > self._timeout_s:
                raise StreamError(
                    f"topic {self._topic!r} could not be read to its end within {self._timeout_s:g} s: the broker does "
                    "not answer, or another producer has an open transaction there"
                )
            if when_stuck is not None and waited_s > _PATIENCE_S:
                when_stuck()
                when_stuck = None

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            return  # not written by Penstock: a compacted topic has no records without a key
        self._found.pop(key, None)  # so that the newest are last
        if value is not None:
            self._found[key] = value


class Marks(LastRecords):
    """The marks of all queries."""

    def __init__(self, connection: KafkaStream, timeout_s: float) -> None:
        super().__init__(connection, TOPIC, timeout_s)

    def find(self, key: bytes) -> Mark | None:
        """The mark of a key, as of the last look. Raises PipelineError if the record is not a mark."""
        value = self.get(key)
        try:
            return None if value is None else msgspec.json.decode(value, type=Mark)
        except msgspec.DecodeError as error:
            raise PipelineError(
                f"topic {TOPIC!r} has a record with the key {key!r} that is not the mark of a batch ({error}), so the "
                "last delivered batch is unknown: find out what else writes to this topic"
            ) from error

    def wrote(self, key: bytes, mark: Mark) -> None:
        """Remember a mark that this process has committed, without reading it."""
        self._take(key, msgspec.json.encode(mark))


logger = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_S: Final = 60.0
"""How long publishing a batch may take, and how long a driver that died inside it can block readers."""

_PREFIX: Final = "penstock.spark"
_ATTEMPTS: Final = 5
_MOST_FENCED: Final = 50
_QUEUE_KBYTES: Final = 64 << 10
_QUEUE_RECORDS: Final = 200_000
_RETRIABLE: Final = (TransactionLostError, BrokerUnavailableError, StreamError)


class Publisher:
    """Publishes batches for one target of one query. Used by one thread, and open while the query runs."""

    def __init__(self, connection: KafkaStream, identity: QueryIdentity, target: str, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._id = f"{_PREFIX}.{identity.id}"
        self._key = self._id.encode()
        self._marks = Marks(connection, 2 * timeout_s)
        self._producer: TransactionalProducer | None = None
        self._refused: DeliveryError | None = None
        self._is_in_doubt = False
        """Whether the outcome of a commit is unknown."""
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
        """Fence every other run of the query, and read which batch was delivered last."""

        def new_mark() -> Mark | None:
            found = self._marks.find(self._key)
            if found is None:
                return msgspec.structs.replace(self._mark, epoch=1)
            if found.run == self._mark.run:
                return None
            return msgspec.structs.replace(
                self._mark, epoch=found.epoch + 1, batch=found.batch, rows=found.rows, open=found.open
            )

        self._write("open", new_mark, tuple)

    @property
    def last(self) -> Mark:
        """The mark of the last delivered batch, of this run or an earlier one."""
        return self._mark

    def is_delivered(self, batch_id: int) -> bool:
        """Whether this batch is the last delivered one. Raises CheckpointMismatchError for an older batch.

        If `last` has open transactions, they must be committed first.
        """
        if self._is_in_doubt:
            self._write("look up the last batch", lambda: self._own_mark(batch_id) and None, tuple)
        check_order(batch_id, self._mark.batch, self._mark.target)
        return batch_id == self._mark.batch

    @property
    def transactional_id(self) -> str:
        """The id under which this driver publishes. The ids of its tasks begin with it."""
        return self._id

    def publish(
        self,
        batch_id: int,
        rows: Callable[[], Iterable[Row]],
        count: int,
        transactions: tuple[TaskTransaction, ...] = (),
    ) -> None:
        """Publish the rows of a batch once. `rows` is called again if a transaction must be repeated.

        `transactions` have more rows of the batch: once this returns, those of `last` must be committed, and
        `replace_open` called. `count` is the number of all rows.

        Raises FencedError if a newer run has opened the target, DeliveryError if a record can never be stored (then
        nothing is), and TransactionAbortedError or OutcomeUnknownError for problems that a new attempt may solve.
        """

        def new_mark() -> Mark | None:
            found = self._own_mark(batch_id)
            if found.batch == batch_id:
                return None
            return msgspec.structs.replace(found, batch=batch_id, rows=count, open=transactions)

        self._write(f"publish batch {batch_id}", new_mark, rows)

    def replace_open(self, transactions: tuple[TaskTransaction, ...]) -> None:
        """Record that the open transactions of the last batch have ended, and which take the place of the aborted ones.

        Raises as `publish` does.
        """
        batch_id = self._mark.batch

        def new_mark() -> Mark | None:
            found = self._own_mark(batch_id)
            return None if found.open == transactions else msgspec.structs.replace(found, open=transactions)

        self._write(f"complete batch {batch_id}", new_mark, tuple)

    def _own_mark(self, batch_id: int) -> Mark:
        found = self._marks.find(self._key)
        if found is None or found.run != self._mark.run:
            raise FencedError(
                f"{self._mark.target} of query {self._mark.query!r} of pipeline {self._mark.pipeline!r} was opened "
                f"by a newer run, which delivers batch {batch_id}: this run must stop"
            )
        return found

    def forget(self) -> None:
        """Delete the mark: nothing will be delivered under this identity again."""
        if self._producer is not None:
            try:
                self._producer.begin()
                self._producer.produce(TOPIC, None, self._key, 0)
                self._producer.commit()
            except TransactionLostError as error:
                self._discard()
                logger.info("could not delete the mark of %s: %s", self._id, error)

    def close(self) -> None:
        self._discard()
        self._marks.close()

    def _write(self, what: str, new_mark: Callable[[], Mark | None], rows: Callable[[], Iterable[Row]]) -> None:
        """Write the rows and the mark that `new_mark` derives from the current one; None: they are already there."""
        problem: Exception | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(random.uniform(0, min(1.0, 0.02 * 4**attempt)))
            try:
                if self._producer is None:
                    self._marks.look()
                    new_mark()  # a fenced run raises here, before it could fence the current owner
                    self._start()
                mark = new_mark()
                if mark is not None:
                    self._transact(mark, rows)
                    self._marks.wrote(self._key, mark)
                found = mark or self._marks.find(self._key)
                assert found is not None
                self._mark = found
                self._is_in_doubt = False
                return
            except _RETRIABLE as error:
                self._discard()
                problem = error
                logger.info("could not %s of %s: %s", what, self._id, error)
        advice = (
            f"check that the broker runs, and that the target's transaction_timeout_s of {self._timeout_s:g} s is "
            "enough for a batch: raise it, or read fewer records per batch"
        )
        kind = OutcomeUnknownError if self._is_in_doubt else TransactionAbortedError
        raise kind(f"could not {what} to {self._mark.target}: {problem}; {advice}") from problem

    def _start(self) -> None:
        producer = self._new_producer(self._id)
        try:
            self._marks.look_to_the_end(self._fence_others)
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
            producer.produce(TOPIC, msgspec.json.encode(mark), self._key, 0)
            self._is_in_doubt = True
            producer.commit()
        except TransactionLostError as error:
            refused = self._refused or refused_by(error)
            if refused is None:
                raise
            self._abort(producer)
            self._is_in_doubt = False
            raise refused from error
        except BaseException:
            self._abort(producer)
            raise

    def _abort(self, producer: TransactionalProducer) -> None:
        """Abort, so that readers continue at once. If that fails, the next producer with the same id aborts."""
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
        return bounded_producer(
            self._connection.bootstrap, self._connection.options, transactional_id, self._timeout_s, self._on_refused
        )

    def _on_refused(self, error: KafkaError, message: Message) -> None:
        if self._refused is None and error.code() in REFUSED_FOR_GOOD:
            self._refused = not_delivered(str(message.topic()), error)

    def _fence_others(self) -> None:
        """End an open transaction that blocks reading the marks, perhaps of a driver that died during its commit.

        Starting a producer under the id of another query ends its transaction. If that query still runs, it repeats
        the transaction.
        """
        for key in self._marks.keys()[-_MOST_FENCED:]:
            if key != self._key:
                self._new_producer(key.decode()).close()


def bounded_producer(
    bootstrap: str, options: Options, transactional_id: str, timeout_s: float, on_refused: Refused
) -> TransactionalProducer:
    """Start a transactional producer whose queue is small enough for a driver or a task."""
    bounded = {
        "queue.buffering.max.kbytes": _QUEUE_KBYTES,
        "queue.buffering.max.messages": _QUEUE_RECORDS,
        **options.librdkafka,
    }
    return start_transactional(
        bootstrap,
        dataclasses.replace(options, librdkafka=bounded),
        transactional_id,
        timeout_s=timeout_s,
        transaction_timeout_s=timeout_s,
        on_refused=on_refused,
    )


def check_order(batch_id: int, last: int, target: str) -> None:
    """Raise CheckpointMismatchError for a batch before the last delivered one: Spark repeats only the last batch."""
    if batch_id < last:
        raise CheckpointMismatchError(
            f"batch {batch_id} was computed for {target}, but batch {last} of this query is already delivered there: "
            "the checkpoint is older than the delivered rows, perhaps restored from a copy. Restore a newer "
            "checkpoint, or delete it and choose where the query starts"
        )


def refused_by(error: TransactionLostError) -> DeliveryError | None:
    """The error if librdkafka permanently refused a record."""
    reason = reason_of(error.__cause__) if error.__cause__ is not None else None
    if reason is None or reason.code() not in REFUSED_FOR_GOOD:
        return None
    return DeliveryError(f"a record, and therefore its batch, could not be delivered: {reason.str()}")
