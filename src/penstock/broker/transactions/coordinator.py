"""The transaction coordinator: who may write under a transactional id, and how its transactions end.

A transaction is decided at one moment: when PrepareCommit or PrepareAbort is durable in `__transaction_state`. From
then on the coordinator writes the marker to every partition for as long as it takes, through crashes and restarts, and
finally the matching Complete state. Before that moment a crash leaves the transaction open, to be ended by its producer
or by its timeout.

Steps on one transactional id never overlap: while one is being written, others are answered CONCURRENT_TRANSACTIONS,
which clients take as "try again in a moment".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from penstock.broker.contracts import Clock, InternalTopic, Partitions, internal_partition
from penstock.broker.transactions.markers import OFFSETS_TOPIC, Marker, MarkerWriter, OffsetsMarked, is_past
from penstock.broker.transactions.own_tasks import OwnTasks
from penstock.broker.transactions.producer_ids import ProducerIdPool, ProducerIds
from penstock.broker.transactions.settings import TransactionSettings
from penstock.broker.transactions.slots import Slot, Slots, TransactionDescription
from penstock.broker.transactions.state_log import decode_key, decode_value, encode_key, encode_value
from penstock.broker.transactions.states import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    ProducerIdentity,
    TopicPartition,
    Transaction,
    TransactionState,
)
from penstock.errors import LogError, StorageError

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
"""What a producer is told instead of a coordinator's code: that it was replaced, or something that it sends again for
without asking for metadata first, as Kafka does."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Initialised:
    """The answer to InitProducerId: without an error, the identity under which the producer writes from now on."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class TransactionCoordinator:
    """Call `load` before anything else; until then requests are answered COORDINATOR_LOAD_IN_PROGRESS."""

    def __init__(
        self,
        topic: InternalTopic,
        partitions: Partitions,
        producer_ids: ProducerIds,
        clock: Clock,
        *,
        offsets_partition_count: int,
        on_offsets_marked: OffsetsMarked,
        settings: TransactionSettings | None = None,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._producer_ids = ProducerIdPool(producer_ids)
        self._clock = clock
        self._offsets_partition_count = offsets_partition_count
        self._markers = MarkerWriter(partitions, on_offsets_marked)
        self._settings = settings or TransactionSettings()
        self._slots = Slots()
        self._tasks = OwnTasks(clock)
        self._refusal: ErrorCode | None = ErrorCode.coordinator_load_in_progress

    async def load(self) -> None:
        """Read the state back, carry out what was decided before the restart, and start the timers.

        The group coordinator must be loaded before, as it is told of the markers for its offsets. What cannot be
        carried out at the first attempt is tried again in the background.
        """
        for batch in self._topic.replay():
            for key, value in batch.records:
                transactional_id = decode_key(key)
                if transactional_id is None:
                    logger.warning("a record of an unknown kind in the transaction state is passed over: %s", key.hex())
                elif value is None:
                    self._slots.remove(transactional_id)
                else:
                    self._slots.add(decode_value(transactional_id, value))
        decided = [slot for slot in self._slots if slot.current.state.preparing]
        if decided:
            logger.info("%d transactions that were decided before the restart are carried out", len(decided))
            await asyncio.gather(*(self._tasks.finish(self._carry_out(slot)) for slot in decided))
        self._refusal = None
        settings = self._settings
        self._tasks.every(
            settings.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000, self.abort_timed_out
        )
        self._tasks.every(
            settings.transaction_remove_expired_transaction_cleanup_interval_ms / 1000, self.remove_expired
        )

    async def close(self) -> None:
        """Refuse further requests and wait for the steps that are under way. What remains is done after a restart."""
        self._refusal = ErrorCode.coordinator_not_available
        await self._tasks.close()

    async def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, expected: ProducerIdentity | None = None
    ) -> Initialised:
        """An identity for a producer: one of its own without a transactional id, or the next epoch of that id.

        The next epoch shuts out every earlier instance. If one of them has a transaction open, that is aborted first
        and the caller told to come again. `expected` is who the caller was until now, if it is not new.
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
        slot = self._slots.get(transactional_id)
        if slot is None:
            slot = self._slots.add(_unborn(transactional_id, timeout_ms))
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

    async def _initialise(self, slot: Slot, timeout_ms: int, expected: ProducerIdentity | None) -> Initialised:
        try:
            step = await self._next_identity(slot, timeout_ms, expected)
            error = step if isinstance(step, ErrorCode) else await self._store(slot, step)
            if error is not ErrorCode.none:
                return Initialised(error)
            return _given(slot.current.producer_id, slot.current.producer_epoch)
        finally:
            slot.pending = None
            if not slot.born:
                self._slots.remove(slot.current.transactional_id)

    async def _next_identity(
        self, slot: Slot, timeout_ms: int, expected: ProducerIdentity | None
    ) -> Transaction | ErrorCode:
        current = slot.current
        newest = expected is None or expected.epoch == current.producer_epoch
        if slot.born and not (current.epochs_exhausted and newest):
            return current.with_next_epoch(expected, timeout_ms, self._clock.wall_ms())
        producer_id = await self._take_producer_id(f"transactional id {current.transactional_id!r}")
        if isinstance(producer_id, ErrorCode):
            return producer_id
        return current.with_new_producer_id(producer_id, expected, timeout_ms, self._clock.wall_ms())

    async def _take_producer_id(self, whose: str) -> int | ErrorCode:
        try:
            return await self._producer_ids.take()
        except LogError:
            # The code that Kafka gives when it has no block of ids at hand: clients ask again.
            logger.exception("there is no producer id for %s", whose)
            return ErrorCode.coordinator_load_in_progress

    async def add_partitions(
        self, transactional_id: str | None, identity: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Put partitions into the transaction, which begins with the first of them."""
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
        """Put the offsets that a group commits into the transaction, by the partition that keeps them."""
        partition = internal_partition(group, self._offsets_partition_count)
        return await self.add_partitions(transactional_id, identity, [(OFFSETS_TOPIC, partition)])

    async def _add(self, slot: Slot, added: frozenset[TopicPartition]) -> ErrorCode:
        try:
            return await self._store(slot, slot.current.with_partitions(added, self._clock.wall_ms()))
        finally:
            slot.pending = None

    async def end(self, transactional_id: str | None, identity: ProducerIdentity, *, commit: bool) -> ErrorCode:
        """Commit or abort the transaction.

        Kafka answers once the decision is stored and writes the markers behind the client's back. Here the markers are
        written first: they are as near as the decision itself, a `read_committed` reader then sees the records as soon
        as the producer knows, and the next transaction does not run into CONCURRENT_TRANSACTIONS. Only when a marker
        cannot be written is the answer given without it; the decision stands, and the marker follows.
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

    def _fence(self, slot: Slot) -> Coroutine[Any, Any, ErrorCode]:
        """Abort a transaction whose producer is replaced or gone, and shut that producer out."""
        slot.pending = TransactionState.PREPARE_EPOCH_FENCE
        return self._decide(slot, slot.current.fenced(self._clock.wall_ms()))

    async def _decide(self, slot: Slot, prepared: Transaction) -> ErrorCode:
        try:
            error = await self._store(slot, prepared)
        finally:
            slot.pending = None
        if error is ErrorCode.none:
            await self._carry_out(slot)
        return error

    async def _carry_out(self, slot: Slot) -> None:
        """Write the markers and complete. If that does not work at once, a task of its own goes on trying."""
        slot.unmarked = slot.current.partitions
        if not await self._complete(slot):
            self._tasks.spawn(self._keep_completing(slot))

    async def _keep_completing(self, slot: Slot) -> None:
        delay_s = RETRY_FIRST_S
        while not self._tasks.closed:
            await self._tasks.nap(delay_s)
            if await self._complete(slot):
                return
            delay_s = min(2 * delay_s, RETRY_LONGEST_S)

    async def _complete(self, slot: Slot) -> bool:
        current = slot.current
        commit = current.state is TransactionState.PREPARE_COMMIT
        marker = Marker(current.producer_id, current.producer_epoch, commit, COORDINATOR_EPOCH)
        failed = await self._markers.write(slot.unmarked, marker)
        for (topic, partition), error in failed.items():
            logger.warning(
                "transactional id %r: %s-%d refused the marker; %s",
                current.transactional_id,
                topic,
                partition,
                "the transaction was ended there by force" if is_past(error) else "it is written again later",
                exc_info=error,
            )
        slot.unmarked = {partition for partition, error in failed.items() if not is_past(error)}
        if slot.unmarked:
            return False
        return await self._store(slot, current.completed(self._clock.wall_ms())) is ErrorCode.none

    async def _store(self, slot: Slot, step: Transaction) -> ErrorCode:
        """Make a step durable, and only then true."""
        key = encode_key(step.transactional_id)
        try:
            await self._topic.append(self._partition_of(step.transactional_id), [(key, encode_value(step))])
        except StorageError:
            # The code that Kafka gives: clients look for the coordinator again, and come back.
            logger.exception("transactional id %r: %s could not be stored", step.transactional_id, step.state.label)
            return ErrorCode.not_coordinator
        self._slots.replace(slot, step)
        return ErrorCode.none

    async def write_markers(
        self, partitions: Iterable[TopicPartition], marker: Marker
    ) -> Mapping[TopicPartition, Exception]:
        """Write markers because an operator says so; answer which partitions refused, and why.

        This is how a transaction that its coordinator knows nothing of any more is ended by hand. Nothing is checked
        but what the partitions themselves check.
        """
        return await self._tasks.finish(self._markers.write(partitions, marker))

    async def abort_timed_out(self) -> None:
        """Abort every transaction that has outlived its timeout, and shut its producer out."""
        now_ms = self._clock.wall_ms()
        late = []
        for slot in self._slots:
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
        """Forget transactional ids that have not been used for `transactional.id.expiration.ms`."""
        latest_ms = self._clock.wall_ms() - self._settings.transactional_id_expiration_ms
        expired: dict[int, list[Slot]] = {}
        for slot in self._slots:
            if slot.pending is None and slot.current.state.idle and slot.current.last_update_ms <= latest_ms:
                slot.pending = TransactionState.DEAD
                expired.setdefault(self._partition_of(slot.current.transactional_id), []).append(slot)
        for partition, slots in expired.items():
            for first in range(0, len(slots), TOMBSTONES_PER_BATCH):
                await self._bury(partition, slots[first : first + TOMBSTONES_PER_BATCH])

    async def _bury(self, partition: int, slots: list[Slot]) -> None:
        try:
            await self._topic.append(partition, [(encode_key(slot.current.transactional_id), None) for slot in slots])
            for slot in slots:
                self._slots.remove(slot.current.transactional_id)
        except StorageError:
            logger.exception("%d expired transactional ids could not be removed; they are later", len(slots))
        finally:
            for slot in slots:
                slot.pending = None

    def knows(self, producer_id: int) -> bool:
        """Whether a transactional id writes as that producer. Nobody ends the transaction of one that is unknown."""
        return self._slots.knows(producer_id)

    def is_ongoing(self, producer_id: int, epoch: int, topic: str, partition: int) -> bool:
        """Whether that producer has a transaction open that this partition is part of: may it write there?"""
        return self._slots.is_ongoing(producer_id, epoch, topic, partition)

    def verify(self, transactional_id: str | None, identity: ProducerIdentity, topic: str, partition: int) -> ErrorCode:
        """Like `is_ongoing`, with the reason as Kafka's coordinator tells it to the other parts of the broker."""
        return self._refusal or self._slots.verify(transactional_id, identity, topic, partition)

    def verify_produce(
        self, transactional_id: str | None, identity: ProducerIdentity, topic: str, partition: int, version: int
    ) -> ErrorCode:
        """`verify` in the codes that a producer understands which speaks that version of Produce."""
        code = self.verify(transactional_id, identity, topic, partition)
        if code is ErrorCode.transaction_abortable and version < FIRST_PRODUCE_WITH_ABORTABLE:
            return ErrorCode.invalid_txn_state
        return PRODUCE_CODES.get(code, code)

    @property
    def refusal(self) -> ErrorCode | None:
        """Why no question can be answered now: still loading, or closed. None in between."""
        return self._refusal

    def exists(self, topic: str, partition: int) -> bool:
        return self._partitions.exists(topic, partition)

    def describe(self, transactional_id: str) -> TransactionDescription | None:
        slot = self._slots.get(transactional_id)
        return slot.describe() if slot is not None and slot.born and slot.pending is not TransactionState.DEAD else None

    def descriptions(
        self,
        *,
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int = -1,
    ) -> list[TransactionDescription]:
        """Those in one of the states, of one of the producers, begun longer ago; what is not given does not matter."""
        began_before_ms = self._clock.wall_ms() - longer_than_ms if longer_than_ms >= 0 else None
        return list(self._slots.select(states, producer_ids, began_before_ms))

    def _owned(self, transactional_id: str | None, identity: ProducerIdentity) -> Slot | ErrorCode:
        return self._refusal or self._slots.owned(transactional_id, identity)

    def _partition_of(self, transactional_id: str) -> int:
        return internal_partition(transactional_id, self._topic.partition_count)


def _unborn(transactional_id: str, timeout_ms: int) -> Transaction:
    return Transaction(
        transactional_id=transactional_id,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_EPOCH,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        start_ms=-1,
        last_update_ms=-1,
    )


def _given(producer_id: int, producer_epoch: int) -> Initialised:
    return Initialised(ErrorCode.none, producer_id, producer_epoch)
