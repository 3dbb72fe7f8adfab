"""All transactional ids in memory, and the questions that can be answered from memory alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from penstock.broker.transactions.states import (
    NO_EPOCH,
    ProducerIdentity,
    TopicPartition,
    Transaction,
    TransactionState,
)


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """One transactional id, for those who look on."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: TransactionState
    timeout_ms: int
    start_ms: int
    """When its present or last transaction began; -1 if it had none since it was initialised."""
    last_update_ms: int
    partitions: frozenset[TopicPartition]
    """Those in the transaction; while it is being ended, those that lack their marker."""


class Slot:
    """One transactional id: what is durable, and the step that is being written."""

    __slots__ = ("current", "pending", "unmarked")

    def __init__(self, current: Transaction) -> None:
        self.current = current
        self.pending: TransactionState | None = None
        self.unmarked: Collection[TopicPartition] = ()
        """While a decision is carried out: the partitions that still lack their marker."""

    @property
    def born(self) -> bool:
        """Whether anything of it is durable."""
        return self.current.producer_epoch != NO_EPOCH

    def describe(self) -> TransactionDescription:
        current = self.current
        return TransactionDescription(
            current.transactional_id,
            current.producer_id,
            current.producer_epoch,
            current.state,
            current.timeout_ms,
            current.start_ms,
            current.last_update_ms,
            frozenset(self.unmarked) if current.state.preparing else current.partitions,
        )


class Slots:
    def __init__(self) -> None:
        self._by_id: dict[str, Slot] = {}
        self._by_producer: dict[int, Slot] = {}

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._by_id.values())

    def get(self, transactional_id: str) -> Slot | None:
        return self._by_id.get(transactional_id)

    def add(self, current: Transaction) -> Slot:
        self.remove(current.transactional_id)
        slot = self._by_id[current.transactional_id] = Slot(current)
        self._by_producer[current.producer_id] = slot
        return slot

    def remove(self, transactional_id: str) -> None:
        slot = self._by_id.pop(transactional_id, None)
        if slot is not None and self._by_producer.get(slot.current.producer_id) is slot:
            del self._by_producer[slot.current.producer_id]

    def replace(self, slot: Slot, current: Transaction) -> None:
        """Let `current`, which is durable now, be true."""
        if slot.current.producer_id != current.producer_id:
            if self._by_producer.get(slot.current.producer_id) is slot:
                del self._by_producer[slot.current.producer_id]
            self._by_producer[current.producer_id] = slot
        slot.current = current

    def owned(self, transactional_id: str | None, identity: ProducerIdentity) -> Slot | ErrorCode:
        """The slot, if `identity` is the newest instance of its producer."""
        if not transactional_id:
            return ErrorCode.invalid_request
        slot = self._by_id.get(transactional_id)
        if slot is None or slot.current.producer_id != identity.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if slot.current.producer_epoch != identity.epoch:
            return ErrorCode.producer_fenced
        return slot

    def knows(self, producer_id: int) -> bool:
        return producer_id in self._by_producer

    def is_ongoing(self, producer_id: int, epoch: int, topic: str, partition: int) -> bool:
        slot = self._by_producer.get(producer_id)
        if slot is None:
            return False
        current = slot.current
        return (
            current.state is TransactionState.ONGOING
            and current.producer_epoch == epoch
            and (topic, partition) in current.partitions
        )

    def verify(self, transactional_id: str | None, identity: ProducerIdentity, topic: str, partition: int) -> ErrorCode:
        slot = self.owned(transactional_id, identity)
        if isinstance(slot, ErrorCode):
            return slot
        if slot.current.state.preparing:
            return ErrorCode.concurrent_transactions
        if (topic, partition) not in slot.current.partitions:
            return ErrorCode.transaction_abortable
        return ErrorCode.none

    def select(
        self, states: Collection[TransactionState], producer_ids: Collection[int], began_before_ms: int | None
    ) -> Iterable[TransactionDescription]:
        for slot in self._by_id.values():
            current = slot.current
            if (
                slot.born
                and slot.pending is not TransactionState.DEAD
                and (not states or current.state in states)
                and (not producer_ids or current.producer_id in producer_ids)
                and (began_before_ms is None or current.start_ms < began_before_ms)
            ):
                yield slot.describe()
