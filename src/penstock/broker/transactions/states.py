"""One transactional id: its state, and which step may follow which.

Everything here is immutable. A step creates a new Transaction from the old one; the coordinator stores it in the log
and only then replaces the old one. So memory is never ahead of what a crash would leave behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from kio.schema.errors import ErrorCode

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
LAST_EPOCH: Final = 0x7FFF - 1
"""The highest epoch that a producer gets. The one above it is reserved, so that this producer can still be fenced."""

TopicPartition = tuple[str, int]


class TransactionState(IntEnum):
    """The state of a transactional id. The numbers are those stored in `__transaction_state`."""

    EMPTY = 0
    """Initialised, without a transaction yet."""
    ONGOING = 1
    """Partitions have been added; records may be written to them."""
    PREPARE_COMMIT = 2
    """Decided: every partition will get its commit marker."""
    PREPARE_ABORT = 3
    """Decided: every partition will get its abort marker."""
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Expired; its tombstone is being written. Never stored."""
    PREPARE_EPOCH_FENCE = 7
    """An older instance of the producer is being fenced, its transaction about to be aborted. Never stored."""

    @property
    def label(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def preparing(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def idle(self) -> bool:
        """Whether no transaction is open or being ended: a new one may start, and the id may expire."""
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    transactional_id: str
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    """When the first partition was added to the current or last transaction; -1 before the first."""
    last_update_ms: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last InitProducerId, to recognise a retry after the epochs of an id were used up."""
    last_producer_epoch: int = NO_EPOCH
    """The epoch that the last InitProducerId replaced, if the caller named it. In memory only, as in Kafka."""

    @property
    def epochs_exhausted(self) -> bool:
        return self.producer_epoch >= LAST_EPOCH

    def accepts(self, expected: ProducerIdentity) -> bool:
        """Whether a producer with this identity may continue under this transactional id.

        It may if the id is new (it had expired), if the producer id is the current one (its epoch is checked when it is
        raised), or if it is the previous one with its last epoch: then the answer to that request was lost.
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
            # A retry whose first answer was lost. No other instance can have come in between: it would have cleared the
            # last epoch.
            epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        else:
            return ErrorCode.producer_fenced
        return self._initialised(ProducerIdentity(self.producer_id, epoch), last_epoch, timeout_ms, now_ms)

    def with_new_producer_id(
        self, producer_id: int, expected: ProducerIdentity | None, timeout_ms: int, now_ms: int
    ) -> Transaction:
        """Epoch 0 of another producer id, after the epochs of this one were used up."""
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
        assert self.state.idle or self.state is TransactionState.ONGOING
        return replace(
            self,
            state=TransactionState.ONGOING,
            partitions=self.partitions | added,
            start_ms=now_ms if self.state.idle else self.start_ms,
            last_update_ms=now_ms,
        )

    def prepared(self, *, commit: bool, now_ms: int) -> Transaction:
        """The decision. Once it is stored it cannot be undone."""
        assert self.state is TransactionState.ONGOING
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        return replace(self, state=state, last_update_ms=now_ms)

    def fenced(self, now_ms: int) -> Transaction:
        """Decide to abort, with an epoch that fences the current one and is never assigned."""
        assert self.producer_epoch <= LAST_EPOCH
        aborting = self.prepared(commit=False, now_ms=now_ms)
        return replace(aborting, producer_epoch=self.producer_epoch + 1, last_producer_epoch=NO_EPOCH)

    def completed(self, now_ms: int) -> Transaction:
        assert self.state.preparing
        commit = self.state is TransactionState.PREPARE_COMMIT
        state = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        return replace(self, state=state, partitions=frozenset(), last_update_ms=now_ms)
