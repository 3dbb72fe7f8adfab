"""Dead letters in a topic of a stream."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from penstock import abc
from penstock.abc import Clock, Feature, Features
from penstock.dead_letters.holding import DEAD_AFTER_S, Hold, NoHold, running_error
from penstock.dead_letters.letter_index import HELD_BYTES, Event, EventKind, LetterIndex
from penstock.dead_letters.merging import admitted
from penstock.dead_letters.stream_encoding import (
    HEADERS,
    KIND,
    DecodedRecord,
    NotALetter,
    event_record,
    join,
    letter_records,
    read_record,
)
from penstock.errors import (
    ConfigError,
    DeliveryError,
    OffsetOutOfRangeError,
    PenstockError,
    StoreUnavailableError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.model import Batch, DeadLetter, DeadLetterFilter, NewRecord, Pointer, Record
from penstock.model.clock import SystemClock
from penstock.streams.capability import capability

logger = logging.getLogger(__name__)

KEY: Final = b"penstock-redrive"
"""The key of all signs; no letter has it as its id."""
HOLD: Final = "hold"
SIGN_EVERY_S: Final = DEAD_AFTER_S / 4


class Sign(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a record that says which process redrives."""

    token: str
    """Identifies one redrive."""
    holder: str
    since_ms: int
    number: int = 0
    """Grows from sign to sign."""
    is_last: bool = False
    """The hold was released."""
    instead_of: tuple[str, int] | None = None
    """The token and the number of the sign that it takes over from."""

    @property
    def name(self) -> tuple[str, int]:
        return self.token, self.number


def sign_record(sign: Sign, topic: str, partition: int | None) -> NewRecord:
    headers = ((KIND, HOLD.encode()), (HEADERS, b"0"))
    return NewRecord(topic, msgspec.json.encode(sign), KEY, headers, partition=partition)


def sign_of(record: Record) -> Sign | None:
    """The sign in a record; None for all other records."""
    if record.key != KEY or record.value is None or (KIND, HOLD.encode()) not in record.headers:
        return None
    try:
        return msgspec.json.decode(record.value, type=Sign)
    except msgspec.MsgspecError as error:
        logger.warning("%s is not a sign of a redrive: %s", record.place, error)
        return None


class Holds:
    """The holder of a topic, as far as it has been read."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._read_s = 0.0
        self.last: Sign | None = None
        """The last sign of the holder; None when the topic is not held."""

    def apply(self, sign: Sign) -> None:
        last = self.last
        if last is not None and sign.token != last.token and sign.instead_of != last.name:
            return  # its writer was too late
        self.last = None if sign.is_last else sign
        self._read_s = self._monotonic_s()

    @property
    def silent_s(self) -> float:
        """How long its last sign has been known here."""
        return self._monotonic_s() - self._read_s


class StreamHold:
    """A held topic, with a thread that puts signs of life into it. `put` appends one, and `last` returns the last that
    counts.

    A stream knows nothing of processes, and clocks differ, so a death is detected by watching: when no sign has come
    for long enough, by the watcher's own clock, another process may put a sign that names the one it takes over from.
    It counts if that is still the last one. Every reader of the topic reaches the same answer.
    """

    def __init__(self, topic: str, sign: Sign, put: Callable[[Sign], object], last: Callable[[], Sign | None]) -> None:
        self._topic = topic
        self._sign = sign
        self._put = put
        self._last = last
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"redrive-hold-{topic}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        last = self._last()
        if last is not None and last.token != self._sign.token:
            raise running_error(f"topic {self._topic!r}", last.holder, last.since_ms)

    def release(self) -> None:
        if self._is_over.is_set():
            return
        self._is_over.set()
        self._thread.join()
        self._try_to_put(msgspec.structs.replace(self._sign, number=self._sign.number + 1, is_last=True))

    def _run(self) -> None:
        while not self._is_over.wait(SIGN_EVERY_S):
            self._sign = msgspec.structs.replace(self._sign, number=self._sign.number + 1, instead_of=None)
            self._try_to_put(self._sign)

    def _try_to_put(self, sign: Sign) -> None:
        """A redrive that cannot put signs cannot send either, and fails with that error; others consider it dead."""
        try:
            self._put(sign)
        except PenstockError as error:
            logger.warning("could not write to topic %r that it is being redriven: %s", self._topic, error)


_READ_RECORDS: Final = 5_000
_NEAR_RECORDS: Final = 500
"""Letters that are at most this far apart are read again with one read."""
_WAIT_S: Final = 1.0
_EMPTY_READS: Final = 30
"""After this many empty reads where records must exist, the stream counts as unavailable."""
_BEGINNINGS: Final = 3
"""How often to start again because records expire while they are read."""


@dataclass(slots=True)
class _PartitionProgress:
    """How far a partition has been read."""

    start: Pointer
    next: Pointer
    order: int = 0
    """The highest order of a letter so far. It merges partitions into one order, the same for every reader."""


@dataclass(slots=True)
class _Parts:
    """A letter whose parts have not all been read."""

    event: Event
    pointers: list[Pointer] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the records of one letter are."""

    partition: int
    pointers: tuple[Pointer, ...]


