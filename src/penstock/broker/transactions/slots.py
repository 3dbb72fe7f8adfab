"""All transactional ids in memory, and queries about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from kio.schema.errors import ErrorCode

from penstock.broker.transactions.states import (
    NO_EPOCH,
    ProducerIdentity,
    TopicPartition,
    Transaction,
    TransactionState,
)


@dataclass(slots=True, eq=False)
class TransactionSlot:
    """One transactional id: its durable state, and the step that is being written."""

    current: Transaction
    pending: TransactionState | None = None
    unmarked: Collection[TopicPartition] = ()
    """The partitions that still lack their marker while a decision is executed."""

    @property
    def is_stored(self) -> bool:
        """Whether it has any durable state."""
        return self.current.producer_epoch != NO_EPOCH

    def describe(self) -> Transaction:
        """Its state; while it is being ended, with the partitions that still lack their marker."""
        current = self.current
        return replace(current, partitions=frozenset(self.unmarked)) if current.state.preparing else current


class Slots:
    def __init__(self) -> None:
        self._by_id: dict[str, TransactionSlot] = {}
        self._by_producer: dict[int, TransactionSlot] = {}

    def __iter__(self) -> Iterator[TransactionSlot]:
        return iter(self._by_id.values())

    def get(self, transactional_id: str) -> TransactionSlot | None:
        return self._by_id.get(transactional_id)

    def add(self, current: Transaction) -> TransactionSlot:
        self.remove(current.transactional_id)
        slot = self._by_id[current.transactional_id] = TransactionSlot(current)
        self._by_producer[current.producer_id] = slot
        return slot

    def remove(self, transactional_id: str) -> None:
        slot = self._by_id.pop(transactional_id, None)
        if slot is not None and self._by_producer.get(slot.current.producer_id) is slot:
            del self._by_producer[slot.current.producer_id]

    def replace(self, slot: TransactionSlot, current: Transaction) -> None:
        if slot.current.producer_id != current.producer_id:
            if self._by_producer.get(slot.current.producer_id) is slot:
                del self._by_producer[slot.current.producer_id]
            self._by_producer[current.producer_id] = slot
        slot.current = current

    def owned(self, transactional_id: str | None, identity: ProducerIdentity) -> TransactionSlot | ErrorCode:
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
        """Whether a transactional id uses that producer id. Nothing ends the transaction of an unknown one."""
        return producer_id in self._by_producer

    def highest_producer_id(self) -> int:
        """The highest current or former id of a transactional id; -1 if there is none."""
        return max(
            (max(slot.current.producer_id, slot.current.previous_producer_id) for slot in self._by_id.values()),
            default=-1,
        )

    def is_ongoing(self, producer_id: int, epoch: int, topic: str, partition: int) -> bool:
        """Whether that producer has an open transaction that includes this partition."""
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
    ) -> Iterable[Transaction]:
        for slot in self._by_id.values():
            current = slot.current
            if (
                slot.is_stored
                and slot.pending is not TransactionState.DEAD
                and (not states or current.state in states)
                and (not producer_ids or current.producer_id in producer_ids)
                and (began_before_ms is None or current.start_ms < began_before_ms)
            ):
                yield slot.describe()
