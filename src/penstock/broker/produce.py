"""Produce: append the batches of a request, and answer once they are as safe as the producer asked.

Everything that arrives in one turn of the event loop forms a round: its batches are staged as they are parsed, written
with one call per partition when the round ends, and then answered, after a sync if the producer asked for `acks=all`.
"""

from __future__ import annotations

import struct
import time
import uuid
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError, code_of
from penstock.broker.legacy import to_batch
from penstock.broker.transactions.states import ProducerIdentity
from penstock.broker.wire.produce import BATCHES_SINCE, ProduceResult, TopicKey, read_produce, write_produce
from penstock.errors import InvalidRecordError, PenstockError, StorageError
from penstock.log.batches.batch import CODEC_MASK, TRANSACTIONAL
from penstock.log.batches.compression import ZSTD
from penstock.log.partition import PartitionLog
from penstock.log.store import Topic

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.connection import Connection, ResponseSlot
    from penstock.broker.syncing import Failures

_PRODUCER: Final = struct.Struct(">qh")
_PRODUCER_POSITION: Final = 43
_ATTRIBUTES_LOW_POSITION: Final = 22
"""The byte of a batch that holds its codec and the transactional flag."""
_MAGIC_POSITION: Final = 16
_BATCH_MAGIC: Final = 2
_ZSTD_SINCE: Final = 7


class _Pending:
    """A request of this round, and the outcome of each of its partitions."""

    __slots__ = ("acks", "connection", "correlation_id", "logs", "results", "slot", "version")

    def __init__(
        self, connection: Connection, slot: ResponseSlot | None, correlation_id: int, version: int, acks: int
    ) -> None:
        self.connection = connection
        self.slot = slot
        self.correlation_id = correlation_id
        self.version = version
        self.acks = acks
        self.results: list[tuple[TopicKey, list[ProduceResult]]] = []
        self.logs: list[tuple[PartitionLog, int, int]] = []
        """The partitions that accepted a batch, and the indexes of their results."""


_LOST_RECORDS: Final = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.invalid_record,
        ErrorCode.invalid_required_acks,
        ErrorCode.invalid_timestamp,
        ErrorCode.message_too_large,
        ErrorCode.unsupported_compression_type,
    }
)


