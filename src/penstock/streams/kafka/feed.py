"""The feed of a stream: several of its partitions, read ahead, without a group."""

from __future__ import annotations

from confluent_kafka import TopicPartition

from penstock.model import Pointer
from penstock.streams.kafka.polling import PolledFeed
from penstock.streams.kafka.settings import reader_configuration
from penstock.streams.kafka.topics import TopicAdministration
from penstock.streams.options import Options


class KafkaFeed(PolledFeed):
    """`penstock.abc.Feed` through one librdkafka consumer, which has chosen partitions and joins no group.

    A batch goes on behind its last record as far as nothing else lies there. At the end of a partition an empty batch
    may say how far that is, where markers of transactions or removed records stand behind the last one.

    While the broker is away nothing comes; it goes on when the broker is back.
    """

    def __init__(
        self, bootstrap: str, options: Options, topic: str, topics: TopicAdministration, ahead: int | None = None
    ) -> None:
        """`ahead` is how many records of a partition are fetched ahead, where it will not be many that are read."""
        super().__init__(reader_configuration(bootstrap, options, ahead), topic, topics)
        self._known: set[int] = set()

    def add(self, partition: int, start: Pointer) -> None:
        """See `penstock.abc.Feed.add`. Raises UnknownTopicError, where librdkafka would wait for ever."""
        if partition not in self._known:
            self._topics.require_partition(self._topic, partition)
            self._known.add(partition)
        with self._lock, self._refusals(f"{self._topic}-{partition} cannot be read from offset {start}"):
            consumer = self._open_consumer()
            if partition in self._intake.readings:
                consumer.incremental_unassign([TopicPartition(self._topic, partition)])
                self._intake.remove(partition)
            consumer.incremental_assign([TopicPartition(self._topic, partition, start)])
            self._intake.add(partition, start)

    def remove(self, partition: int) -> None:
        with self._lock, self._refusals(f"{self._topic}-{partition} cannot be let go of"):
            if partition in self._intake.readings:
                self._intake.remove(partition)
                self._open_consumer().incremental_unassign([TopicPartition(self._topic, partition)])

    def is_at_end(self, partition: int) -> bool:
        """Whether everything that was in the partition when it was last heard of has been given out."""
        reading = self._intake.readings.get(partition)
        return reading is not None and reading.end is not None and not reading.held

    def _move(self, partition: int, start: Pointer) -> None:
        self.add(partition, start)

    def _drop(self, partition: int) -> None:
        self.remove(partition)