class LetterTopicReader:
    """The letter index of a topic, updated from where the last reading ended. Not thread-safe."""

    def __init__(
        self, stream: abc.TopicStream, held_bytes: int, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._budget_bytes = held_bytes
        self._monotonic_s = monotonic_s
        self._effects: dict[str, int] = {}
        self._begin()

    def catch_up(self, through: Mapping[int, Pointer]) -> LetterIndex:
        """The index after reading everything in the topic, at least `through` these pointers.

        A topic that does not exist yet has no letters.
        """
        for _ in range(_BEGINNINGS):
            try:
                partitions = self._stream.partitions()
            except UnknownTopicError:
                self._begin()
                return self._index
            try:
                spans = {partition: self._stream.span(partition) for partition in partitions}
                if any(self._has_lost(partition, *span) for partition, span in spans.items()):
                    self._begin()
                for partition, (start, end) in spans.items():
                    progress = self._progress.setdefault(partition, _PartitionProgress(start, start))
                    self._read_on(partition, progress, max(end, through.get(partition, -1) + 1))
                return self._index
            except OffsetOutOfRangeError as error:
                logger.info("reading the dead letters in %r again from their start: %s", self._stream.topic, error)
                self._begin()
            except BaseException:
                self._begin()  # it is unknown whether the last record was applied
                raise
        raise StoreUnavailableError(
            f"the dead letters in topic {self._stream.topic!r} expire faster than they can be read: give the topic a "
            "longer retention"
        )

    def letters(self, ids: Sequence[str]) -> list[DeadLetter]:
        """These letters with their contents."""
        try:
            return self._index.letters(ids, self._fetch)
        except OffsetOutOfRangeError as error:
            raise StoreUnavailableError(f"dead letters expired while they were read; try again: {error}") from error

    def expect(self, operation: str) -> None:
        """Start counting what this operation changes."""
        self._effects[operation] = 0

    def effect(self, operation: str) -> int:
        return self._effects.pop(operation)

    def _begin(self) -> None:
        self._index = LetterIndex(self._budget_bytes)
        self._progress: dict[int, _PartitionProgress] = {}
        self._open: dict[tuple[str, str], _Parts] = {}
        self.holds = Holds(self._monotonic_s)
        self._effects = dict.fromkeys(self._effects, 0)

    def _has_lost(self, partition: int, start: Pointer, end: Pointer) -> bool:
        """Whether records that were read no longer exist: then neither do their letters."""
        progress = self._progress.get(partition)
        return progress is not None and (start > progress.start or end < progress.next)

    def _read_on(self, partition: int, progress: _PartitionProgress, end: Pointer) -> None:
        empty_reads = 0
        while progress.next < end:
            batch = self._stream.read(partition, progress.next, _READ_RECORDS, _WAIT_S)
            for record in batch:
                self._note(record, progress)
            empty_reads = empty_reads + 1 if batch.next <= progress.next else 0
            if empty_reads >= _EMPTY_READS:
                raise self._silent(partition, progress.next)
            progress.next = max(progress.next, batch.next)

    def _note(self, record: Record, progress: _PartitionProgress) -> None:
        sign = sign_of(record)
        if sign is not None:
            self.holds.apply(sign)
            return
        try:
            decoded = read_record(record)
        except NotALetter as error:
            logger.warning("%s is not a dead letter: %s", record.place, error)
            return
        progress.order = max(progress.order, decoded.order)
        rank = (progress.order, record.partition, record.offset)
        if decoded.parts > 1:
            self._add_part(decoded, record, rank)
            return
        event = decoded.event
        if event is None:
            return
        is_effective = self._index.apply(event, rank, _Source(record.partition, (record.offset,)))
        if is_effective and decoded.operation in self._effects:
            self._effects[decoded.operation] += 1

    def _add_part(self, decoded: DecodedRecord, record: Record, rank: tuple[int, ...]) -> None:
        """Add a part. A letter exists once its last part does; without it, its writer died before finishing."""
        name = (decoded.id, decoded.operation)
        if decoded.event is not None:
            self._open[name] = _Parts(decoded.event)
        parts = self._open.get(name)
        if parts is None or decoded.part != len(parts.pointers) + 1:  # stored twice, or after a gap
            return
        parts.pointers.append(record.offset)
        if decoded.part == decoded.parts:
            del self._open[name]
            source = _Source(record.partition, tuple(parts.pointers))
            self._index.apply(parts.event, rank, source, is_whole=False)

    def _fetch(self, sources: Sequence[_Source]) -> list[DeadLetter]:
        found: dict[tuple[int, Pointer], Record] = {}
        for partition in {source.partition for source in sources}:
            pointers = sorted({p for source in sources if source.partition == partition for p in source.pointers})
            for record in self._read_at(partition, pointers):
                found[partition, record.offset] = record
        letters = []
        for source in sources:
            decoded = [read_record(found[source.partition, pointer]) for pointer in source.pointers]
            event = decoded[0].event
            assert event is not None
            assert event.letter is not None
            letter = event.letter
            letters.append(letter if len(decoded) == 1 else join(letter, [part.payload for part in decoded]))
        return letters

    def _read_at(self, partition: int, pointers: Sequence[Pointer]) -> Iterator[Record]:
        """The records at these pointers; those that are close to each other with one read."""
        left = list(reversed(pointers))
        empty_reads = 0
        while left:
            first = left[-1]
            near = next(pointer for pointer in left if pointer < first + _NEAR_RECORDS)
            batch = self._stream.read(partition, first, near - first + 1, _WAIT_S)
            if batch.next > first and not _holds(batch, first):
                raise OffsetOutOfRangeError(f"{self._stream.topic}-{partition}", first, batch.next, batch.next)
            empty_reads = 0 if len(batch) else empty_reads + 1
            if empty_reads >= _EMPTY_READS:
                raise self._silent(partition, first)
            for record in batch:
                if left and record.offset == left[-1]:
                    left.pop()
                    yield record

    def _silent(self, partition: int, pointer: Pointer) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the dead letters in {self._stream.topic}-{partition} could not be read from {pointer} on: the stream "
            f"returned nothing for {_EMPTY_READS * _WAIT_S:g} s; check that it runs"
        )


