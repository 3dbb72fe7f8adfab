"""Writing from the tasks, straight into Kafka's streams: at least once, and as parallel as the query is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql.types import LongType, StructField, StructType

from penstock.errors import ConfigError, DeliveryError
from penstock.producing.kafka_client import undelivered
from penstock.spark.sink.rows import rows_of, topics_in
from penstock.spark.sink.topics import TopicMaker
from penstock.streams.kafka.failures import reason_of
from penstock.streams.kafka.settings import client_configuration, producer_configuration
from penstock.streams.kafka.topics import TopicAdministration
from penstock.streams.kafka.transactions import Row
from penstock.streams.options import ConnectOptions, options_of

WRITTEN_ROWS: Final = StructType([StructField("rows", LongType(), False)])
_SLICE_S: Final = 0.2
_ROOM_S: Final = 0.1
_OFTEN: Final = 1_000


@dataclass(frozen=True, slots=True)
class DirectWriter:
    """Sends the rows of one partition and waits until all are stored: the function of a `mapInArrow`.

    A task that fails has perhaps stored some of its rows; the one that does its work again stores them again.
    """

    bootstrap: str
    client: ConnectOptions = field(repr=False)
    topic: str | None
    partitions: int | None = None
    compact: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"rows": pa.array([self.write(batches)], pa.int64())})

    def write(self, batches: Iterator[pa.RecordBatch]) -> int:
        """How many rows were stored. DeliveryError when one of them was not."""
        outlet: Outlet | None = None
        count = 0
        for batch in batches:
            if outlet is None:
                outlet = self._outlet()
            outlet.topics.see_to(topics_in(batch, self.topic))
            outlet.send(rows_of(batch, self.topic))
            count += batch.num_rows
        if outlet is not None:
            outlet.flush()
        return count

    def _outlet(self) -> Outlet:
        """That of this process: starting a producer takes longer than many a batch, and workers are used again."""
        found = _outlets.pop(self, None)
        if found is None or not found.is_sound:
            found = Outlet(self)
            while len(_outlets) >= _MOST_OUTLETS:
                _outlets.pop(next(iter(_outlets)))
        _outlets[self] = found
        return found

    def __hash__(self) -> int:
        return hash((self.bootstrap, self.topic))


class Outlet:
    """A producer in a process of Spark's workers."""

    def __init__(self, writer: DirectWriter) -> None:
        options = options_of(writer.client)
        self._timeout_s = options.delivery_timeout_s
        self._failure: DeliveryError | None = None
        self.is_sound = True
        """Whether the next task may use it, too."""
        try:
            self._producer = Producer(
                {
                    **producer_configuration(writer.bootstrap, options),
                    "on_delivery": self._hear,
                    "delivery.report.only.error": True,
                    # librdkafka 2.16 can hang after the restart of a single broker when it looks for others.
                    "metadata.recovery.strategy": "none",
                }
            )
            admin = AdminClient({**client_configuration(writer.bootstrap, options), **options.librdkafka})
        except KafkaException as error:
            raise ConfigError(f"librdkafka does not take its settings: {error}") from error
        self.topics = TopicMaker(TopicAdministration(admin), writer.partitions, compact=writer.compact)

    def send(self, rows: Iterator[Row]) -> None:
        produce = self._producer.produce
        with self._spoilt_by_errors():
            for number, row in enumerate(rows):
                try:
                    produce(*row)
                except BufferError:
                    self._produce_with_patience(row)
                except KafkaException as error:
                    raise self._not_taken(row, error) from error
                if number % _OFTEN == 0:
                    self._producer.poll(0)
                    self._raise_failure()

    def flush(self) -> None:
        with self._spoilt_by_errors():
            deadline_s = time.monotonic() + self._timeout_s + _SLICE_S
            while self._producer.flush(_SLICE_S):
                if time.monotonic() > deadline_s:
                    raise DeliveryError(
                        f"{len(self._producer)} records were not acknowledged within {self._timeout_s:g} s; see that "
                        "the broker runs"
                    )
            self._raise_failure()

    def _produce_with_patience(self, row: Row) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline_s:
            self._producer.poll(_ROOM_S)
            try:
                return self._producer.produce(*row)
            except BufferError:
                continue
            except KafkaException as error:
                raise self._not_taken(row, error) from error
        raise DeliveryError(
            f"no room for a record for topic {row[0]!r} within {self._timeout_s:g} s; see that the broker runs"
        )

    def _not_taken(self, row: Row, error: KafkaException) -> DeliveryError:
        reason = reason_of(error)
        return undelivered(row[0], reason) if reason is not None else DeliveryError(str(error))

    def _hear(self, error: KafkaError, message: Message) -> None:
        if self._failure is None:
            self._failure = undelivered(str(message.topic()), error)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @contextlib.contextmanager
    def _spoilt_by_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.is_sound = False
            self._producer.purge()
            raise


_MOST_OUTLETS: Final = 8
_outlets: dict[DirectWriter, Outlet] = {}
