"""The state of the idempotent and transactional producers of one partition.

A producer numbers its records. From the last number of each producer, the partition knows whether a batch is new, a
duplicate, or comes after a lost one; from the first offset of each open transaction, it knows how far a
`read_committed` reader may go. The state follows from the log alone: replaying every batch through `record` and
`end_transaction` rebuilds it; a snapshot only saves reading the whole log.

Appending has two steps, so that only what was written is remembered:

    duplicate = states.check(...)        # raises if the batch must be refused
    if duplicate is None: append it, then states.record(...)

`check` may refuse batches of clients. `record` and `end_transaction` never do: what is in the log is true. There is no
I/O and no clock here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)

BATCHES_KEPT: Final = 5
"""How many batches of a producer are recognised as duplicates: as many as a client may have in flight."""

SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequence numbers count to 2^31-1 and continue at 0."""

NO_SEQUENCE: Final = -1
"""The sequence number of batches that the broker writes for a producer, such as transactional offset commits."""

PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000
"""Default of `producer.id.expiration.ms`: how long a silent producer is remembered."""

MAX_SETTLING: Final = 1_000
"""How many ended transactions are tracked one by one while they wait for the high watermark; more count as one."""

HIGHEST_GIVEN_ID: Final = (1 << 62) - 1
"""Brokers count ids from 0 and never reach this."""

SNAPSHOT_VERSION: Final = 1