def _holds(batch: Batch, pointer: Pointer) -> bool:
    return len(batch) > 0 and batch[0].offset == pointer


LARGEST_RECORD_BYTES: Final = 900_000
"""Kafka's brokers and clients accept about a megabyte by default."""
ACKNOWLEDGED_WITHIN_S: Final = 60.0
_ORDERS_PER_MS: Final = 1_000
_WATCH_EVERY_S: Final = 1.0
KEPT_FOR_EVER: Final = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}


class StreamDeadLetters:
    """`abc.DeadLetters` in a topic: one record for each letter, and one for each later event.

    The log decides: of two takers of a letter, the one whose record comes later has it. The topic is created for the
    first letter, with one partition and, where the stream supports it, unlimited retention. A topic created otherwise
    must neither be compacted nor expire before its letters are handled. Letters go to its first partition, where the
    stream lets a writer choose one, so that all processes see them in one order.
    """

    def __init__(
        self,
        stream: abc.Stream,
        topic: str,
        *,
        largest_record_bytes: int = LARGEST_RECORD_BYTES,
        held_bytes: int = HELD_BYTES,
        timeout_s: float = ACKNOWLEDGED_WITHIN_S,
        clock: Clock | None = None,
    ) -> None:
        for feature in (Feature.KEYS, Feature.HEADERS):
            if feature not in stream.features:
                raise ConfigError(
                    f"{stream.url} cannot store dead letters in the topic {topic!r}: it has no {feature}. Store them "
                    "elsewhere, such as in sqlite:./dead-letters.db"
                )
        if largest_record_bytes < 16 * 1024:
            raise ConfigError(f"largest_record_bytes={largest_record_bytes} must be >= 16384")
        self.topic = topic
        self._streams = stream
        self._stream = stream.open_topic(topic)
        self._limit_bytes = largest_record_bytes
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._reading = LetterTopicReader(self._stream, held_bytes, self._clock.monotonic_s)
        self._lock = threading.Lock()
        self._is_made = False
        self._order = 0

    @property
    def features(self) -> Features:
        return self._streams.features & {Feature.DURABLE}

    def put(self, letters: Sequence[DeadLetter]) -> None:
        if not letters:
            return
        try:
            self._append(self.records(letters))
        except UnknownTopicError:  # it was deleted after it was created
            self._is_made = False
            self._append(self.records(letters))

    def records(self, letters: Sequence[DeadLetter]) -> list[NewRecord]:
        """What `put` appends for these letters, for a transaction of the caller. Creates the topic if it is missing."""
        self._make_topic()
        partition, operation = self._home(), secrets.token_hex(8)
        records: list[NewRecord] = []
        for letter in letters:
            order = self._next_order()
            records += letter_records(admitted(letter), self.topic, partition, operation, order, self._limit_bytes)
        return records

    def browse(self, which: DeadLetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        with self._up_to_date() as index:
            return self._reading.letters(list(islice(index.find(which, after), max(0, limit))))

    def count(self, which: DeadLetterFilter) -> int:
        with self._up_to_date() as index:
            return sum(1 for _ in index.find(which))

    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        _, places = self._note(EventKind.TAKEN, ids, taker)
        with self._up_to_date(places) as index:
            return self._reading.letters([id for id in index.in_order(ids) if index.taken_by(id, taker)])

    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        self._note(EventKind.REDRIVEN if redriven else EventKind.RETURNED, ids, taker)

    def discard(self, ids: Collection[str]) -> int:
        operation, places = self._note(EventKind.DISCARDED, ids)
        with self._up_to_date(places):
            return self._reading.effect(operation)

    def hold(self, holder: str, wait_s: float, clock: Clock) -> Hold:
        """See `holding.Holdable`; `StreamHold` says how. A topic that does not exist has nothing to redrive."""
        last = self._silent_sign(wait_s, clock)
        sign = Sign(secrets.token_hex(8), holder, clock.wall_ms(), instead_of=None if last is None else last.name)
        try:
            places = self._put_sign(sign)
        except UnknownTopicError:
            return NoHold()
        with self._up_to_date(places):
            counts = self._reading.holds.last
        if counts is None or counts.token != sign.token:
            raise running_error(f"topic {self.topic!r}", counts.holder if counts else "", None)
        return StreamHold(self.topic, sign, self._put_sign, lambda: self._reading.holds.last)

    def close(self) -> None:
        with self._lock:
            self._stream.close()

    def _note(self, kind: EventKind, ids: Collection[str], taker: str = "") -> tuple[str, Mapping[int, Pointer]]:
        """Write an event for each letter that it can apply to, as far as is known here; the log decides.

        Returns the name of the operation, by which its effect can be looked up, and how far to read to see it.
        """
        places: Mapping[int, Pointer] = {}
        operation = secrets.token_hex(8)
        with self._up_to_date() as index:
            events = [Event(kind, id, taker=taker) for id in index.in_order(ids)]
            events = [event for event in events if index.allows(event)]
            if kind is EventKind.DISCARDED:
                self._reading.expect(operation)
        if events:
            partition = self._home()
            places = self._append([event_record(event, self.topic, partition, operation) for event in events])
        return operation, places

    def _silent_sign(self, wait_s: float, clock: Clock) -> Sign | None:
        """The last sign of a redrive that has died; None if there is none. RedriveRunningError while one may live."""
        begun_s = clock.monotonic_s()
        first: Sign | None = None
        while True:
            with self._up_to_date():
                last, silent_s = self._reading.holds.last, self._reading.holds.silent_s
            if last is None:
                return None
            first = first or last
            watched_s = clock.monotonic_s() - begun_s
            left_s = DEAD_AFTER_S - max(silent_s, watched_s)
            if last.name == first.name and left_s <= 0:
                return last
            if last.name != first.name or watched_s >= wait_s:
                more = "" if last.name != first.name else f"; if it was killed, try again in {left_s:.0f} s"
                raise running_error(f"topic {self.topic!r}", last.holder, last.since_ms, more)
            clock.sleep(_WATCH_EVERY_S)

    def _put_sign(self, sign: Sign) -> Mapping[int, Pointer]:
        return self._append([sign_record(sign, self.topic, self._home())])

    @contextlib.contextmanager
    def _up_to_date(self, through: Mapping[int, Pointer] | None = None) -> Iterator[LetterIndex]:
        """The index after reading everything in the topic, including what was acknowledged `through` there.

        A stream may acknowledge a record before it can be read.
        """
        with self._lock:
            yield self._reading.catch_up(through or {})

    def _append(self, records: Sequence[NewRecord]) -> Mapping[int, Pointer]:
        """Append and wait until all are acknowledged. Returns the last pointer written in each partition."""
        last: dict[int, Pointer] = {}
        try:
            for receipt in self._stream.append(records):
                place = receipt.result(self._timeout_s)
                last[place.partition] = max(place.offset, last.get(place.partition, place.offset))
        except (DeliveryError, TimeoutError) as error:
            raise StoreUnavailableError(
                f"the dead letters in topic {self.topic!r} of {self._streams.url} could not be written: {error}"
            ) from error
        return last

    def _home(self) -> int | None:
        """The partition of all letters, where it can be chosen. UnknownTopicError when the topic is gone."""
        partitions = self._stream.partitions()
        return min(partitions) if Feature.CHOSEN_PARTITION in self._stream.features else None

    def _next_order(self) -> int:
        """A number higher than all before; of two processes, the one that puts later has higher ones."""
        with self._lock:
            self._order = max(self._order + 1, self._clock.wall_ms() * _ORDERS_PER_MS)
            return self._order

    def _make_topic(self) -> None:
        with self._lock:
            if self._is_made:
                return
            if self.topic not in self._streams.topics():
                with contextlib.suppress(TopicExistsError):  # another process was faster
                    administered = capability(self._streams, abc.HasAdmin)
                    if administered is not None:
                        administered.admin().create(self.topic, 1, KEPT_FOR_EVER)
                    else:
                        self._streams.create_topic(self.topic, 1)
            self._is_made = True