class ProducePath:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._round: list[_Pending] = []
        self._dirty: dict[PartitionLog, StorageError | None] = {}
        self._answered: dict[Connection, None] = {}
        self._by_name: dict[bytes, Topic] = {}
        self._topics_version = -1

    def handle(
        self, connection: Connection, frame: memoryview, position: int, version: int, correlation_id: int
    ) -> None:
        request = read_produce(frame, position, version, self._broker.limits.request_entries)
        slot = connection.reserve() if request.acks else None
        pending = _Pending(connection, slot, correlation_id, version, request.acks)
        now_ms = time.time_ns() // 1_000_000
        for topic_key, partitions in request.topics:
            results: list[ProduceResult] = []
            for index, records in partitions:
                try:
                    log = self._partition(topic_key, index)
                    if request.acks not in (-1, 0, 1):
                        raise ProtocolError(
                            ErrorCode.invalid_required_acks, f"acks={request.acks}; use 0, 1 or all (-1)"
                        )
                    if records is None:
                        raise InvalidRecordError(f"{log.name}: the request has no records")
                    if records[_MAGIC_POSITION] != _BATCH_MAGIC and version < BATCHES_SINCE:
                        records = to_batch(records)
                    else:
                        self._check_batch(log, request.transactional_id, records, version)
                    appended = log.append(records, now_ms)
                except PenstockError as error:
                    faults = error.records if isinstance(error, InvalidRecordError) else ()
                    results.append(ProduceResult(index, code_of(error), -1, -1, -1, str(error), faults))
                    self._warn(connection, topic_key, results[-1])
                except (IndexError, struct.error):
                    results.append(ProduceResult(index, ErrorCode.corrupt_message, -1, -1, -1, "not a record batch"))
                    self._warn(connection, topic_key, results[-1])
                else:
                    self._dirty[log] = None
                    pending.logs.append((log, len(pending.results), len(results)))
                    results.append(
                        ProduceResult(index, 0, appended.base_offset, appended.log_append_time, log.log_start_offset)
                    )
            pending.results.append((topic_key, results))
        self._round.append(pending)
        stats = self._broker.stats
        stats.produced_bytes += len(frame)

    def _warn(self, connection: Connection, topic_key: TopicKey, refused: ProduceResult) -> None:
        """Log records that were refused and that no retry will deliver: the client loses them."""
        if refused.error_code in _LOST_RECORDS:
            topic = topic_key.decode("utf-8", "replace") if isinstance(topic_key, bytes) else str(topic_key)
            place = f"{topic}-{refused.partition}: "
            why = (refused.message or "").removeprefix(place)
            self._broker.client_errors.warn(connection.host, f"refused records for {place}{why}")

    def write_staged(self) -> None:
        """Write what was staged to the files. A partition whose disk refuses is remembered until the round ends."""
        for log, failure in self._dirty.items():
            if failure is None:
                try:
                    log.write()
                except StorageError as error:
                    # A new error: the traceback of the caught one would keep files and buffers alive.
                    self._dirty[log] = StorageError(str(error))

    def finish_round(self) -> None:
        """Write what this round staged, and answer it or let it wait for the disk."""
        if not self._round and not self._dirty:
            return
        self.write_staged()
        dirty, self._dirty = self._dirty, {}
        pending_round, self._round = self._round, []
        failed = {log: error for log, error in dirty.items() if error is not None}
        syncer = self._broker.syncer
        for pending in pending_round:
            if failed:
                _mark_failed(pending, failed)
            if pending.acks < 0 and pending.logs and self._broker.flushes:
                self._answer_when_safe(pending)
            else:
                self._answer(pending)
        for log, error in dirty.items():
            if error is None and not syncer.is_waiting(log):
                if log.end_offset - log.synced_offset >= log.config.flush_messages:
                    syncer.submit([log], lambda _: None)
                else:
                    log.publish(log.end_offset)
        syncer.kick()
        self._send_answers()

    def _answer_when_safe(self, pending: _Pending) -> None:
        def done(failures: Failures) -> None:
            if failures:
                _mark_failed(pending, failures)
            self._answer(pending)

        self._broker.syncer.submit([log for log, _, _ in pending.logs], done)

    def _answer(self, pending: _Pending) -> None:
        connection = pending.connection
        if connection.closed:
            return
        if pending.slot is None:
            # With acks=0 there is no response; closing the connection tells the client that something is wrong.
            if any(result.error_code for _, results in pending.results for result in results):
                connection.close("records sent with acks=0 were refused")
            return
        pending.slot.pieces = [write_produce(pending.correlation_id, pending.version, pending.results)]
        if not self._answered:
            self._broker.loop.call_soon(self._send_answers)
        self._answered[connection] = None

    def _send_answers(self) -> None:
        """Send the responses of a round or a sync together: one system call per connection."""
        answered, self._answered = self._answered, {}
        for connection in answered:
            connection.advance()

    # Lookups and checks.

    def _partition(self, topic_key: TopicKey, index: int) -> PartitionLog:
        topics = self._broker.topics
        if isinstance(topic_key, uuid.UUID):
            topic = topics.by_id(topic_key)
            if topic is None:
                raise ProtocolError(ErrorCode.unknown_topic_id, f"there is no topic with id {topic_key}")
        else:
            if topics.version != self._topics_version:
                self._by_name = {
                    name.encode(): found for name in topics.names() if (found := topics.get(name)) is not None
                }
                self._topics_version = topics.version
            topic = self._by_name.get(topic_key)
        if topic is None or not 0 <= index < len(topic.partitions):
            raise ProtocolError(ErrorCode.unknown_topic_or_partition, f"there is no partition {index} of that topic")
        if topic.internal:
            raise ProtocolError(ErrorCode.invalid_topic_exception, f"{topic.name} is the broker's own topic")
        return topic.partitions[index]

    def _check_batch(self, log: PartitionLog, transactional_id: str | None, records: memoryview, version: int) -> None:
        flags = records[_ATTRIBUTES_LOW_POSITION]
        if version < _ZSTD_SINCE and flags & CODEC_MASK == ZSTD:
            raise ProtocolError(
                ErrorCode.unsupported_compression_type, f"zstd needs Produce version {_ZSTD_SINCE} or later"
            )
        if flags & TRANSACTIONAL:
            self._check_transaction(log, transactional_id, records, version)

    def _check_transaction(
        self, log: PartitionLog, transactional_id: str | None, records: memoryview, version: int
    ) -> None:
        """Check that a transactional batch belongs to an open transaction that includes its partition."""
        if transactional_id is None:
            raise ProtocolError(
                ErrorCode.transactional_id_authorization_failed,
                f"{log.name}: a transactional batch came in a request without a transactional id",
            )
        producer_id, epoch = _PRODUCER.unpack_from(records, _PRODUCER_POSITION)
        transactions = self._broker.transactions
        if transactions.slots.is_ongoing(producer_id, epoch, log.topic, log.partition):
            return
        identity = ProducerIdentity(producer_id, epoch)
        code = transactions.verify_produce(transactional_id, identity, log.topic, log.partition, version)
        if code is not ErrorCode.none:
            raise ProtocolError(
                code, f"{log.name}: producer {producer_id} has no open transaction that this partition was added to"
            )


def _mark_failed(pending: _Pending, failures: Failures) -> None:
    for log, topic_number, result_number in pending.logs:
        error = failures.get(log)
        if error is not None:
            results = pending.results[topic_number][1]
            failed = ProduceResult(results[result_number].partition, code_of(error), -1, -1, -1, str(error))
            results[result_number] = failed
