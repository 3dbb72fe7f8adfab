"""The transaction coordinator: who may write under a transactional id, and how its transactions end.

A transaction is decided once PrepareCommit or PrepareAbort is durable in `__transaction_state`. From then on the
coordinator writes the marker to every partition for as long as it takes, through crashes and restarts, and finally the
matching Complete state. Before that, a crash leaves the transaction open, to be ended by its producer or by its
timeout.

Steps on one transactional id never overlap: while one is being written, others are answered CONCURRENT_TRANSACTIONS,
which clients retry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from penstock.broker.contracts import OFFSETS_TOPIC, Clock, InternalTopic, Marker, WriteMarkers, internal_partition
from penstock.broker.transactions.background_tasks import BackgroundTasks
from penstock.broker.transactions.producer_ids import ProducerIdPool, ProducerIds
from penstock.broker.transactions.settings import TransactionSettings
from penstock.broker.transactions.slots import Slots, TransactionSlot
from penstock.broker.transactions.state_log import decode_key, decode_value, encode_key, encode_value
from penstock.broker.transactions.states import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    ProducerIdentity,
    TopicPartition,
    Transaction,
    TransactionState,
)
from penstock.errors import InvalidProducerEpochError, LogError, StorageError, TransactionCoordinatorFencedError

COORDINATOR_EPOCH: Final = 0
"""Kafka counts how often a coordinator has moved to another node. There is one node here."""

RETRY_FIRST_S: Final = 0.1
RETRY_LONGEST_S: Final = 10.0
TOMBSTONES_PER_BATCH: Final = 1_000

FIRST_PRODUCE_WITH_ABORTABLE: Final = 11
"""The first version of Produce whose clients know TRANSACTION_ABORTABLE."""

PRODUCE_CODES: Final = {
    ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch,
    ErrorCode.concurrent_transactions: ErrorCode.not_enough_replicas,
    ErrorCode.coordinator_load_in_progress: ErrorCode.not_enough_replicas,
    ErrorCode.coordinator_not_available: ErrorCode.not_enough_replicas,
}
"""The producer's code for a coordinator's code: that it was replaced, or a code that it retries without asking for
metadata first, as in Kafka."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Initialised:
    """The answer to InitProducerId: an error, or the identity under which the producer writes from now on."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class TransactionCoordinator:
    """Call `load` first; until then requests are answered COORDINATOR_LOAD_IN_PROGRESS."""

    def __init__(
        self,
        topic: InternalTopic,
        write_markers: WriteMarkers,
        producer_ids: ProducerIds,
        clock: Clock,
        *,
        offsets_partition_count: int,
        on_offsets_marked: Callable[[int, bool, int], None],
        settings: TransactionSettings | None = None,
    ) -> None:
        """`on_offsets_marked` is called with producer id, decision and partition when a marker has been written to a
        partition of `__consumer_offsets`; it may be called twice."""
        self._topic = topic
        self._write_to_partitions = write_markers
        self._producer_ids = ProducerIdPool(producer_ids)
        self._clock = clock
        self._offsets_partition_count = offsets_partition_count
        self._on_offsets_marked = on_offsets_marked
        self._settings = settings or TransactionSettings()
        self.slots = Slots()
        self._tasks = BackgroundTasks(clock)
        self._refusal: ErrorCode | None = ErrorCode.coordinator_load_in_progress

    async def load(self) -> None:
        """Read the state, finish what was decided before the restart, and start the timers.

        The group coordinator must be loaded before, because it is told of the markers for its offsets. What cannot be
        finished at once is retried in the background.
        """
        for batch in self._topic.replay():
            for key, value in batch.records:
                transactional_id = decode_key(key)
                if transactional_id is None:
                    logger.warning("skipped a record of unknown type in the transaction state: %s", key.hex())
                elif value is None:
                    self.slots.remove(transactional_id)
                else:
                    self.slots.add(decode_value(transactional_id, value))
        decided = [slot for slot in self.slots if slot.current.state.preparing]
        if decided:
            logger.info("finishing %d transactions that were decided before the restart", len(decided))
            await asyncio.gather(*(self._tasks.finish(self._execute_decision(slot)) for slot in decided))
        self._refusal = None
        settings = self._settings
        self._tasks.every(
            settings.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000, self.abort_timed_out
        )
        self._tasks.every(
            settings.transaction_remove_expired_transaction_cleanup_interval_ms / 1000, self.remove_expired
        )

    async def close(self) -> None:
        """Refuse further requests and wait for running steps. What remains is done after a restart."""
        self._refusal = ErrorCode.coordinator_not_available
        await self._tasks.close()

    async def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, expected: ProducerIdentity | None = None
    ) -> Initialised:
        """An identity for a producer: a new one without a transactional id, or the next epoch of that id.

        The next epoch fences every earlier instance. If one of them has an open transaction, it is aborted first and
        the caller must retry. `expected` is the caller's current identity, if it has one.
        """
        if self._refusal is not None:
            return Initialised(self._refusal)
        if transactional_id is None:
            producer_id = await self._take_producer_id("an idempotent producer")
            return Initialised(producer_id) if isinstance(producer_id, ErrorCode) else _given(producer_id, 0)
        if not transactional_id:
            return Initialised(ErrorCode.invalid_request)
        if not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            return Initialised(ErrorCode.invalid_transaction_timeout)
        slot = self.slots.get(transactional_id)
        if slot is None:
            slot = self.slots.add(Transaction(transactional_id=transactional_id, timeout_ms=timeout_ms))
        elif slot.pending is not None or slot.current.state.preparing:
            return Initialised(ErrorCode.concurrent_transactions)
        elif expected is not None and not slot.current.accepts(expected):
            return Initialised(ErrorCode.producer_fenced)
        if slot.current.state is not TransactionState.ONGOING:
            slot.pending = TransactionState.EMPTY
            return await self._tasks.finish(self._initialise(slot, timeout_ms, expected))
        if expected is not None and expected.epoch != slot.current.producer_epoch:
            return Initialised(ErrorCode.producer_fenced)
        error = await self._tasks.finish(self._fence(slot))
        return Initialised(ErrorCode.concurrent_transactions if error is ErrorCode.none else error)

    async def _initialise(
        self, slot: TransactionSlot, timeout_ms: int, expected: ProducerIdentity | None
    ) -> Initialised:
        try:
            step = await self._next_identity(slot, timeout_ms, expected)
            error = step if isinstance(step, ErrorCode) else await self._store(slot, step)
            if error is not ErrorCode.none:
                return Initialised(error)
            return _given(slot.current.producer_id, slot.current.producer_epoch)
        finally:
            slot.pending = None
            if not slot.is_stored:
                self.slots.remove(slot.current.transactional_id)

    async def _next_identity(
        self, slot: TransactionSlot, timeout_ms: int, expected: ProducerIdentity | None
    ) -> Transaction | ErrorCode:
        current = slot.current
        newest = expected is None or expected.epoch == current.producer_epoch
        if slot.is_stored and not (current.epochs_exhausted and newest):
            return current.with_next_epoch(expected, timeout_ms, self._clock.wall_ms())
        producer_id = await self._take_producer_id(f"transactional id {current.transactional_id!r}")
        if isinstance(producer_id, ErrorCode):
            return producer_id
        return current.with_new_producer_id(producer_id, expected, timeout_ms, self._clock.wall_ms())

    async def _take_producer_id(self, whose: str) -> int | ErrorCode:
        try:
            return await self._producer_ids.take()
        except LogError:
            # Kafka's code if it has no block of ids: clients retry.
            logger.exception("could not get a producer id for %s", whose)
            return ErrorCode.coordinator_load_in_progress

    async def add_partitions(
        self, transactional_id: str | None, identity: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Add partitions to the transaction, which starts with the first one."""
        slot = self._owned(transactional_id, identity)
        if isinstance(slot, ErrorCode):
            return slot
        if slot.pending is not None or slot.current.state.preparing:
            return ErrorCode.concurrent_transactions
        added = frozenset(partitions)
        if slot.current.state is TransactionState.ONGOING and added <= slot.current.partitions:
            return ErrorCode.none
        slot.pending = TransactionState.ONGOING
        return await self._tasks.finish(self._add(slot, added))

    async def add_offsets(self, transactional_id: str | None, identity: ProducerIdentity, group: str) -> ErrorCode:
        """Add the offsets of a group to the transaction, by the partition that stores them."""
        partition = internal_partition(group, self._offsets_partition_count)
        return await self.add_partitions(transactional_id, identity, [(OFFSETS_TOPIC, partition)])

    async def _add(self, slot: TransactionSlot, added: frozenset[TopicPartition]) -> ErrorCode:
        try:
            return await self._store(slot, slot.current.with_partitions(added, self._clock.wall_ms()))
        finally:
            slot.pending = None

    async def end(self, transactional_id: str | None, identity: ProducerIdentity, *, commit: bool) -> ErrorCode:
        """Commit or abort the transaction.

        Kafka answers once the decision is stored and writes the markers later. Here the markers are written first: that
        takes no longer than the decision itself, a `read_committed` reader then sees the records as soon as the
        producer knows, and the next transaction does not get CONCURRENT_TRANSACTIONS. Only if a marker cannot be
        written is the answer sent before it; the decision stands, and the marker follows.
        """
        slot = self._owned(transactional_id, identity)
        if isinstance(slot, ErrorCode):
            return slot
        if slot.pending is not None or slot.current.state.preparing:
            return ErrorCode.concurrent_transactions
        if slot.current.state is not TransactionState.ONGOING:
            done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
            return ErrorCode.none if slot.current.state is done else ErrorCode.invalid_txn_state
        prepared = slot.current.prepared(commit=commit, now_ms=self._clock.wall_ms())
        slot.pending = prepared.state
        return await self._tasks.finish(self._decide(slot, prepared))

    def _fence(self, slot: TransactionSlot) -> Coroutine[Any, Any, ErrorCode]:
        """Abort a transaction whose producer was replaced or is gone, and fence that producer."""
        slot.pending = TransactionState.PREPARE_EPOCH_FENCE
        return self._decide(slot, slot.current.fenced(self._clock.wall_ms()))

    async def _decide(self, slot: TransactionSlot, prepared: Transaction) -> ErrorCode:
        try:
            error = await self._store(slot, prepared)
        finally:
            slot.pending = None
        if error is ErrorCode.none:
            await self._execute_decision(slot)
        return error

    async def _execute_decision(self, slot: TransactionSlot) -> None:
        """Write the markers and complete. If that fails, a background task keeps trying."""
        slot.unmarked = slot.current.partitions
        if not await self._complete(slot):
            self._tasks.spawn(self._keep_completing(slot))

    async def _keep_completing(self, slot: TransactionSlot) -> None:
        delay_s = RETRY_FIRST_S
        while not self._tasks.closed:
            await self._tasks.sleep(delay_s)
            if await self._complete(slot):
                return
            delay_s = min(2 * delay_s, RETRY_LONGEST_S)

    async def _complete(self, slot: TransactionSlot) -> bool:
        current = slot.current
        commit = current.state is TransactionState.PREPARE_COMMIT
        marker = Marker(current.producer_id, current.producer_epoch, commit, COORDINATOR_EPOCH)
        failed = await self._write_markers(slot.unmarked, marker)
        for (topic, partition), error in failed.items():
            logger.warning(
                "transactional id %r: %s-%d refused the marker; %s",
                current.transactional_id,
                topic,
                partition,
                "an operator has ended the transaction there" if _is_past(error) else "it is retried later",
                exc_info=error,
            )
        slot.unmarked = {partition for partition, error in failed.items() if not _is_past(error)}
        if slot.unmarked:
            return False
        return await self._store(slot, current.completed(self._clock.wall_ms())) is ErrorCode.none

    async def _store(self, slot: TransactionSlot, step: Transaction) -> ErrorCode:
        """Store a step, and only then apply it."""
        key = encode_key(step.transactional_id)
        try:
            await self._topic.append(self._partition_of(step.transactional_id), [(key, encode_value(step))])
        except StorageError:
            # Kafka's code: clients look for the coordinator again and retry.
            logger.exception("transactional id %r: %s could not be stored", step.transactional_id, step.state.label)
            return ErrorCode.not_coordinator
        self.slots.replace(slot, step)
        return ErrorCode.none

    async def write_markers(
        self, partitions: Iterable[TopicPartition], marker: Marker
    ) -> Mapping[TopicPartition, Exception]:
        """Write markers on an operator's request; returns which partitions refused, and why.

        This ends a transaction that its coordinator no longer knows. Only the partitions check it.
        """
        return await self._tasks.finish(self._write_markers(partitions, marker))

    async def _write_markers(
        self, partitions: Iterable[TopicPartition], marker: Marker
    ) -> dict[TopicPartition, Exception]:
        """Mark every partition that can be marked; returns which could not, and why. It can be repeated safely."""
        wanted = sorted(partitions)
        try:
            if wanted:
                await self._write_to_partitions(wanted, marker)
            for topic, number in wanted:
                if topic == OFFSETS_TOPIC:
                    self._on_offsets_marked(marker.producer_id, marker.commit, number)
        except Exception as error:
            if len(wanted) == 1:
                return {wanted[0]: error}
            # One of them refused. The readers of the others need not wait for it.
            failed: dict[TopicPartition, Exception] = {}
            for partition in wanted:
                failed.update(await self._write_markers([partition], marker))
            return failed
        return {}

    async def abort_timed_out(self) -> None:
        """Abort every transaction past its timeout, and fence its producer."""
        now_ms = self._clock.wall_ms()
        late = []
        for slot in self.slots:
            current = slot.current
            ongoing = current.state is TransactionState.ONGOING and slot.pending is None
            if ongoing and current.start_ms + current.timeout_ms < now_ms:
                logger.info(
                    "transactional id %r: its transaction was open for more than %d ms; it is aborted, and producer %d "
                    "with epoch %d fenced",
                    current.transactional_id,
                    current.timeout_ms,
                    current.producer_id,
                    current.producer_epoch,
                )
                late.append(self._tasks.finish(self._fence(slot)))
        await asyncio.gather(*late)

    async def remove_expired(self) -> None:
        """Forget transactional ids that were not used for `transactional.id.expiration.ms`."""
        latest_ms = self._clock.wall_ms() - self._settings.transactional_id_expiration_ms
        expired: dict[int, list[TransactionSlot]] = {}
        for slot in self.slots:
            if slot.pending is None and slot.current.state.idle and slot.current.last_update_ms <= latest_ms:
                slot.pending = TransactionState.DEAD
                expired.setdefault(self._partition_of(slot.current.transactional_id), []).append(slot)
        for partition, slots in expired.items():
            for first in range(0, len(slots), TOMBSTONES_PER_BATCH):
                await self._write_tombstones(partition, slots[first : first + TOMBSTONES_PER_BATCH])

    async def _write_tombstones(self, partition: int, slots: list[TransactionSlot]) -> None:
        try:
            await self._topic.append(partition, [(encode_key(slot.current.transactional_id), None) for slot in slots])
            for slot in slots:
                self.slots.remove(slot.current.transactional_id)
        except StorageError:
            logger.exception("%d expired transactional ids could not be removed; it is retried later", len(slots))
        finally:
            for slot in slots:
                slot.pending = None

    def verify(self, transactional_id: str | None, identity: ProducerIdentity, topic: str, partition: int) -> ErrorCode:
        """Whether the transaction is open and includes this partition, as a code of Kafka's coordinator."""
        return self._refusal or self.slots.verify(transactional_id, identity, topic, partition)

    def verify_produce(
        self, transactional_id: str | None, identity: ProducerIdentity, topic: str, partition: int, version: int
    ) -> ErrorCode:
        """`verify` in codes that a producer with that version of Produce understands."""
        code = self.verify(transactional_id, identity, topic, partition)
        if code is ErrorCode.transaction_abortable and version < FIRST_PRODUCE_WITH_ABORTABLE:
            return ErrorCode.invalid_txn_state
        return PRODUCE_CODES.get(code, code)

    @property
    def refusal(self) -> ErrorCode | None:
        """Why no request can be answered now: loading or closed. None otherwise."""
        return self._refusal

    def describe(self, transactional_id: str) -> Transaction | None:
        slot = self.slots.get(transactional_id)
        return (
            slot.describe()
            if slot is not None and slot.is_stored and slot.pending is not TransactionState.DEAD
            else None
        )

    def descriptions(
        self,
        *,
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int = -1,
    ) -> list[Transaction]:
        """Transactions that match every given filter."""
        began_before_ms = self._clock.wall_ms() - longer_than_ms if longer_than_ms >= 0 else None
        return list(self.slots.select(states, producer_ids, began_before_ms))

    def _owned(self, transactional_id: str | None, identity: ProducerIdentity) -> TransactionSlot | ErrorCode:
        return self._refusal or self.slots.owned(transactional_id, identity)

    def _partition_of(self, transactional_id: str) -> int:
        return internal_partition(transactional_id, self._topic.partition_count)


def _is_past(error: Exception) -> bool:
    """Whether a partition refused a marker because it has a later one for that producer. An operator can force that
    (WriteTxnMarkers with a higher epoch). The transaction has ended there."""
    return isinstance(error, InvalidProducerEpochError | TransactionCoordinatorFencedError)


def _given(producer_id: int, producer_epoch: int) -> Initialised:
    return Initialised(ErrorCode.none, producer_id, producer_epoch)
