"""Dead letters in a topic of a stream."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from penstock import abc
from penstock.abc import Clock, Feature, Features
from penstock.dead_letters.holding import DEAD_AFTER_S, Hold, NoHold, running_error
from penstock.dead_letters.letter_index import HELD_BYTES, Event, EventKind, LetterIndex
from penstock.dead_letters.merging import admitted
from penstock.dead_letters.stream_encoding import event_record, letter_records
from penstock.dead_letters.stream_holds import Sign, StreamHold, sign_record
from penstock.dead_letters.stream_reading import LetterTopicReader
from penstock.errors import ConfigError, DeliveryError, StoreUnavailableError, TopicExistsError, UnknownTopicError
from penstock.model import DeadLetter, DeadLetterFilter, NewRecord, Pointer
from penstock.model.clock import SystemClock
from penstock.streams.capability import capability

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
        streams: abc.Stream,
        topic: str,
        *,
        largest_record_bytes: int = LARGEST_RECORD_BYTES,
        held_bytes: int = HELD_BYTES,
        timeout_s: float = ACKNOWLEDGED_WITHIN_S,
        clock: Clock | None = None,
    ) -> None:
        for feature in (Feature.KEYS, Feature.HEADERS):
            if feature not in streams.features:
                raise ConfigError(
                    f"{streams.url} cannot store dead letters in the topic {topic!r}: it has no {feature}. Store them "
                    "elsewhere, such as in sqlite:./dead-letters.db"
                )
        if largest_record_bytes < 16 * 1024:
            raise ConfigError(f"largest_record_bytes={largest_record_bytes} must be >= 16384")
        self.topic = topic
        self._streams = streams
        self._stream = streams.open_topic(topic)
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
            self._make_topic()
            self._put(letters)
        except UnknownTopicError:  # it was deleted after it was created
            self._is_made = False
            self._make_topic()
            self._put(letters)

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
        """See `holding.Holdable`; `stream_holds` says how. A topic that does not exist has nothing to redrive."""
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

    def _put(self, letters: Sequence[DeadLetter]) -> None:
        partition, operation = self._home(), secrets.token_hex(8)
        records: list[NewRecord] = []
        for letter in letters:
            order = self._next_order()
            records += letter_records(admitted(letter), self.topic, partition, operation, order, self._limit_bytes)
        self._append(records)

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
