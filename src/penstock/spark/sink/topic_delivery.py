"""Deliveries to topics: exactly-once by transactions, at-least-once by the tasks or by appending from the driver."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from penstock.abc import Stream, TopicStream
from penstock.errors import ConfigError, DeliveryError, FencedError, PipelineError, TopicExistsError
from penstock.model import NewRecord, Receipt
from penstock.spark.sink.direct import WRITTEN_ROWS, DirectProducer, DirectWriter
from penstock.spark.sink.publishing import Publisher
from penstock.spark.sink.rows import records_of, rows_of, topics_in
from penstock.spark.sink.staging import Encoding, Staged, StagingFolder, stage
from penstock.spark.sink.target import Delivered, QueryIdentity
from penstock.spark.sink.task_transactions import MOST_FILES, ParallelPublisher, TaskWriter
from penstock.spark.sink.topics import TopicCreator
from penstock.spark.source.open_streams import OpenStream
from penstock.spark.values.arrow_mapping import map_in_arrow
from penstock.spark.values.undecodable import stream_of
from penstock.streams import Connection
from penstock.streams.kafka.header_names import sendable
from penstock.streams.kafka.producing.open_transactions import TransactionCoordinators
from penstock.streams.kafka.producing.producer import Row
from penstock.streams.kafka.stream import KafkaStream, kafka_of
from penstock.streams.options import ConnectOptions

if TYPE_CHECKING:
    from penstock.spark.sink.topic import TopicTarget

logger = logging.getLogger(__name__)

SMALL_BYTES: Final = 256 << 10
"""Up to this size a batch is sent by the driver rather than by Python workers."""
_RECEIPT_S = 120.0


class StagedRows:
    """Iterates over the rows of a staged batch, after creating the topics that they need."""

    def __init__(
        self, staged: Staged, topic: str | None, topics: TopicCreator, besides: Sequence[NewRecord] = ()
    ) -> None:
        """`besides` are records for other topics, which exist."""
        self._staged = staged
        self._topic = topic
        self._topics = topics
        self._besides = besides

    def __call__(self) -> Iterator[Row]:
        for record in self._besides:
            partition = -1 if record.partition is None else record.partition
            headers = sendable(record.headers) if record.headers else None
            yield record.topic, record.value, record.key, partition, None, None, record.timestamp_ms or 0, headers
        for batch in self._staged.batches():
            self._topics.ensure(topics_in(batch, self._topic))
            yield from rows_of(batch, self._topic)


class TransactionDelivery:
    """Exactly-once to the embedded log and Kafka: tasks stage, and the driver publishes in one transaction.

    Large batches are published by tasks in transactions of their own, which the driver commits.
    """

    def __init__(self, target: TopicTarget, connection: Connection, identity: QueryIdentity) -> None:
        """Takes ownership of the connection."""
        self._target = target
        self._connection = connection
        self._identity = identity
        self._stream = stream_of(target.url)
        self._topics = topics_for(target, connection)
        self._staging = StagingFolder(identity.staging)
        self._encoding = Encoding(target.encoded)
        kafka = kafka_of(connection)
        self._publisher = Publisher(kafka, identity, target.label, target.transaction_timeout_s)
        self._publisher.open()
        last = self._publisher.last
        # Only after the previous run is fenced, and no longer reads its files.
        self._staging.clear(keep=last.batch if last.open else None)
        self._parallel = self._parallel_publisher(kafka)
        if self._parallel is not None:
            self._parallel.recover()

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        is_delivered = self._publisher.is_delivered(batch_id)
        if self._publisher.last.open:
            assert self._parallel is not None, "a target with such a batch is not opened without"
            self._parallel.finish(frame.sparkSession)
        if is_delivered:
            return Delivered(self._publisher.last.rows, repeated=True)
        staged = stage(frame, self._staging, batch_id, encoding=self._encoding)
        try:
            letters = self._identity.evaluated(batch_id, self._stream)
        except BaseException:
            staged.discard()
            raise
        if self._parallel is not None and self._is_large(staged):
            # After an error its files stay: a mark may list them. The next attempt at the batch removes them.
            rows = StagedRows(staged.inline, self._target.name, self._topics, letters)
            self._parallel.publish(frame.sparkSession, staged, rows)
            return Delivered(staged.rows)
        try:
            if staged.rows or letters:
                rows = StagedRows(staged, self._target.name, self._topics, letters)
                self._publisher.publish(batch_id, rows, staged.rows)
        except FencedError:
            raise  # the newer run may have staged the same batch in this folder
        except BaseException:
            staged.discard()
            raise
        staged.discard()
        return Delivered(staged.rows)

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(self._connection.close)
            closing.callback(self._publisher.close)
            if self._parallel is not None:
                closing.callback(self._parallel.close)

    def _is_large(self, staged: Staged) -> bool:
        limit_bytes = self._target.parallel_above_bytes
        files = staged.in_files
        is_large = limit_bytes is not None and sum(part.size_bytes for part in files) > limit_bytes
        return is_large and 0 < len(files) <= MOST_FILES

    def _parallel_publisher(self, kafka: KafkaStream) -> ParallelPublisher | None:
        """None if all batches go through the driver.

        Raises PipelineError if the last batch was published by tasks, and its transactions cannot be committed here.
        """
        target, last = self._target, self._publisher.last
        if target.parallel_above_bytes is None and not last.open:
            return None
        try:
            coordinators = self._coordinators(kafka)
        except ConfigError as error:
            if last.open:
                raise PipelineError(
                    f"batch {last.batch} for {last.target} was published by tasks, and {len(last.open)} of its "
                    f"transactions are not yet committed, which this run cannot do: {error}. Start the pipeline with "
                    "the connection settings of the run that published it"
                ) from error
            logger.info("%s: large batches go through the driver: %s", target.label, error)
            return None
        writer = TaskWriter(
            bootstrap=kafka.bootstrap,
            client={**(target.client or {}), "librdkafka": kafka.options.librdkafka},
            folder=self._staging,
            topic=target.name,
            partitions=target.partitions,
            compact=target.compact,
            timeout_s=target.transaction_timeout_s,
        )
        return ParallelPublisher(kafka, self._publisher, writer, coordinators)

    def _coordinators(self, kafka: KafkaStream) -> TransactionCoordinators:
        """Raises ConfigError if they cannot be asked, and StreamError if none of the brokers answers."""
        coordinators = TransactionCoordinators(kafka.bootstrap, kafka.options, self._target.transaction_timeout_s)
        try:
            if not coordinators.is_supported():
                raise ConfigError("the brokers are older than Kafka 3.0")
        except BaseException:
            coordinators.close()
            raise
        return coordinators


class DirectDelivery:
    """At-least-once to the embedded log and Kafka: the tasks write, or the driver while batches are small.

    A small batch is staged and sent by the driver, as its rows arrive there sooner than a Python worker has sent them.
    The size of a batch is not known in advance, so the size of the one before decides. The driver's connection keeps
    the log running.
    """

    def __init__(self, target: TopicTarget, connection: Connection, identity: QueryIdentity) -> None:
        kafka = kafka_of(connection)
        client: ConnectOptions = {**(target.client or {}), "librdkafka": kafka.options.librdkafka}
        self._writer = DirectWriter(kafka.bootstrap, client, target.name, target.partitions, target.compact)
        self._connection = connection
        self._encoding = Encoding(target.encoded)
        self._staging = StagingFolder(identity.staging)
        self._staging.clear()
        self._producer: DirectProducer | None = None
        self._last_bytes: int | None = None
        topics_for(target, connection)

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        if self._last_bytes is not None and self._last_bytes <= SMALL_BYTES:
            rows, self._last_bytes = self._from_driver(frame, batch_id)
        else:
            written = map_in_arrow(self._encoding.encode(frame), self._writer, WRITTEN_ROWS).toArrow()
            rows, self._last_bytes = (sum(written.column(name).to_pylist()) for name in WRITTEN_ROWS.names)
        return Delivered(rows)

    def _from_driver(self, frame: DataFrame, batch_id: int) -> tuple[int, int]:
        staged = stage(frame, self._staging, batch_id, encoding=self._encoding)
        try:
            if self._producer is None or not self._producer.is_usable:
                self._producer = DirectProducer(self._writer)
            return self._producer.write(staged.batches())
        finally:
            staged.discard()

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(self._connection.close)
            if self._producer is not None:
                closing.callback(self._producer.close)


class Appender(OpenStream):
    """Appends records to any stream, and creates the topics that are missing."""

    def __init__(self, stream: Stream, partitions: int | None) -> None:
        super().__init__(stream)
        self._partitions = partitions

    def append(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Return once all rows of a batch are stored. Raises DeliveryError."""
        receipts: list[Receipt] = []
        for name, records in itertools.groupby(records_of(batch, topic), lambda record: record.topic):
            receipts += self.topic(name).append(list(records))
        try:
            for receipt in receipts:
                receipt.result(_RECEIPT_S)
        except TimeoutError as error:
            raise DeliveryError(f"a record was not acknowledged: {error}", retriable=True) from error

    def topic(self, name: str) -> TopicStream:
        if name not in self._topics and name not in self.stream.topics():
            with contextlib.suppress(TopicExistsError):  # another task has just created it
                self.stream.create_topic(name, self._partitions)
        return super().topic(name)


class AppendingDelivery:
    """At-least-once to any other stream, from the driver: only this process may be able to reach it."""

    def __init__(self, target: TopicTarget, stream: Stream, identity: QueryIdentity) -> None:
        self._target = target
        self._appender = Appender(stream, target.partitions)
        self._staging = StagingFolder(identity.staging)
        self._encoding = Encoding(target.encoded)
        self._staging.clear()
        if target.name is not None:
            self._appender.topic(target.name)

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        staged = stage(frame, self._staging, batch_id, encoding=self._encoding)
        try:
            for batch in staged.batches():
                self._appender.append(batch, self._target.name)
        finally:
            staged.discard()
        return Delivered(staged.rows)

    def close(self) -> None:
        self._appender.close()


def topics_for(target: TopicTarget, connection: Connection) -> TopicCreator:
    """The creator of a target's topics, after creating the topic that the target names."""
    topics = TopicCreator(connection.admin(), target.partitions, compact=target.compact)
    if target.name is not None:
        topics.ensure([target.name])
    return topics
