"""What one partition remembers of its idempotent and transactional producers.

A producer numbers its records. With the number of the last record of each producer the partition can tell a batch that
is new from one that is sent again and from one that has lost its predecessor; with the first offset of each open
transaction it can tell how far a `read_committed` reader may go. The state follows from the log alone: replaying every
batch through `record` and `end_transaction` rebuilds it, a snapshot merely saves reading the whole log.

Appending is two steps, so that nothing is remembered that was not written:

    duplicate = states.check(...)        # raises if the batch must be refused
    if duplicate is None: append it, then states.record(...)

`check` judges what comes from a client. `record` and `end_transaction` never judge: what is in the log is true.
There is no I/O and no clock here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
"""How many batches of a producer are recognised when they come again: as many as a client may have in flight."""

SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequence numbers count to 2^31-1 and go on at 0."""

NO_SEQUENCE: Final = -1
"""The sequence number of batches that the broker itself writes for a producer, such as transactional offset commits."""

PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000
"""Default of `producer.id.expiration.ms`: how long a producer that has gone silent is remembered."""

MAX_SETTLING: Final = 1_000
"""How many ended transactions are told apart while they wait for the high watermark; more are treated as one."""

SNAPSHOT_VERSION: Final = 1

_Batch = tuple[int, int, int, int]
"""First sequence, offset delta of the last record, first offset, timestamp."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch is in the log already; the producer is told where, as it was the first time."""

    first_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction that left records in this partition and has just been ended by its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int
    aborted: bool
    last_stable_offset: int
    """Up to where everything is decided once this marker counts: what the index of aborted transactions stores."""


@dataclass(frozen=True, slots=True)
class ProducerState:
    """One producer as `DescribeProducers` reports it."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int | None


class _Producer:
    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "next_sequence",
        "recent",
        "timestamp_ms",
        "transaction_start",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.batches: list[_Batch] = []
        self.timestamp_ms = -1
        self.coordinator_epoch = -1
        self.transaction_start: int | None = None
        self.recent = True


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

    def check(
        self, producer_id: int, epoch: int, first_sequence: int, last_offset_delta: int, transactional: bool
    ) -> Duplicate | None:
        """Judge a batch that a client sends: None if it is to be appended, a Duplicate if it was appended before.

        Raises OutOfOrderSequenceError if a batch before it is missing, InvalidProducerEpochError if a newer instance of
        the producer has written here, InvalidTransactionStateError for a plain batch amid the producer's transaction.

        A producer that is not known may start at any sequence number: its records may have been deleted by retention,
        and refusing it would stop it for ever. A known producer with a new epoch starts at 0.
        """
        producer = self._producers.get(producer_id)
        if (
            producer is not None
            and producer.next_sequence == first_sequence
            and producer.epoch == epoch
            and (transactional or producer.transaction_start is None)
        ):
            return None
        return self._judge(producer, producer_id, epoch, first_sequence, last_offset_delta, transactional)

    def _judge(
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
                f"{expected}, but {first_sequence} came; a batch before it was lost or refused"
            )
        self._refuse_plain_in_transaction(producer, producer_id, transactional)
        return None

    def check_epoch(self, producer_id: int, epoch: int, transactional: bool) -> None:
        """Judge a batch without sequence numbers, which the broker itself writes on a producer's behalf."""
        producer = self._producers.get(producer_id)
        if producer is not None:
            self._refuse_older_epoch(producer, producer_id, epoch)
            self._refuse_plain_in_transaction(producer, producer_id, transactional)

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Judge a transaction marker before it is appended.

        Raises InvalidProducerEpochError or TransactionCoordinatorFencedError if it comes from the past.
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
                "written here since; another instance took over, and this one must stop or start anew"
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
        """Remember a data batch that is in the log now. `timestamp_ms` is its largest timestamp."""
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
        commit: bool,
        coordinator_epoch: int,
        timestamp_ms: int,
    ) -> CompletedTransaction | None:
        """Remember a transaction marker that is in the log now.

        None if the producer had written nothing here since its last marker: then nothing waits for this one, and the
        index of aborted transactions need not know it.
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
        undecided = self.first_undecided_offset()
        return CompletedTransaction(
            producer_id, first_offset, marker_offset, not commit, marker_offset + 1 if undecided is None else undecided
        )

    def has_open_transaction(self, producer_id: int) -> bool:
        """Whether the producer has written here in a transaction that is not ended: no need to ask the coordinator."""
        return producer_id in self._ongoing

    def first_undecided_offset(self) -> int | None:
        """Where the earliest open transaction starts; None if there is none."""
        for first_offset in self._ongoing.values():
            return first_offset
        return None

    def last_stable_offset(self, high_watermark: int, log_start_offset: int = 0) -> int:
        """How far a `read_committed` reader may go: everything below is decided, and will still be after a crash.

        An ended transaction holds it back until its marker is below the high watermark, which must never go back.
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
        """Forget producers that have been silent for `expiration_ms`, and say how many.

        Never one with an open transaction. Nor one that has written since the last call: the timestamps are the
        producers' own, so one that copies old records would be forgotten while it writes, and its next retry would be
        taken for a new batch.
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
        """Each producer's epoch and the offset of its last record; None where only a marker is known.

        Compaction must leave something of that batch or marker behind, or a replay would not know the producer.
        """
        return {
            producer_id: (
                producer.epoch,
                producer.batches[-1][2] + producer.batches[-1][1] if producer.batches else None,
            )
            for producer_id, producer in self._producers.items()
        }

    def clear(self) -> None:
        """Forget everything, before the log is replayed from its start."""
        self._producers.clear()
        self._ongoing.clear()
        self._settling.clear()

    def snapshot(self) -> bytes:
        """The whole state, to be restored instead of replaying the log up to here. The caller adds a checksum.

        Ended transactions that wait for the high watermark are left out: a snapshot is used only at a place of the log
        that is durable, and there the markers are too.
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
        """Replace the whole state by that of a snapshot; the log is then replayed from where it was taken.

        Raises ValueError, and leaves the state as it was, if the bytes are not a snapshot of this version.
        """
        try:
            version, stored = _decoder.decode(snapshot)
        except msgspec.MsgspecError as error:
            raise ValueError(f"{self._partition}: not a snapshot of producer states: {error}") from error
        if version != SNAPSHOT_VERSION:
            raise ValueError(
                f"{self._partition}: a snapshot of version {version}, but only {SNAPSHOT_VERSION} is known"
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
