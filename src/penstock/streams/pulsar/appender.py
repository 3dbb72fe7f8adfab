"""Appending to a topic of Pulsar: a producer for each partition, which batches and sends again by itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    DeliveryError,
    PenstockError,
    TopicExistsError,
)
from penstock.model import NewRecord, Receipt
from penstock.model.retry import Retry
from penstock.streams.adapting.append_queue import check_appendable, delivery_error
from penstock.streams.adapting.stream_base import receipts_for
from penstock.streams.forks import FORKS
from penstock.streams.pulsar.client import PulsarClient, keep_thread_state
from penstock.streams.pulsar.messages import partition_of, pointer_of
from penstock.streams.pulsar.settings import PulsarSettings
from penstock.streams.pulsar.topics import PulsarTopic, partition_name

logger = logging.getLogger(__name__)

WAITING_BYTES: Final = 64 << 20
"""How much may be under way before `append` blocks."""
CLOSING_S: Final = 30.0
"""How long `close` waits for records that are under way, if the delivery timeout is not shorter."""
PARTITIONS_S: Final = 60.0
"""How often the number of partitions is asked for: it may grow."""
_AGAIN: Final = Retry(None, first_delay_s=0.05, max_delay_s=5.0)
_STICKY: Final = 100
"""How many records without a key go to one partition before the next one is used, so that batches are large."""
_OVERHEAD_BYTES: Final = 200


_USELESS: Final = frozenset({"AlreadyClosed", "ProducerFenced", "TopicNotFound", "TopicTerminated"})
"""Results after which a producer stores nothing more, and the next append needs another one."""


class PulsarAppender:
    """Sends records and settles their receipts. Any thread may append."""

    def __init__(self, place: PulsarTopic, client: PulsarClient, settings: PulsarSettings) -> None:
        self._place = place
        self._topic = place.topic
        self._client = client
        self._settings = settings
        self._sending = threading.Lock()
        """Held while records are sent: their order is that of the appends."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting_bytes = 0
        self._producers: dict[int, Any] = {}
        self._partitions = 0
        self._partitions_s = 0.0
        self._is_asked = False
        """How many partitions there are was asked for not long ago."""
        self._turn = 0
        self._closed = False
        self._forks = FORKS.count

    def append(self, records: Sequence[NewRecord]) -> list[Receipt]:
        check_appendable(self._topic, self._closed, self._forks)
        receipts = receipts_for(self._topic, records)
        with self._sending:
            if time.monotonic() - self._partitions_s >= PARTITIONS_S:
                self._is_asked = False
            for record, receipt in zip(records, receipts, strict=True):
                try:
                    self._send(record, receipt)
                except PenstockError as error:
                    receipt.settle(record.partition or 0, -1, delivery_error(error))
        return receipts

    def close(self) -> None:
        """Wait until all records are settled. Those that are not stored in time fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._forks != FORKS.count:
                return
            self._changed.wait_for(lambda: not self._waiting_bytes, min(self._settings.delivery_timeout_s, CLOSING_S))
        with self._sending:
            producers, self._producers = self._producers, {}
        for producer in producers.values():
            self._client.release(producer)
        with self._changed:  # closing a producer fails what it could not send
            self._changed.wait_for(lambda: not self._waiting_bytes, CLOSING_S)

    def _send(self, record: NewRecord, receipt: Receipt) -> None:
        """Give a record to the producer of its partition. The caller holds `_sending`."""
        partition = 0
        if record.partition or self._partitions > 1 or not self._is_asked:
            partition = self._partition(record)
        producer = self._producers.get(partition)
        if producer is None:
            producer = self._producers[partition] = self._until_available(lambda: self._new_producer(partition))
        size = _OVERHEAD_BYTES + len(record.value or b"")
        with self._lock:
            if self._waiting_bytes >= WAITING_BYTES:
                self._wait_for_room()
            self._waiting_bytes += size

        def settle(result: Any, id: Any) -> None:
            try:
                keep_thread_state()
                if result.value:
                    receipt.settle(partition, -1, self._refusal(partition, producer, result, record))
                else:
                    receipt.settle(partition, pointer_of(id))
            except Exception:  # what a callback raises would end the process
                logger.exception("the receipt of a record for %r could not be settled", self._topic)
            self._make_room(size)

        try:
            producer._producer.send_async(self._client.message_of(record), settle)
        except Exception as error:
            self._make_room(size)
            raise DeliveryError(f"a record for {self._topic!r} was refused by Pulsar's client: {error}") from error

    def _make_room(self, size: int) -> None:
        with self._lock:
            left_bytes = self._waiting_bytes = self._waiting_bytes - size
            if not left_bytes or left_bytes < WAITING_BYTES <= left_bytes + size:
                self._changed.notify_all()

    def _partition(self, record: NewRecord) -> int:
        if not self._is_asked:
            self._partitions = self._until_available(self._provided)
            self._partitions_s = time.monotonic()
            self._is_asked = True
        count = max(1, self._partitions)
        if record.partition is not None:
            if not 0 <= record.partition < count:
                self._is_asked = False
                raise DeliveryError(
                    f"topic {self._topic!r} in {self._client.where} has no partition {record.partition}: it has "
                    f"{count}, numbered from 0"
                )
            return record.partition
        if count == 1:
            return 0
        if record.key is not None:
            return partition_of(record.key, count)
        self._turn += 1
        return self._turn // _STICKY % count

    def _provided(self) -> int:
        """The number of partitions, 0 if the topic is not partitioned. A missing topic is created."""
        partitions = self._place.partitions()
        if partitions is None:
            try:
                self._place.create(self._settings.partitions)
            except TopicExistsError:
                logger.debug("topic %r was created by another program meanwhile", self._topic)
            partitions = self._place.partitions()
        if partitions is None:
            raise BrokerUnavailableError(f"topic {self._topic!r} in {self._client.where} is being deleted")
        if self._settings.deduplicate and not self._place.deduplicates():
            raise ConfigError(
                f"topic {self._topic!r} in {self._client.where} does not deduplicate: enable it with `pulsar-admin "
                f"topics set-deduplication --enable {self._client.full_name(self._topic)}`, or omit deduplicate"
            )
        return partitions

    def _new_producer(self, partition: int) -> Any:
        return self._client.producer(partition_name(self._topic, partition, self._partitions))

    def _until_available(self, attempt: Callable[[], Any]) -> Any:
        """The result of the first attempt that finds the server, for as long as a delivery may take."""
        until_s = time.monotonic() + self._settings.delivery_timeout_s
        delays_s = _AGAIN.delays_s()
        while True:  # ends: at the latest when the time is over
            try:
                return attempt()
            except BrokerUnavailableError as error:
                left_s = until_s - time.monotonic()
                if not error.retriable or left_s <= 0 or self._closed:
                    raise
            with self._changed:
                self._changed.wait_for(lambda: self._closed, min(left_s, next(delays_s)))

    def _wait_for_room(self) -> None:
        """The caller holds `_changed`."""
        timeout_s = self._settings.delivery_timeout_s
        if not self._changed.wait_for(lambda: self._waiting_bytes < WAITING_BYTES or self._closed, timeout_s):
            raise DeliveryError(
                f"topic {self._topic!r}: {self._waiting_bytes} bytes are waiting to be stored, and there was no room "
                f"for more within {timeout_s:g} s",
                retriable=True,
            )
        if self._closed:
            raise DeliveryError(f"the stream of topic {self._topic!r} was closed before there was room for a record")

    def _refusal(self, partition: int, producer: Any, result: Any, record: NewRecord) -> DeliveryError:
        """The error of a record that was not stored. A producer that can store nothing more is dropped."""
        name = result.name
        if name == "MessageTooBig":
            return DeliveryError(
                f"a record of {len(record.value or b'')} bytes for {self._topic!r} is larger than {self._client.where} "
                "takes: raise maxMessageSize of its brokers, or keep large values elsewhere"
            )
        if name == "Timeout":
            return DeliveryError(
                f"{self._client.where} did not acknowledge a record for {self._topic!r} within "
                f"{self._settings.delivery_timeout_s:g} s: it may be stored or not",
                retriable=True,
            )
        if name in _USELESS and self._producers.get(partition) is producer:
            self._producers.pop(partition, None)
            self._is_asked = False
        return delivery_error(self._client.meaning(name, f"a record for {self._topic!r} was refused: {name}"))
