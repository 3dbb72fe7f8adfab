"""Streams, stores and dead letters that fail on purpose.

    store = FaultyStore(SqliteStore(path))
    store.faults.fail("save", StoreUnavailableError("timeout"), after=True)   # the next save counts; its answer is lost
    stream = FaultyStream(streams.stream("orders"))
    stream.faults.refuse(times=3)                                             # the next three records are not stored

What can be scripted stands in `script`. Everything that is not told to fail reaches the real part.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from penstock.abc import CheckpointStore, Clock, DeadLetters, Stream, Streams
from penstock.errors import DeliveryError
from penstock.model import NewRecord, Receipt
from penstock.testing.intercepted_letters import InterceptedLetters
from penstock.testing.intercepted_store import InterceptedStore
from penstock.testing.intercepted_stream import InterceptedStream, InterceptedStreams
from penstock.testing.script import Countdown, Faults, logger

_STREAM_OPERATIONS: Final = InterceptedStream.OPERATIONS - {"acknowledge"}


class FaultyStore(InterceptedStore):
    """A checkpoint store that follows a script. Operations: the methods of `abc.CheckpointStore`, and begin,
    transaction.save, commit."""

    def __init__(self, store: CheckpointStore, clock: Clock | None = None) -> None:
        self.faults = Faults(self.OPERATIONS, clock)
        super().__init__(store, self.faults)


class FaultyLetters(InterceptedLetters):
    """Dead letters that follow a script. Operations: the methods of `abc.DeadLetters`."""

    def __init__(self, letters: DeadLetters, clock: Clock | None = None) -> None:
        self.faults = Faults(self.OPERATIONS, clock)
        super().__init__(letters, self.faults)


class Fate(Enum):
    """What may happen to a record on its way into a stream."""

    REFUSED = auto()
    """It is not stored, and its receipt says so."""
    UNACKNOWLEDGED = auto()
    """It is stored, and its receipt says that it is not."""
    DUPLICATED = auto()
    """It is stored twice, one behind the other, and its receipt tells of the first."""


_COPIES: Final = {None: 1, Fate.REFUSED: 0, Fate.UNACKNOWLEDGED: 1, Fate.DUPLICATED: 2}


@dataclass(frozen=True, slots=True)
class _RecordFault:
    fate: Fate
    countdown: Countdown
    error: DeliveryError | None = None


class StreamFaults(Faults):
    """A script for a stream, with faults for single records, too. For those, `passes` and `times` count records."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(_STREAM_OPERATIONS, clock)
        self._record_faults: list[_RecordFault] = []
        self._draw: Callable[[], Fate | None] | None = None

    def refuse(self, error: DeliveryError | None = None, *, passes: int = 0, times: int | None = 1) -> None:
        """Do not store these records: their receipts have the error."""
        error = error or DeliveryError("the record was refused on purpose")
        self._add_record_fault(_RecordFault(Fate.REFUSED, Countdown(passes, times), error))

    def lose_acknowledgements(
        self, error: DeliveryError | None = None, *, passes: int = 0, times: int | None = 1
    ) -> None:
        """Store these records, but let their receipts have the error, as when the answer is lost on its way."""
        error = error or DeliveryError("the acknowledgement was lost on purpose")
        self._add_record_fault(_RecordFault(Fate.UNACKNOWLEDGED, Countdown(passes, times), error))

    def duplicate(self, *, passes: int = 0, times: int | None = 1) -> None:
        """Store these records twice, as a client does that tries again after a lost answer."""
        self._add_record_fault(_RecordFault(Fate.DUPLICATED, Countdown(passes, times)))

    def spoil_randomly(self, chance: float, fates: Sequence[Fate] = tuple(Fate), *, seed: int | None = None) -> int:
        """Give each record one of these fates with this chance. Gives the seed, and logs it as a warning."""
        seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
        logger.warning("random fates with seed %d", seed)
        rng = random.Random(seed)
        with self._lock:
            self._draw = lambda: rng.choice(fates) if rng.random() < chance else None
        return seed

    def heal(self) -> None:
        with self._lock:
            self._record_faults.clear()
            self._draw = None
        super().heal()

    def fates(self, count: int) -> list[tuple[Fate | None, DeliveryError]]:
        """What is to happen to each of the next records."""
        with self._lock:
            return [self._fate() for _ in range(count)]

    def _fate(self) -> tuple[Fate | None, DeliveryError]:
        found: tuple[Fate | None, DeliveryError | None] = (None, None)
        for fault in self._record_faults:
            if found[0] is None and fault.countdown.is_due():
                found = (fault.fate, fault.error)
        self._record_faults = [fault for fault in self._record_faults if not fault.countdown.is_over]
        if found[0] is None and self._draw is not None:
            found = (self._draw(), None)
        return found[0], found[1] or DeliveryError("the record was spoilt on purpose, at random")

    def _add_record_fault(self, fault: _RecordFault) -> None:
        if fault.countdown.is_over:
            raise ValueError(f"a fault that happens {fault.countdown.times} times never happens")
        with self._lock:
            self._record_faults.append(fault)


class FaultyStream(InterceptedStream):
    """A stream that follows a script. Operations: the methods of `abc.Stream`, and poll and commit of its feeds."""

    def __init__(self, stream: Stream, clock: Clock | None = None, faults: StreamFaults | None = None) -> None:
        self.faults = faults or StreamFaults(clock)
        super().__init__(stream, self.faults)

    def _append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        fates = self.faults.fates(len(records))
        stored: list[NewRecord] = []
        for record, (fate, _) in zip(records, fates, strict=True):
            stored += [record] * _COPIES[fate]
        true_receipts = iter(self._stream.append(stored) if stored else ())
        receipts = []
        for record, (fate, error) in zip(records, fates, strict=True):
            if fate is Fate.REFUSED:
                receipts.append(_refused(record, error))
                continue
            receipt = next(true_receipts)
            receipts.append(_unacknowledged(receipt, error) if fate is Fate.UNACKNOWLEDGED else receipt)
            if fate is Fate.DUPLICATED:
                next(true_receipts)
        return receipts


class FaultyStreams(InterceptedStreams):
    """A system of streams that follow one script."""

    def __init__(self, streams: Streams, clock: Clock | None = None) -> None:
        self.faults = StreamFaults(clock)
        super().__init__(streams, self.faults)

    def stream(self, topic: str) -> FaultyStream:
        return FaultyStream(self._streams.stream(topic), faults=self.faults)


def _refused(record: NewRecord, error: DeliveryError) -> Receipt:
    receipt = Receipt(record.topic)
    receipt.settle(-1, -1, error)
    return receipt


def _unacknowledged(true: Receipt, error: DeliveryError) -> Receipt:
    """A receipt that fails once the true one is settled, however that ends."""
    receipt = Receipt(true.topic)
    true.add_done_callback(lambda _: receipt.settle(-1, -1, error))
    return receipt
