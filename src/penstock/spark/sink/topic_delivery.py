"""A topic that was opened for one run of a query: exactly-once by transactions, at-least-once by tasks or by append."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from pyspark.sql import DataFrame

from penstock.abc import Stream, Streams
from penstock.errors import DeliveryError
from penstock.model import Receipt
from penstock.spark.arrow_mapping import map_in_arrow
from penstock.spark.sink.direct import WRITTEN_ROWS, DirectWriter
from penstock.spark.sink.publishing import Publisher
from penstock.spark.sink.rows import records_of, rows_of, topics_in
from penstock.spark.sink.staged import Staged, stage
from penstock.spark.sink.staging_folder import StagingFolder
from penstock.spark.sink.topics import TopicMaker
from penstock.spark.targets import Delivered, QueryIdentity
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.transactions import Row
from penstock.streams.options import ConnectOptions

_RECEIPT_S = 120.0


class TopicOptions(Protocol):
    """What a delivery needs to know of its target."""

    @property
    def name(self) -> str | None: ...

    @property
    def label(self) -> str: ...

    @property
    def partitions(self) -> int | None: ...

    @property
    def compact(self) -> bool: ...

    @property
    def client(self) -> ConnectOptions | None: ...

    @property
    def transaction_timeout_s(self) -> float: ...

    def encoded(self, frame: DataFrame) -> DataFrame: ...


class StagedRows:
    """The rows of a staged batch for a publisher, with the topics seen to that they are for."""

    def __init__(self, staged: Staged, topic: str | None, topics: TopicMaker) -> None:
        self._staged = staged
        self._topic = topic
        self._topics = topics

    def __call__(self) -> Iterator[Row]:
        for batch in self._staged.batches():
            self._topics.see_to(topics_in(batch, self._topic))
            yield from rows_of(batch, self._topic)


class TransactionDelivery:
    """Exactly-once into the embedded log and Kafka: tasks stage, the driver publishes in one transaction."""

    def __init__(self, target: TopicOptions, connection: Connection, identity: QueryIdentity) -> None:
        """The connection is closed with the delivery."""
        self._target = target
        self._connection = connection
        self._topics = topics_for(target, connection)
        self._staging = StagingFolder(identity.staging)
        self._publisher = Publisher(connection, identity, target.label, target.transaction_timeout_s)
        self._publisher.open()
        self._staging.clear()  # only now that the run before is fenced, and will look for none of its files

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        if self._publisher.is_delivered(batch_id):
            return Delivered(self._publisher.last.rows, repeated=True)
        staged = stage(self._target.encoded(frame), self._staging, batch_id)
        try:
            if staged.rows:
                rows = StagedRows(staged, self._target.name, self._topics)
                self._publisher.publish(batch_id, rows, staged.rows)
        finally:
            staged.discard()
        return Delivered(staged.rows)

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(self._connection.close)
            closing.callback(self._publisher.close)


class DirectDelivery:
    """At-least-once into the embedded log and Kafka: the tasks write. The driver's connection keeps the log running."""

    def __init__(self, target: TopicOptions, connection: Connection) -> None:
        self._target = target
        self._connection = connection
        topics_for(target, connection)

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        target = self._target
        client: ConnectOptions = {**(target.client or {}), "librdkafka": self._connection.options.librdkafka}
        writer = DirectWriter(self._connection.bootstrap, client, target.name, target.partitions, target.compact)
        told = map_in_arrow(target.encoded(frame), writer, WRITTEN_ROWS).toArrow()
        return Delivered(sum(told.column("rows").to_pylist()))

    def close(self) -> None:
        self._connection.close()


class AppendingDelivery:
    """At-least-once into any other stream, from the driver: it may be one that only this process can reach."""

    def __init__(self, target: TopicOptions, streams: Streams, identity: QueryIdentity) -> None:
        self._target = target
        self._streams = streams
        self._staging = StagingFolder(identity.staging)
        self._open: dict[str, Stream] = {}
        self._staging.clear()
        if target.name is not None:
            self._stream(target.name)

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        staged = stage(self._target.encoded(frame), self._staging, batch_id)
        try:
            for batch in staged.batches():
                receipts: list[Receipt] = []
                for record in records_of(batch, self._target.name):
                    receipts += self._stream(record.topic).append([record])
                for receipt in receipts:
                    receipt.result(_RECEIPT_S)
        except TimeoutError as error:
            raise DeliveryError(f"{self._target.label}: {error}", retriable=True) from error
        finally:
            staged.discard()
        return Delivered(staged.rows)

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(self._streams.close)
            for stream in self._open.values():
                closing.callback(stream.close)

    def _stream(self, topic: str) -> Stream:
        stream = self._open.get(topic)
        if stream is None:
            if topic not in self._streams.topics():
                self._streams.create_topic(topic, self._target.partitions)
            stream = self._open[topic] = self._streams.stream(topic)
        return stream


def topics_for(target: TopicOptions, connection: Connection) -> TopicMaker:
    """What creates the topics of a target, with the one it names seen to."""
    topics = TopicMaker(connection.administration, target.partitions, compact=target.compact)
    if target.name is not None:
        topics.see_to([target.name])
    return topics
