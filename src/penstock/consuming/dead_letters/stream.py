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
from penstock.consuming.dead_letters.holding import DEAD_AFTER_S, Hold, NoHold, running_error
from penstock.consuming.dead_letters.ledger import HELD_BYTES, Event, EventKind, Ledger
from penstock.consuming.dead_letters.merging import admitted
from penstock.consuming.dead_letters.stream_encoding import event_record, letter_records
from penstock.consuming.dead_letters.stream_holds import Sign, StreamHold, sign_record
from penstock.consuming.dead_letters.stream_reading import TopicReading
from penstock.errors import ConfigError, DeliveryError, StoreUnavailableError, TopicExistsError, UnknownTopicError
from penstock.model import DeadLetter, LetterFilter, NewRecord, Pointer
from penstock.model.clock import SystemClock
from penstock.streams import Connection

LARGEST_RECORD_BYTES: Final = 900_000
"""Kafka's brokers and clients take a megabyte, more or less, unless they are told otherwise."""
ACKNOWLEDGED_WITHIN_S: Final = 60.0
_ORDERS_PER_MS: Final = 1_000
_WATCH_EVERY_S: Final = 1.0
KEPT_FOR_EVER: Final = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}


class StreamDeadLetters:
    """`abc.DeadLetters` in a topic: each letter a record, and each thing that happens to it another one.

    The log decides: of two who take a letter, the one whose record stands further on has it. The topic is made when the
    first letter is put, with one partition, and where the stream can be told so, without an end to how long records are
    kept. A topic that others made must neither be compacted nor expire sooner than letters are looked at. Letters go to
    its first partition, where one can be chosen, so all processes see them in one order.
    """

    def __init__(
        self,
        streams: abc.Streams,
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
                    f"{streams.url} cannot keep dead letters in the topic {topic!r}: it has no {feature}. Keep them "
                    "elsewhere, such as in sqlite:./dead-letters.db"
                )
        if largest_record_bytes < 16 * 1024:
            raise ConfigError(f"largest_record_bytes is {largest_record_bytes}; a letter needs at least 16384")
        self.topic = topic
        self._streams = streams
        self._stream = streams.stream(topic)
        self._limit_bytes = largest_record_bytes
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._reading = TopicReading(self._stream, held_bytes, self._clock.monotonic_s)
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
        except UnknownTopicError:  # somebody has deleted it since we made it
            self._is_made = False
            self._make_topic()
            self._put(letters)

    def browse(self, which: LetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        with self._up_to_date() as ledger:
            return self._reading.letters(list(islice(ledger.find(which, after), max(0, limit))))

    def count(self, which: LetterFilter) -> int:
        with self._up_to_date() as ledger:
            return sum(1 for _ in ledger.find(which))

    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        _, places = self._note(EventKind.TAKEN, ids, taker)
        with self._up_to_date(places) as ledger:
            return self._reading.letters([id for id in ledger.in_order(ids) if ledger.taken_by(id, taker)])

    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        self._note(EventKind.REDRIVEN if redriven else EventKind.RETURNED, ids, taker)

    def discard(self, ids: Collection[str]) -> int:
        operation, places = self._note(EventKind.DISCARDED, ids)
        with self._up_to_date(places):
            return self._reading.effect(operation)

    def hold(self, holder: str, wait_s: float, clock: Clock) -> Hold:
        """See `holding.Holdable`; `stream_holds` tells how. A topic that is not there has nothing to redrive."""
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
        """Write down what happens to these letters, where it can happen as far as we know; the log has the last word.

        Gives the name of the operation, by which its effect can be asked for, and how far to read to see it.
        """
        places: Mapping[int, Pointer] = {}
        operation = secrets.token_hex(8)
        with self._up_to_date() as ledger:
            events = [Event(kind, id, taker=taker) for id in ledger.in_order(ids)]
            events = [event for event in events if ledger.allows(event)]
            if kind is EventKind.DISCARDED:
                self._reading.expect(operation)
        if events:
            partition = self._home()
            places = self._append([event_record(event, self.topic, partition, operation) for event in events])
        return operation, places

    def _silent_sign(self, wait_s: float, clock: Clock) -> Sign | None:
        """The last sign of a redrive that has died; None: there is none. RedriveRunningError while one may live."""
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
    def _up_to_date(self, through: Mapping[int, Pointer] | None = None) -> Iterator[Ledger]:
        """The ledger with everything that is in the topic by now, what was acknowledged `through` there included.

        A stream may acknowledge a record before it lets it be read.
        """
        with self._lock:
            yield self._reading.catch_up(through or {})

    def _append(self, records: Sequence[NewRecord]) -> Mapping[int, Pointer]:
        """Returns when all are acknowledged. Gives the last pointer that was written in each partition."""
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
        """A number higher than all before; of two processes, the one that puts later has the higher ones."""
        with self._lock:
            self._order = max(self._order + 1, self._clock.wall_ms() * _ORDERS_PER_MS)
            return self._order

    def _make_topic(self) -> None:
        with self._lock:
            if self._is_made:
                return
            if self.topic not in self._streams.topics():
                with contextlib.suppress(TopicExistsError):  # somebody else was quicker
                    if isinstance(self._streams, Connection) and Feature.DURABLE in self._streams.features:
                        self._streams.create_topic(self.topic, 1, KEPT_FOR_EVER)
                    else:
                        self._streams.create_topic(self.topic, 1)
            self._is_made = True
