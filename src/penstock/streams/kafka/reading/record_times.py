"""The timestamps of single records in many partitions at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.model.administration import PartitionId, RecordTime
from penstock.streams.kafka.failures import refused
from penstock.streams.kafka.settings import reader_configuration
from penstock.streams.options import Options

_FETCH_BYTES: Final = 4096
"""Fetches one batch of each partition, however large, and no more."""
_SLICE_S: Final = 0.2


class KafkaRecordTimes:
    """`abc.RecordTimes` by one consumer without a group, created at first use. Thread-safe."""

    def __init__(self, bootstrap: str, options: Options) -> None:
        self._bootstrap = bootstrap
        self._options = options
        self._consumer: Consumer | None = None
        self._lock = threading.Lock()

    def first_from(self, pointers: Mapping[PartitionId, int], timeout_s: float) -> dict[PartitionId, RecordTime | None]:
        found: dict[PartitionId, RecordTime | None] = {}
        with self._lock:
            consumer = self._opened()
            try:
                consumer.assign([TopicPartition(*place, pointer) for place, pointer in pointers.items()])
                until_s = time.monotonic() + timeout_s
                open_places = set(pointers)
                while open_places and (left_s := until_s - time.monotonic()) > 0:
                    for message in consumer.consume(len(open_places), min(left_s, _SLICE_S)):
                        place = (str(message.topic()), int(message.partition() or 0))
                        if place not in open_places:
                            continue
                        error = message.error()
                        if error is not None and error.code() == KafkaError._PARTITION_EOF:
                            found[place] = None
                        elif error is None and message.timestamp()[1] >= 0:
                            found[place] = RecordTime(int(message.offset() or 0), message.timestamp()[1])
                        open_places.discard(place)
                consumer.unassign()
            except KafkaException as error:
                self._let_go()
                raise refused("records could not be looked up", error) from error
        return found

    def close(self) -> None:
        with self._lock:
            self._let_go()

    def _opened(self) -> Consumer:
        if self._consumer is None:
            configuration = reader_configuration(self._bootstrap, self._options, 1)
            self._consumer = Consumer({**configuration, "max.partition.fetch.bytes": _FETCH_BYTES})
        return self._consumer

    def _let_go(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
