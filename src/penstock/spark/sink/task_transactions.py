"""Publishing a large batch from tasks: each writes in a transaction of its own, and the driver commits them.

A task reads staged files, writes their rows and a witness, flushes, and leaves its transaction open. The driver records
the transactions with the mark of the batch and then commits each by its producer id and epoch. A transaction that was
aborted in between has no committed witness, and its files are published again. ADR 24 has all cases.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, Message
from pyspark import TaskContext
from pyspark.sql import SparkSession

from penstock.errors import (
    BrokerUnavailableError,
    DeliveryError,
    NotAllowedError,
    OvertakenError,
    PenstockError,
    PipelineError,
    SchemaMismatchError,
    StreamError,
    TransactionAbortedError,
    TransactionLostError,
)
from penstock.spark.sink.publishing import LastRecords, Publisher, TaskTransaction, bounded_producer, refused_by
from penstock.spark.sink.rows import rows_of, topics_in
from penstock.spark.sink.staging import Part, Staged, StagingFolder
from penstock.spark.sink.topics import TopicCreator
from penstock.streams.kafka.administration.reaching import new_admin
from penstock.streams.kafka.administration.topics import TopicAdministration
from penstock.streams.kafka.failures import REFUSED_FOR_GOOD, not_delivered
from penstock.streams.kafka.producing.open_transactions import TransactionCoordinators
from penstock.streams.kafka.producing.producer import Row
from penstock.streams.kafka.producing.transactions import TransactionalProducer
from penstock.streams.kafka.stream import KafkaStream
from penstock.streams.options import ConnectOptions, options_of

logger = logging.getLogger(__name__)

PARALLEL_ABOVE_BYTES: Final = 32 << 20
"""Batches with larger staged files are published by tasks. Below, starting a job and its producers takes longer."""

WITNESSES: Final = "penstock.spark.parts"
"""A compacted topic: by transactional id, the witness of its last committed transaction."""

MOST_FILES: Final = 10_000
"""The mark of a batch names its files, and must stay below the size limit of a record."""

_LEAST_TRANSACTIONS: Final = 16
_MOST_TRANSACTIONS: Final = 500
_ROUNDS: Final = 5
_ATTEMPTS: Final = 4
"""Of one attempt of Spark, which tries a task only once on local masters."""
_FLUSH_SLICE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Assignment:
    """The files that one task publishes, in this order."""

    number: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Rows that no attempt can publish, because the target refuses one of them."""

    kind: type[PenstockError]
    reason: str


@dataclass(frozen=True)
class TaskWriter:
    """In a task: writes the rows of staged files in a transaction and leaves it open."""

    bootstrap: str
    client: ConnectOptions = field(repr=False)
    folder: StagingFolder
    topic: str | None
    partitions: int | None
    compact: bool
    timeout_s: float
    batch_id: int = 0
    id_prefix: str = ""
    """The beginning of the transactional ids. Each attempt at each task has one of its own."""

    def __call__(self, assignment: Assignment) -> TaskTransaction | Refusal:
        context = TaskContext.get()
        assert context is not None, "rows are published by tasks of Spark"
        transactional_id = f"{self.id_prefix}{assignment.number}.{context.attemptNumber()}"
        for attempt in range(_ATTEMPTS):
            try:
                return self.write(assignment, transactional_id)
            except OvertakenError:
                raise  # this task may have been replaced: whether it is tried again is Spark's decision
            except (TransactionLostError, StreamError, BrokerUnavailableError) as error:
                if attempt == _ATTEMPTS - 1:
                    raise
                logger.info("could not publish in a transaction of %r: %s", transactional_id, error)
                time.sleep(random.uniform(0, min(1.0, 0.1 * 4**attempt)))
        raise AssertionError("the last attempt returns or raises")

    def write(self, assignment: Assignment, transactional_id: str) -> TaskTransaction | Refusal:
        """Return once all rows are stored in an open transaction.

        Raises TransactionLostError for problems that a new attempt may solve, after aborting the transaction.
        """
        options = options_of(self.client)
        refused: list[DeliveryError] = []
        lost: list[str] = []

        def on_refused(error: KafkaError, message: Message) -> None:
            if error.code() in REFUSED_FOR_GOOD:
                refused.append(not_delivered(str(message.topic()), error))
            else:
                lost.append(error.str())

        with contextlib.ExitStack() as closing:
            # The disk syncs while the rows are sent.
            synced = closing.enter_context(ThreadPoolExecutor(1, "penstock-sync")).submit(self._sync, assignment.files)
            coordinators = TransactionCoordinators(self.bootstrap, options, self.timeout_s)
            closing.callback(coordinators.close)
            producer = bounded_producer(self.bootstrap, options, transactional_id, self.timeout_s, on_refused)
            closing.callback(producer.close)
            # Before the first write: a producer that takes the id from now on makes the writes fail.
            owner = coordinators.owner(transactional_id)
            witness = uuid.uuid4().hex
            try:
                producer.begin()
                for rows in self._rows(assignment.files):
                    producer.append_rows(rows)
                producer.produce(WITNESSES, witness.encode(), transactional_id.encode(), 0)
                self._flush(producer)
                if refused or lost:
                    raise TransactionLostError(f"{len(refused) + len(lost)} records were not stored: {lost[:1]}")
            except BaseException as error:
                with contextlib.suppress(TransactionLostError):  # then the driver aborts it, or its timeout does
                    producer.abort()
                refusal = _refusal_of(refused[0] if refused else error)
                if refusal is None:
                    raise
                return refusal
            if coordinators.owner(transactional_id) != dataclasses.replace(owner, is_open=True):
                raise OvertakenError(f"the transaction of {transactional_id!r} was ended before the task was done")
            synced.result()
        return TaskTransaction(
            id=transactional_id,
            producer_id=owner.producer_id,
            epoch=owner.epoch,
            witness=witness,
            files=assignment.files,
        )

    def _rows(self, files: Iterable[str]) -> Iterator[Iterable[Row]]:
        topics: TopicCreator | None = None
        if self.topic is None:
            admin = TopicAdministration(new_admin(self.bootstrap, options_of(self.client)))
            topics = TopicCreator(admin, self.partitions, compact=self.compact)
        for name in files:
            for batch in self.folder.batches(self.batch_id, name):
                if topics is not None:
                    topics.ensure(topics_in(batch, None))
                yield rows_of(batch, self.topic)

    def _sync(self, files: Iterable[str]) -> None:
        for name in files:
            self.folder.sync(self.batch_id, name)

    def _flush(self, producer: TransactionalProducer) -> None:
        deadline_s = time.monotonic() + self.timeout_s
        while left := producer.flush(_FLUSH_SLICE_S):
            if time.monotonic() > deadline_s:
                raise TransactionLostError(
                    f"{left} records were not acknowledged within {self.timeout_s:g} s: check that the broker runs"
                )


