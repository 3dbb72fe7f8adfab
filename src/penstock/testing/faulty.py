"""Streams, stores, dead letters and disks that fail on purpose.

    store = FaultyStore(SqliteStore(path))
    store.faults.fail("save", StoreUnavailableError("timeout"), after=True)   # the next save counts; its answer is lost
    stream = FaultyStream(system.open_topic("orders"))
    stream.faults.refuse(times=3)                                             # the next three records are not stored

    faults.fail("load", error, passes=2, times=None)                          # from the third on, until `heal`
    faults.delay("renew", 30.0)                                               # takes 30 s on the clock
    faults.fail_randomly(0.1, error, seed=7)                                  # one call in ten, before or after

Every call without a scripted fault reaches the real part.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final, Literal, ParamSpec, TypeVar

from penstock.abc import CheckpointStore, Clock, DeadLetters, Stream, TopicStream
from penstock.errors import DeliveryError
from penstock.log.disk import Disk
from penstock.model import NewRecord, Receipt
from penstock.model.clock import SystemClock
from penstock.testing.interception import (
    InterceptedLetters,
    InterceptedStore,
    InterceptedStream,
    InterceptedTopicStream,
)

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Countdown:
    """Which calls are meant: `times` of them, behind the first `passes`; None: all behind those."""

    passes: int
    times: int | None

    def is_due(self) -> bool:
        """Whether this call is one of them. Counts it."""
        if self.passes:
            self.passes -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0

    @property
    def is_over(self) -> bool:
        return self.times is not None and self.times <= 0


@dataclass(frozen=True, slots=True)
class _ScriptedFault:
    operation: str
    countdown: Countdown
    error: Exception | None = None
    after: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _RandomFaults:
    rng: random.Random
    chance: float
    error: Exception
    operations: frozenset[str]


class Faults:
    """An interceptor that follows a script. Without one it only counts. May be changed at any time, by any thread."""

    def __init__(self, operations: Collection[str], clock: Clock | None = None) -> None:
        self.calls: Counter[str] = Counter()
        """How often each operation was asked for, whether it failed or not."""
        self.failed: Counter[str] = Counter()
        """How often each operation failed because of the script."""
        self._operations = frozenset(operations)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._faults: list[_ScriptedFault] = []
        self._random: _RandomFaults | None = None

    def fail(
        self, operation: str, error: Exception, *, passes: int = 0, times: int | None = 1, after: bool = False
    ) -> None:
        """Let `passes` calls through, then fail `times` of them; None for all until `heal`.

        With `after`, the operation takes effect, and the caller gets the error, as when an answer is lost.
        """
        self._add(_ScriptedFault(self._checked(operation), Countdown(passes, times), error=error, after=after))

    def delay(self, operation: str, duration_s: float, *, passes: int = 0, times: int | None = 1) -> None:
        """Let `passes` calls through, then have `times` of them take so long before they do anything."""
        self._add(_ScriptedFault(self._checked(operation), Countdown(passes, times), delay_s=duration_s))

    def fail_randomly(
        self, chance: float, error: Exception, *, operations: Collection[str] = (), seed: int | None = None
    ) -> int:
        """Fail each call, of these operations or of any, with this chance; one half of them after they took effect.

        Gives the seed, which is logged as a warning too, so that a test that fails shows it: the same seed and the same
        calls in the same order fail in the same way.
        """
        seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
        logger.warning("random faults with seed %d", seed)
        chosen = frozenset(map(self._checked, operations)) or self._operations
        with self._lock:
            self._random = _RandomFaults(random.Random(seed), chance, error, chosen)
        return seed

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()
            self._random = None

    def call(self, operation: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        delay_s, error, after = self._next(operation)
        if delay_s:
            self._clock.sleep(delay_s)
        if error is not None and not after:
            raise error.with_traceback(None)
        result = function(*args, **kwargs)
        if error is not None:
            raise error.with_traceback(None)
        return result

    def _next(self, operation: str) -> tuple[float, Exception | None, bool]:
        """What is to happen to this call: how long it takes, how it fails, and whether it does so after its effect."""
        delay_s, error, after = 0.0, None, False
        with self._lock:
            self.calls[operation] += 1
            for fault in [fault for fault in self._faults if fault.operation == operation]:
                if error is not None and fault.error is not None:
                    continue  # one failure at a time: this one is for a later call
                if fault.countdown.is_due():
                    delay_s += fault.delay_s
                    error, after = (fault.error, fault.after) if fault.error is not None else (error, after)
            self._faults = [fault for fault in self._faults if not fault.countdown.is_over]
            chances = self._random
            if error is None and chances is not None and operation in chances.operations:
                drawn = chances.rng.random()
                if drawn < chances.chance:
                    error, after = chances.error, drawn < chances.chance / 2
            self.failed[operation] += error is not None
        return delay_s, error, after

    def _checked(self, operation: str) -> str:
        if operation not in self._operations:
            raise ValueError(f"{operation!r} is not an operation; choose from {', '.join(sorted(self._operations))}")
        return operation

    def _add(self, fault: _ScriptedFault) -> None:
        if fault.countdown.is_over:
            raise ValueError(f"times {fault.countdown.times} must be an integer >= 1")
        with self._lock:
            self._faults.append(fault)


_STREAM_OPERATIONS: Final = InterceptedTopicStream.OPERATIONS - {"acknowledge"}


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
    """It is not stored, and its receipt fails."""
    UNACKNOWLEDGED = auto()
    """It is stored, but its receipt fails."""
    DUPLICATED = auto()
    """It is stored twice in a row, and its receipt names the first."""


_COPIES: Final = {None: 1, Fate.REFUSED: 0, Fate.UNACKNOWLEDGED: 1, Fate.DUPLICATED: 2}


@dataclass(frozen=True, slots=True)
class _RecordFault:
    fate: Fate
    countdown: Countdown
    error: DeliveryError | None = None


class StreamFaults(Faults):
    """A script for a stream, also with faults for single records, for which `passes` and `times` count records."""

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
        """Store these records, but fail their receipts with the error, as when an acknowledgement is lost."""
        error = error or DeliveryError("the acknowledgement was lost on purpose")
        self._add_record_fault(_RecordFault(Fate.UNACKNOWLEDGED, Countdown(passes, times), error))

    def duplicate(self, *, passes: int = 0, times: int | None = 1) -> None:
        """Store these records twice, as by a client that retries after a lost acknowledgement."""
        self._add_record_fault(_RecordFault(Fate.DUPLICATED, Countdown(passes, times)))

    def spoil_randomly(self, chance: float, fates: Sequence[Fate] = tuple(Fate), *, seed: int | None = None) -> int:
        """Give each record one of these fates with this probability. Returns the seed, and logs it as a warning."""
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
            raise ValueError(f"times {fault.countdown.times} must be an integer >= 1")
        with self._lock:
            self._record_faults.append(fault)


class FaultyTopicStream(InterceptedTopicStream):
    """Follows a script of faults. Operations: the methods of `abc.TopicStream`, and poll and commit of its feeds."""

    def __init__(self, stream: TopicStream, clock: Clock | None = None, faults: StreamFaults | None = None) -> None:
        self.faults = faults or StreamFaults(clock)
        super().__init__(stream, self.faults)

    def _append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        fates = self.faults.fates(len(records))
        stored: list[NewRecord] = []
        for record, (fate, _) in zip(records, fates, strict=True):
            stored += [record] * _COPIES[fate]
        true_receipts = iter(self._inner.append(stored) if stored else ())
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


class FaultyStream(InterceptedStream):
    """A stream whose topics follow one script."""

    def __init__(self, stream: Stream, clock: Clock | None = None) -> None:
        self.faults = StreamFaults(clock)
        super().__init__(stream, self.faults)

    def open_topic(self, topic: str) -> FaultyTopicStream:
        return FaultyTopicStream(self._inner.open_topic(topic), faults=self.faults)


def _refused(record: NewRecord, error: DeliveryError) -> Receipt:
    receipt = Receipt(record.topic)
    receipt.settle(-1, -1, error)
    return receipt


def _unacknowledged(true: Receipt, error: DeliveryError) -> Receipt:
    """A receipt that fails once the real one is settled, whatever its outcome."""
    receipt = Receipt(true.topic)
    true.add_done_callback(lambda _: receipt.settle(-1, -1, error))
    return receipt


Operation = Literal["open", "write", "read", "truncate", "sync", "sync_folder"]


class FaultyDisk(Disk):
    """A disk that fails as scripted. Without a script it is an ordinary disk that counts calls.

        disk = FaultyDisk()
        store = TopicStore(folder, resources=Resources(disk))
        disk.fill(free_bytes=100)            # the next write stops after 100 bytes, and says that the disk is full
        disk.free()                          # space has returned
        disk.fail("sync", times=1)           # the next fdatasync says EIO, the one after it is fine again
        disk.fail("read", code=errno.EIO, times=None)    # until `heal`

    Every call without a scripted fault reaches the real files, so a test can look at them, or open them again.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """How often each operation was called, including failures."""
        self.largest_write_bytes: int | None = None
        """The most that one call writes, as when it is interrupted: the caller must write the rest."""
        self._free_bytes: int | None = None
        self._faults: dict[str, tuple[int, Countdown]] = {}

    def fail(self, operation: Operation, *, code: int = errno.EIO, passes: int = 0, times: int | None = 1) -> None:
        """Let `passes` calls through, then fail `times` of them with the error number; None: all, until `heal`."""
        self._faults[operation] = code, Countdown(passes, times)

    def fill(self, free_bytes: int = 0) -> None:
        """Only this many more bytes fit. A larger write writes what fits, and then raises ENOSPC."""
        self._free_bytes = free_bytes

    def free(self) -> None:
        self._free_bytes = None

    def heal(self) -> None:
        """End all faults; a full disk stays full until `free`."""
        self._faults.clear()

    def open(self, path: Path, *, create: bool = False) -> int:
        self._maybe_fail("open")
        return super().open(path, create=create)

    def write_some(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        self._maybe_fail("write")
        wanted = memoryview(b"".join(buffers))
        limit = len(wanted) if self.largest_write_bytes is None else min(len(wanted), self.largest_write_bytes)
        if self._free_bytes is not None:
            if limit and not self._free_bytes:
                raise _error(errno.ENOSPC)
            limit = min(limit, self._free_bytes)
            self._free_bytes -= limit
        return super().write_some(fd, [wanted[:limit]], position)

    def read(self, fd: int, length: int, position: int) -> bytes:
        self._maybe_fail("read")
        return super().read(fd, length, position)

    def truncate(self, fd: int, length: int) -> None:
        self._maybe_fail("truncate")
        if self._free_bytes is not None:
            self._free_bytes += max(0, os.fstat(fd).st_size - length)
        super().truncate(fd, length)

    def sync(self, fd: int) -> None:
        self._maybe_fail("sync")
        super().sync(fd)

    def sync_folder(self, folder: Path) -> None:
        self._maybe_fail("sync_folder")
        super().sync_folder(folder)

    def _maybe_fail(self, operation: Operation) -> None:
        self.calls[operation] += 1
        code, countdown = self._faults.get(operation, (0, Countdown(0, 0)))
        if countdown.is_due():
            raise _error(code)


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
