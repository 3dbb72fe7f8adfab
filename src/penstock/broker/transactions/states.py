"""One transactional id: what is known about it, and which step may follow which.

Everything here is a value. A step makes a new Transaction from the old one; the coordinator writes it to the log and
only then puts it in the place of the old. So memory never runs ahead of what a crash would leave behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from kio.schema.errors import ErrorCode

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
LAST_EPOCH: Final = 0x7FFF - 1
"""The highest epoch a producer is given. The one above it is kept so that this producer can still be fenced."""

TopicPartition = tuple[str, int]


class TransactionState(IntEnum):
    """Where a transactional id stands. The numbers are those stored in `__transaction_state`."""

    EMPTY = 0
    """Initialised; no transaction yet."""
    ONGOING = 1
    """Partitions have been added; records may be written to them."""
    PREPARE_COMMIT = 2
    """Decided. Whatever happens now, every partition gets its commit marker."""
    PREPARE_ABORT = 3
    """Decided. Whatever happens now, every partition gets its abort marker."""
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Expired; its tombstone is being written. Never stored."""
    PREPARE_EPOCH_FENCE = 7
    """An older instance of the producer is being shut out, its transaction about to be aborted. Never stored."""

    @property
    def label(self) -> str:
        """The name that clients and tools know."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def preparing(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def idle(self) -> bool:
        """No transaction is open or being ended: a new one may start, and the id may expire."""
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """All that is known about one transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    start_ms: int
    """When the first partition was added to the present or last transaction; -1 before the first."""
    last_update_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last InitProducerId: recognises a retry when the epochs of an id have run out."""
    last_producer_epoch: int = NO_EPOCH
    """The epoch that the last InitProducerId replaced, if the caller named it. Kept in memory only, as in Kafka."""

    @property
    def epochs_exhausted(self) -> bool:
        return self.producer_epoch >= LAST_EPOCH

    def accepts(self, expected: ProducerIdentity) -> bool:
        """Whether a producer that names its present identity may go on under this transactional id.

        It may if the id is new (it had expired), if the producer id is the current one (its epoch is looked at when it
        is raised), or if it is the previous one with its last epoch: then the answer to that request got lost.
        """
        return (
            self.producer_epoch == NO_EPOCH
            or expected.producer_id == self.producer_id
            or (expected.producer_id == self.previous_producer_id and expected.epoch >= LAST_EPOCH)
        )

    def with_next_epoch(
        self, expected: ProducerIdentity | None, timeout_ms: int, now_ms: int
    ) -> Transaction | ErrorCode:
        """The next epoch for a producer that initialises itself; PRODUCER_FENCED if it is not the newest instance."""
        assert self.state.idle
        if expected is None:
            epoch, last_epoch = self.producer_epoch + 1, NO_EPOCH
        elif self.producer_epoch in (NO_EPOCH, expected.epoch):
            epoch, last_epoch = self.producer_epoch + 1, self.producer_epoch
        elif expected.epoch == self.last_producer_epoch:
            # The same request again, its first answer lost. No other instance can have come between the two: it would
            # have cleared the last epoch.
            epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        else:
            return ErrorCode.producer_fenced
        return self._initialised(ProducerIdentity(self.producer_id, epoch), last_epoch, timeout_ms, now_ms)

    def with_new_producer_id(
        self, producer_id: int, expected: ProducerIdentity | None, timeout_ms: int, now_ms: int
    ) -> Transaction:
        """Epoch 0 of another producer id, when the epochs of this one have run out."""
        assert self.state.idle
        last_epoch = NO_EPOCH if expected is None else self.producer_epoch
        return self._initialised(ProducerIdentity(producer_id, 0), last_epoch, timeout_ms, now_ms)

    def _initialised(self, identity: ProducerIdentity, last_epoch: int, timeout_ms: int, now_ms: int) -> Transaction:
        return replace(
            self,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            previous_producer_id=self.producer_id,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            start_ms=-1,
            last_update_ms=now_ms,
        )

    def with_partitions(self, added: frozenset[TopicPartition], now_ms: int) -> Transaction:
        """The transaction goes on, or begins, with these partitions in it."""
        assert self.state.idle or self.state is TransactionState.ONGOING
        return replace(
            self,
            state=TransactionState.ONGOING,
            partitions=self.partitions | added,
            start_ms=now_ms if self.state.idle else self.start_ms,
            last_update_ms=now_ms,
        )

    def prepared(self, *, commit: bool, now_ms: int) -> Transaction:
        """The decision. Once it is stored there is no way back."""
        assert self.state is TransactionState.ONGOING
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        return replace(self, state=state, last_update_ms=now_ms)

    def fenced(self, now_ms: int) -> Transaction:
        """Decided to abort, under an epoch that shuts out whoever has the present one. Nobody is ever given it."""
        assert self.producer_epoch <= LAST_EPOCH
        aborting = self.prepared(commit=False, now_ms=now_ms)
        return replace(aborting, producer_epoch=self.producer_epoch + 1, last_producer_epoch=NO_EPOCH)

    def completed(self, now_ms: int) -> Transaction:
        """Every partition has its marker."""
        assert self.state.preparing
        commit = self.state is TransactionState.PREPARE_COMMIT
        state = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        return replace(self, state=state, partitions=frozenset(), last_update_ms=now_ms)