def _refusal_of(error: BaseException) -> Refusal | None:
    """What to tell the driver if no other attempt can do better."""
    if isinstance(error, TransactionLostError):
        found = refused_by(error)
        return None if found is None else Refusal(DeliveryError, str(found))
    if isinstance(error, SchemaMismatchError) or (isinstance(error, DeliveryError) and not error.retriable):
        return Refusal(type(error), str(error))
    return None


class ParallelPublisher:
    """In the driver: has tasks publish the files of a batch, and commits their transactions. Used by one thread."""

    def __init__(
        self, connection: KafkaStream, publisher: Publisher, writer: TaskWriter, coordinators: TransactionCoordinators
    ) -> None:
        """The publisher must be open. Takes ownership of `coordinators`."""
        self._publisher = publisher
        self._coordinators = coordinators
        self._own_ids = f"{publisher.transactional_id}.tasks.{publisher.last.epoch}."
        self._writer = dataclasses.replace(writer, id_prefix=self._own_ids)
        self._connection = connection
        self._opened_witnesses: LastRecords | None = None

    def recover(self) -> None:
        """Commit what an earlier run left to commit, and abort everything else that it left open.

        What was aborted in the meantime is published again by `finish`.
        """
        for each in self._publisher.last.open:
            self._coordinators.commit(each.id, each.producer_id, each.epoch)
        self._abort_others(f"{self._publisher.transactional_id}.tasks.")

    def publish(self, spark: SparkSession, staged: Staged, inline: Callable[[], Iterable[Row]]) -> None:
        """Publish a staged batch once. `inline` are its rows that are in no file. Raises as `Publisher.publish`."""
        assignments = assigned(staged.in_files, spark.sparkContext.defaultParallelism)
        transactions = self._written(spark, staged.batch_id, assignments)
        try:
            self._publisher.publish(staged.batch_id, inline, staged.rows, transactions)
        except (DeliveryError, SchemaMismatchError, TransactionAbortedError):
            self._abort_others(self._own_ids)  # it is known that no mark lists them
            raise
        self.finish(spark)

    def finish(self, spark: SparkSession) -> None:
        """Commit the open transactions of the last batch, and publish again what was aborted."""
        for _ in range(_ROUNDS):
            last = self._publisher.last
            aborted = self._aborted(last.open)
            if not aborted:
                self._publisher.replace_open(())
                self._abort_others(self._own_ids)
                self._writer.folder.remove(last.batch)
                return
            logger.warning(
                "%d of %d transactions of batch %d of %s were aborted, perhaps by their timeout: their rows are "
                "published again",
                len(aborted),
                len(last.open),
                last.batch,
                last.target,
            )
            self._check_files(aborted)
            assignments = [Assignment(number, each.files) for number, each in enumerate(aborted)]
            self._publisher.replace_open(self._written(spark, last.batch, assignments))
        raise TransactionAbortedError(
            f"transactions of batch {self._publisher.last.batch} for {self._publisher.last.target} were aborted again "
            f"and again: raise the target's transaction_timeout_s of {self._writer.timeout_s:g} s, or read fewer "
            "records per batch"
        )

    def _check_files(self, aborted: Sequence[TaskTransaction]) -> None:
        """Raise PipelineError if a file is gone from which rows must be published again."""
        last = self._publisher.last
        missing = self._writer.folder.missing(last.batch, [name for each in aborted for name in each.files])
        if missing:
            raise PipelineError(
                f"batch {last.batch} of {last.target} cannot be completed: {len(aborted)} of its {len(last.open)} "
                f"transactions were aborted, and {len(missing)} of the files with their rows are gone, such as "
                f"{missing[0]}. Restore them from a backup, and start the query again; until then it goes no further. "
                "If there is no backup, only a query of another name that begins at this batch's offsets can write "
                "these rows; it repeats those that were committed"
            )

    def close(self) -> None:
        if self._opened_witnesses is not None:
            self._opened_witnesses.close()
        self._coordinators.close()

    def _witnesses(self) -> LastRecords:
        """Opened, and their topic created, when the first batch needs them."""
        if self._opened_witnesses is None:
            self._opened_witnesses = LastRecords(self._connection, WITNESSES, 2 * self._writer.timeout_s)
        return self._opened_witnesses

    def _written(
        self, spark: SparkSession, batch_id: int, assignments: Sequence[Assignment]
    ) -> tuple[TaskTransaction, ...]:
        """Have tasks write the files. Their transactions are open when this returns, and aborted if it raises."""
        self._witnesses()  # their topic is there before tasks write to it
        # If tasks waited for a broker that hangs, the first transactions would expire before the last are written.
        writer = dataclasses.replace(self._writer, batch_id=batch_id, bootstrap=self._coordinators.bootstrap())
        try:
            outcomes = spark.sparkContext.parallelize(assignments, len(assignments)).map(writer).collect()
            written: list[TaskTransaction] = []
            for outcome in outcomes:
                if isinstance(outcome, Refusal):
                    raise outcome.kind(outcome.reason)
                written.append(outcome)
        except Exception:
            self._abort_others(self._own_ids)
            raise
        return tuple(written)

    def _aborted(self, transactions: Sequence[TaskTransaction]) -> list[TaskTransaction]:
        """Commit the transactions; returns those that were aborted."""
        ended = [each for each in transactions if not self._coordinators.commit(each.id, each.producer_id, each.epoch)]
        if not ended:
            return []
        for each in ended:
            self._coordinators.fence(each.id)  # waits for its end; from here on nothing can change the outcome
        witnesses = self._witnesses()
        witnesses.look_to_the_end(lambda: self._abort_others(self._own_ids))
        return [each for each in ended if witnesses.get(each.id.encode()) != each.witness.encode()]

    def _abort_others(self, prefix: str) -> None:
        """Abort what attempts that do not count have left open. What cannot be aborted here times out."""
        kept = {each.id for each in self._publisher.last.open}
        newest = self._publisher.last.epoch
        try:
            for found in self._coordinators.open_ids(prefix, _left_to_timeout):
                match = _TASK_ID.search(found)
                if match is not None and int(match["epoch"]) <= newest and found not in kept:
                    self._coordinators.fence(found)
        except (StreamError, NotAllowedError) as error:
            _left_to_timeout(str(error))


def _left_to_timeout(reason: str) -> None:
    """No mark lists them, so they are never committed: until the timeout, they only hold readers up."""
    logger.warning("transactions of failed tasks may be left to their timeout: %s", reason)


_TASK_ID: Final = re.compile(r"\.tasks\.(?P<epoch>\d+)\.\d+\.\d+\Z")


def assigned(parts: Sequence[Part], cores: int) -> list[Assignment]:
    """Spread files over tasks by their sizes. The order of the rows of a partition is kept, as it has one file."""
    count = min(len(parts), max(_LEAST_TRANSACTIONS, 2 * cores), _MOST_TRANSACTIONS)
    loads = [0] * count
    chosen: list[list[Part]] = [[] for _ in range(count)]
    for part in sorted(parts, key=lambda part: -part.size_bytes):
        least = loads.index(min(loads))
        loads[least] += part.size_bytes
        chosen[least].append(part)
    return [
        Assignment(number, tuple(part.file or "" for part in sorted(each, key=lambda part: part.partition)))
        for number, each in enumerate(chosen)
    ]
