"""Writing to Kafka and the embedded log at least once: from the tasks, as parallel as the query, or from the driver."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message
from pyspark.sql.types import LongType, StructField, StructType

from penstock.errors import DeliveryError
from penstock.spark.sink.rows import rows_of, topics_in
from penstock.spark.sink.topics import TopicCreator
from penstock.streams.kafka.administration.reaching import new_admin
from penstock.streams.kafka.administration.topics import TopicAdministration
from penstock.streams.kafka.failures import not_delivered
from penstock.streams.kafka.producing.producer import KafkaProducer, Row
from penstock.streams.kafka.settings import producer_configuration
from penstock.streams.options import ConnectOptions, options_of

WRITTEN_ROWS: Final = StructType([StructField("rows", LongType(), False), StructField("size_bytes", LongType(), False)])
_FLUSH_SLICE_S: Final = 0.2
_POLL_EVERY_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class DirectWriter:
    """Sends the rows of one partition and waits until all are acknowledged: the function of a `mapInArrow`.

    A failed task may have stored some of its rows; its next attempt stores them again.
    """

    bootstrap: str
    client: ConnectOptions = field(repr=False)
    topic: str | None
    partitions: int | None = None
    compact: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows, size_bytes = self.write(batches)
        columns = {"rows": pa.array([rows], pa.int64()), "size_bytes": pa.array([size_bytes], pa.int64())}
        yield pa.RecordBatch.from_pydict(columns)

    def write(self, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        """Send all rows. Returns their number and their bytes in Arrow's memory.

        Raises DeliveryError if one was not acknowledged.
        """
        first = next(batches, None)
        return (0, 0) if first is None else self._task_producer().write(itertools.chain([first], batches))

    def _task_producer(self) -> DirectProducer:
        """The producer of this worker process, kept between tasks: starting one takes longer than a small batch."""
        found = _producers.pop(self, None)
        if found is None or not found.is_usable:
            found = DirectProducer(self)
            while len(_producers) >= _MOST_PRODUCERS:
                _producers.pop(next(iter(_producers)))
        _producers[self] = found
        return found

    def __hash__(self) -> int:
        return hash((self.bootstrap, self.topic))


class DirectProducer:
    """A producer of a Python worker, or of the driver."""

    def __init__(self, writer: DirectWriter) -> None:
        options = options_of(writer.client)
        self._timeout_s = options.delivery_timeout_s
        self._failure: DeliveryError | None = None
        self.is_usable = True
        """Whether it may be used again: false after an error."""
        configuration = {
            **producer_configuration(writer.bootstrap, options),
            "on_delivery": self._on_delivery,
            "delivery.report.only.error": True,
            # With another strategy, librdkafka 2.16 can hang after the restart of a single broker.
            "metadata.recovery.strategy": "none",
        }
        self._producer = KafkaProducer(configuration, self._timeout_s)
        admin = new_admin(writer.bootstrap, options)
        self._topics = TopicCreator(TopicAdministration(admin), writer.partitions, compact=writer.compact)
        self._topic = writer.topic

    def write(self, batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
        """Send all rows and wait until they are acknowledged. Returns their number and their bytes."""
        rows = size_bytes = 0
        for batch in batches:
            self._topics.ensure(topics_in(batch, self._topic))
            self._send(rows_of(batch, self._topic))
            rows += batch.num_rows
            size_bytes += batch.nbytes
        self._flush()
        return rows, size_bytes

    def close(self) -> None:
        self._producer.close()

    def _send(self, rows: Iterator[Row]) -> None:
        produce = self._producer.try_produce
        with self._unusable_after_errors():
            for number, row in enumerate(rows):
                try:
                    produce(*row)
                except (BufferError, KafkaException):
                    self._producer.produce(row[0], row[1], row[2], row[3], None, row[6], row[7])
                if number % _POLL_EVERY_ROWS == 0:
                    self._producer.poll(0)
                    self._raise_failure()

    def _flush(self) -> None:
        with self._unusable_after_errors():
            deadline_s = time.monotonic() + self._timeout_s + _FLUSH_SLICE_S
            while left := self._producer.flush(_FLUSH_SLICE_S):
                if time.monotonic() > deadline_s:
                    raise DeliveryError(
                        f"{left} records were not acknowledged within {self._timeout_s:g} s: check that the broker runs"
                    )
            self._raise_failure()

    def _on_delivery(self, error: KafkaError, message: Message) -> None:
        if self._failure is None:
            self._failure = not_delivered(str(message.topic()), error)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @contextlib.contextmanager
    def _unusable_after_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.is_usable = False
            self._producer.purge()
            raise


_MOST_PRODUCERS: Final = 8
_producers: dict[DirectWriter, DirectProducer] = {}