_Batch = tuple[int, int, int, int]
"""First sequence, offset delta of the last record, first offset, timestamp."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch is already in the log; the producer gets the same answer as the first time."""

    first_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """One producer as `DescribeProducers` reports it."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int | None


@dataclass(slots=True, eq=False)
class _Producer:
    epoch: int
    next_sequence: int = 0
    batches: list[_Batch] = field(default_factory=list)
    timestamp_ms: int = -1
    coordinator_epoch: int = -1
    transaction_start: int | None = None
    recent: bool = True


_Stored = tuple[int, int, int, int, int | None, bool, list[_Batch]]
_decoder = msgspec.msgpack.Decoder(tuple[int, list[_Stored]])


class ProducerStates:
    """The producers of one partition. `partition` is its name in error messages."""

    __slots__ = ("_ongoing", "_partition", "_producers", "_settling")

    def __init__(self, partition: str = "") -> None:
        self._partition = partition
        self._producers: dict[int, _Producer] = {}
        self._ongoing: dict[int, int] = {}
        """First offset of each open transaction by producer id. Offsets only grow, so the first entry is the lowest."""
        self._settling: list[tuple[int, int]] = []
        """First offset and marker offset of ended transactions whose marker is not below the high watermark yet."""

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def highest_id(self) -> int:
        """The highest producer id that is remembered; -1 if there is none.

        Ids that a client made up do not count: they are far above those of a broker.
        """
        highest = max(self._producers, default=-1)
        if highest > HIGHEST_GIVEN_ID:
            return max((given for given in self._producers if given <= HIGHEST_GIVEN_ID), default=-1)
        return highest

    def check(
        self, producer_id: int, epoch: int, first_sequence: int, last_offset_delta: int, transactional: bool
    ) -> Duplicate | None:
        """Check a client's batch: None if it is to be appended, a Duplicate if it was appended before.

        Raises OutOfOrderSequenceError if a batch before it is missing, InvalidProducerEpochError if a newer instance of
        the producer has written here, and InvalidTransactionStateError for a plain batch within the producer's
        transaction.

        An unknown producer may start at any sequence number: retention may have deleted its records, and refusing it
        would stop it for ever. A known producer with a new epoch starts at 0.
        """
        producer = self._producers.get(producer_id)
        if (
            producer is not None
            and producer.next_sequence == first_sequence
            and producer.epoch == epoch
            and (transactional or producer.transaction_start is None)
        ):
            return None
        return self._check_unexpected(producer, producer_id, epoch, first_sequence, last_offset_delta, transactional)

    def _check_unexpected(
        self,
        producer: _Producer | None,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        last_offset_delta: int,
        transactional: bool,
    ) -> Duplicate | None:
        if epoch < 0 or first_sequence < 0:
            raise InvalidRecordError(
                f"{self._partition}: a batch of producer {producer_id} has epoch {epoch} and first sequence "
                f"{first_sequence}; a producer with an id must give both"
            )
        if producer is None:
            return None
        if epoch == producer.epoch:
            for known_first, known_delta, first_offset, timestamp_ms in producer.batches:
                if known_first == first_sequence and known_delta == last_offset_delta:
                    return Duplicate(first_offset, first_offset + known_delta, timestamp_ms)
        self._refuse_older_epoch(producer, producer_id, epoch)
        expected = producer.next_sequence if epoch == producer.epoch else 0
        if first_sequence != expected:
            raise OutOfOrderSequenceError(
                f"{self._partition}: the next batch of producer {producer_id} (epoch {epoch}) must start at sequence "
                f"{expected}, but was {first_sequence}; a batch before it was lost or refused"
            )
        self._refuse_plain_in_transaction(producer, producer_id, transactional)
        return None

    def check_epoch(self, producer_id: int, epoch: int, transactional: bool) -> None:
        """Check a batch without sequence numbers, which the broker writes on a producer's behalf."""
        producer = self._producers.get(producer_id)
        if producer is not None:
            self._refuse_older_epoch(producer, producer_id, epoch)
            self._refuse_plain_in_transaction(producer, producer_id, transactional)

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Check a transaction marker before it is appended.

        Raises InvalidProducerEpochError or TransactionCoordinatorFencedError if it is outdated.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        self._refuse_older_epoch(producer, producer_id, epoch)
        if coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"{self._partition}: a marker for producer {producer_id} comes from coordinator epoch "
                f"{coordinator_epoch}, but {producer.coordinator_epoch} has written here since"
            )

    def _refuse_older_epoch(self, producer: _Producer, producer_id: int, epoch: int) -> None:
        if epoch < producer.epoch:
            raise InvalidProducerEpochError(
                f"{self._partition}: producer {producer_id} came with epoch {epoch}, but epoch {producer.epoch} has "
                "written here since; another instance took over, and this one must stop or restart"
            )

    def _refuse_plain_in_transaction(self, producer: _Producer, producer_id: int, transactional: bool) -> None:
        if not transactional and producer.transaction_start is not None:
            raise InvalidTransactionStateError(
                f"{self._partition}: producer {producer_id} has a transaction open since offset "
                f"{producer.transaction_start}; until it ends, its batches must be transactional"
            )

    def record(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        last_offset_delta: int,
        first_offset: int,
        timestamp_ms: int,
        transactional: bool,
    ) -> None:
        """Record a data batch that is in the log. `timestamp_ms` is its largest timestamp."""
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer(epoch)
            batches = producer.batches
        else:
            batches = producer.batches
            if producer.epoch != epoch:
                producer.epoch = epoch
                batches.clear()
            elif len(batches) == BATCHES_KEPT:
                del batches[0]
        batches.append((first_sequence, last_offset_delta, first_offset, timestamp_ms))
        if first_sequence >= 0:
            producer.next_sequence = (first_sequence + last_offset_delta + 1) & SEQUENCE_MASK
        else:
            producer.next_sequence = 0
        producer.timestamp_ms = timestamp_ms
        producer.recent = True
        if transactional and producer.transaction_start is None:
            producer.transaction_start = first_offset
            self._ongoing[producer_id] = first_offset

    def end_transaction(
        self,
        producer_id: int,
        epoch: int,
        marker_offset: int,
        *,
        coordinator_epoch: int,
        timestamp_ms: int,
    ) -> int | None:
        """Record a transaction marker that is in the log, and return the first offset of the transaction.

        Returns None if the producer wrote nothing here since its last marker.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer(epoch)
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
            producer.next_sequence = 0
        producer.coordinator_epoch = coordinator_epoch
        producer.timestamp_ms = timestamp_ms
        producer.recent = True
        first_offset = producer.transaction_start
        if first_offset is None:
            return None
        producer.transaction_start = None
        del self._ongoing[producer_id]
        if len(self._settling) == MAX_SETTLING:
            self._settling = [(min(first for first, _ in self._settling), self._settling[-1][1])]
        self._settling.append((first_offset, marker_offset))
        return first_offset

    def first_undecided_offset(self) -> int | None:
        """Where the earliest open transaction starts; None if there is none."""
        for first_offset in self._ongoing.values():
            return first_offset
        return None

    def last_stable_offset(self, high_watermark: int, log_start_offset: int = 0) -> int:
        """How far a `read_committed` reader may go: everything below is decided, also after a crash.

        An ended transaction holds it back until its marker is below the high watermark, which never decreases.
        """
        if not self._ongoing and not self._settling:
            return high_watermark
        stable = high_watermark
        undecided = self.first_undecided_offset()
        if undecided is not None and undecided < stable:
            stable = undecided
        if self._settling:
            self._settling = [ended for ended in self._settling if ended[1] >= high_watermark]
            for first_offset, _ in self._settling:
                stable = min(stable, first_offset)
        return max(stable, log_start_offset)

    def expire(self, now_ms: int, expiration_ms: int = PRODUCER_ID_EXPIRATION_MS) -> int:
        """Forget producers that have been silent for `expiration_ms`, and return how many.

        Producers with an open transaction stay, and so do those that wrote since the last call: the timestamps are the
        producers' own, so one that copies old records would be forgotten while it writes, and its next retry would
        count as a new batch.
        """
        latest_ms = now_ms - expiration_ms
        expired = []
        for producer_id, producer in self._producers.items():
            if producer.recent:
                producer.recent = False
            elif producer.transaction_start is None and producer.timestamp_ms <= latest_ms:
                expired.append(producer_id)
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def producers(self) -> Iterator[ProducerState]:
        for producer_id, producer in self._producers.items():
            last_sequence = NO_SEQUENCE
            if producer.batches and producer.batches[-1][0] >= 0:
                last_sequence = (producer.next_sequence - 1) & SEQUENCE_MASK
            yield ProducerState(
                producer_id,
                producer.epoch,
                last_sequence,
                producer.timestamp_ms,
                producer.coordinator_epoch,
                producer.transaction_start,
            )

    def last_batches(self) -> dict[int, tuple[int, int | None]]:
        """Each producer's epoch and the offset of its last record; None if only a marker is known.

        Compaction must keep something of that batch or marker, or a replay would not know the producer.
        """
        return {
            producer_id: (
                producer.epoch,
                producer.batches[-1][2] + producer.batches[-1][1] if producer.batches else None,
            )
            for producer_id, producer in self._producers.items()
        }

    def clear(self) -> None:
        self._producers.clear()
        self._ongoing.clear()
        self._settling.clear()

    def snapshot(self) -> bytes:
        """The whole state, to restore instead of replaying the log up to here. The caller adds a checksum.

        Ended transactions that wait for the high watermark are left out: a snapshot is only used at a durable position
        of the log, where their markers are durable, too.
        """
        stored: list[_Stored] = [
            (
                producer_id,
                producer.epoch,
                producer.coordinator_epoch,
                producer.timestamp_ms,
                producer.transaction_start,
                producer.recent,
                producer.batches,
            )
            for producer_id, producer in self._producers.items()
        ]
        return msgspec.msgpack.encode((SNAPSHOT_VERSION, stored))

    def restore(self, snapshot: bytes) -> None:
        """Replace the state by a snapshot; the log is then replayed from where it was taken.

        Raises ValueError, and changes nothing, if the bytes are not a snapshot of this version.
        """
        try:
            version, stored = _decoder.decode(snapshot)
        except msgspec.MsgspecError as error:
            raise ValueError(f"{self._partition}: not a snapshot of producer states: {error}") from error
        if version != SNAPSHOT_VERSION:
            raise ValueError(
                f"{self._partition}: a snapshot of version {version}; only version {SNAPSHOT_VERSION} is supported"
            )
        self.clear()
        for producer_id, epoch, coordinator_epoch, timestamp_ms, transaction_start, recent, batches in stored:
            producer = self._producers[producer_id] = _Producer(epoch)
            producer.coordinator_epoch = coordinator_epoch
            producer.timestamp_ms = timestamp_ms
            producer.transaction_start = transaction_start
            producer.recent = recent
            producer.batches = batches
            if batches and batches[-1][0] >= 0:
                producer.next_sequence = (batches[-1][0] + batches[-1][1] + 1) & SEQUENCE_MASK
        open_transactions = [
            (producer.transaction_start, producer_id)
            for producer_id, producer in self._producers.items()
            if producer.transaction_start is not None
        ]
        for first_offset, producer_id in sorted(open_transactions):
            self._ongoing[producer_id] = first_offset
