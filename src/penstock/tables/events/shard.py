"""One partition of an event store: the aggregates in it, and the only producer that may append to it.

All appends to a partition use one transactional id. Whoever appends becomes its owner by starting a producer with this
id, which ends the transaction of the owner before and refuses its later ones, then reads the partition to its end. From
then on it knows every version without reading, until it is fenced itself: its next commit fails, nothing of it is
stored, and it becomes the owner again.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic

import msgspec

from penstock.abc import Pointer, Record, TopicStream, Transaction
from penstock.errors import (
    DeliveryError,
    EventsLostError,
    OutcomeUnknownError,
    PenstockError,
    StreamError,
    TransactionLostError,
    VersionConflictError,
)
from penstock.tables.events.aggregate import AggregateT, AggregateType, opened

_AT_ONCE: Final = 10_000
_WAIT_S: Final = 0.1
_TIMEOUT_S: Final = 30.0
_ATTEMPTS: Final = 12
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 5.0
_EVENTS_IN_TRANSACTION: Final = 5_000


class Snapshot(msgspec.Struct, frozen=True):
    """The value of a snapshot's record. Its key is `SCHEMA:ID`: programs with another schema do not replace it."""

    version: int
    state: msgspec.Raw


class Base(msgspec.Struct, frozen=True):
    """Every aggregate whose events are before `pointer` has a snapshot of this schema. The key is `SCHEMA:`."""

    pointer: int


@dataclass(slots=True)
class CachedAggregate(Generic[AggregateT]):
    """What is known of one aggregate."""

    state: AggregateT
    version: int = 0
    folded: int = 0
    """The version of `state`; the events after it are in `tail`."""
    tail: list[bytes] = field(default_factory=list)
    snapshot: int = 0
    """The version of its newest snapshot."""


@dataclass(slots=True, eq=False)
class Append:
    """Events that someone waits to see stored."""

    id: str
    events: Sequence[Any]
    expected: int | None
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    version: int | None = None
    """The version after it, once it is stored."""
    error: BaseException | None = None
    was_tried: bool = False
    """Whether a transaction with it was begun, whose outcome may be unknown."""

    @property
    def is_settled(self) -> bool:
        return self.version is not None or self.error is not None


@dataclass(slots=True)
class Plan(Generic[AggregateT]):
    """What one transaction stores."""

    rows: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Keys and values of events."""
    changed: dict[str, tuple[AggregateT, int]] = field(default_factory=dict)
    """State and version of each aggregate after it."""
    stored: list[tuple[Append, int]] = field(default_factory=list)
    """The appends in it, with their versions."""
    refused: list[tuple[Append, Exception]] = field(default_factory=list)


class Shard(Generic[AggregateT]):
    """Thread-safe."""

    def __init__(
        self,
        partition: int,
        aggregates: AggregateType[AggregateT],
        events: TopicStream,
        snapshots: TopicStream,
        start_producer: Callable[[], Transaction],
        snapshot_every: int,
    ) -> None:
        self.partition = partition
        self._aggregates = aggregates
        self._events = events
        self._snapshots = snapshots
        self._start_producer = start_producer
        self._snapshot_every = snapshot_every
        self._known: dict[str, CachedAggregate[AggregateT]] = {}
        self._next: Pointer | None = None
        self._producer: Transaction | None = None
        self._lock = threading.Lock()
        self._waiting: deque[Append] = deque()
        self._unsettled: dict[str, Append] = {}
        """Appends that were tried, by name: reading tells whether they were stored."""
        self._chance = random.Random()

    def load(self, id: str, *, fresh: bool) -> tuple[int, AggregateT]:
        """The version and a copy of the state."""
        with self._lock:
            if fresh or self._next is None:
                self._refresh()
            known = self._known.get(id)
            if known is None:
                return 0, self._aggregates.kind()
            self._fold(known)
            return known.version, self._aggregates.folded(known.state, ())

    def ids(self) -> list[str]:
        with self._lock:
            self._refresh()
            return list(self._known)

    def append(self, request: Append) -> int:
        """Store the events together with those of other threads that wait, in one transaction."""
        self._waiting.append(request)
        with self._lock:
            while not request.is_settled:  # ends: each round settles at least the first that wait
                self._store_waiting()
        if request.error is not None:
            raise request.error
        assert request.version is not None
        return request.version

    def history(self, id: str | None) -> Iterator[Record]:
        """The records of events that are stored now, of one aggregate or of all."""
        key = None if id is None else id.encode()
        start, end = self._events.span(self.partition)
        for record in _read(self._events, self.partition, start, end):
            if key is None or record.key == key:
                yield record

    def snapshot_all(self) -> int:
        """Take a snapshot of each aggregate that changed since its last one. Returns how many."""
        with self._lock:
            for attempt in range(_ATTEMPTS):
                try:
                    return self._snapshot_changed()
                except TransactionLostError as error:
                    self._disown()
                    if attempt == _ATTEMPTS - 1:
                        raise StreamError(
                            f"topic {self._snapshots.topic!r}: no snapshots could be stored: {error}"
                        ) from error
                time.sleep(self._chance.uniform(0.2, 1.0))
            raise AssertionError("the last attempt returns or raises")

    def _snapshot_changed(self) -> int:
        self._own()
        assert self._next is not None
        producer = self._owned()
        changed = [(id, known) for id, known in self._known.items() if known.snapshot < known.version]
        for first in range(0, len(changed), _EVENTS_IN_TRANSACTION):
            some = changed[first : first + _EVENTS_IN_TRANSACTION]
            producer.begin()
            for id, known in some:
                self._fold(known)
                self._produce_snapshot(producer, id, known.version, known.state)
            producer.commit()
            for _, known in some:
                known.snapshot = known.version
        producer.begin()
        base = msgspec.json.encode(Base(self._next))
        producer.produce(self._snapshots.topic, base, self._snapshot_key(""), self.partition)
        producer.commit()
        return len(changed)

    def close(self) -> None:
        with self._lock:
            self._disown()

    # Everything below needs the lock.

    def _store_waiting(self) -> None:
        requests: list[Append] = []
        count = 0
        while self._waiting and (not requests or count < _EVENTS_IN_TRANSACTION):
            requests.append(self._waiting.popleft())
            count += len(requests[-1].events)
        pause_s = _FIRST_PAUSE_S
        try:
            for attempt in range(_ATTEMPTS):
                begun_s = time.monotonic()
                try:
                    self._try([each for each in requests if not each.is_settled])
                    return
                except TransactionLostError as error:
                    self._disown()
                    if error.must_abort and "MSG_SIZE_TOO_LARGE" in str(error).upper().replace(" ", "_"):
                        raise DeliveryError(
                            f"topic {self._events.topic!r}: an event or a snapshot is larger than the topic allows, so "
                            f"nothing was stored: raise max.message.bytes of the topic: {error}"
                        ) from error
                    if attempt == _ATTEMPTS - 1:
                        raise
                # Another writer needs as long as this one did: taking the partition back sooner would stop both.
                pause_s = max(2 * pause_s, time.monotonic() - begun_s)
                time.sleep(self._chance.uniform(0.2, 1.0) * min(pause_s, _LONGEST_PAUSE_S))
        except BaseException as error:
            self._disown()  # whatever was begun must not be committed with what comes next
            for each in requests:
                if not each.is_settled:
                    each.error = self._failure(each, error)
            if not isinstance(error, PenstockError):
                raise
        finally:
            self._unsettled.clear()

    def _failure(self, request: Append, error: BaseException) -> BaseException:
        """The error for an append that was given up."""
        if request.was_tried and not isinstance(error, DeliveryError):
            unknown = OutcomeUnknownError(
                f"topic {self._events.topic!r}: the stream was lost while events of {request.id!r} were stored "
                f"({error}), so it is unknown whether they are: load the aggregate and look at its version before you "
                "append again"
            )
            unknown.__cause__ = error
            return unknown
        if isinstance(error, TransactionLostError):
            return StreamError(f"topic {self._events.topic!r}: nothing was stored in {_ATTEMPTS} attempts: {error}")
        return error

    def _try(self, requests: Sequence[Append]) -> None:
        is_current = self._producer is None
        self._own()
        requests = [each for each in requests if not each.is_settled]  # an earlier attempt may have succeeded
        plan = self._planned(requests)
        if plan.refused and not is_current:
            # Another writer may have overtaken this one without its notice: refuse nothing on outdated knowledge.
            self._refresh()
            plan = self._planned(requests)
        if plan.rows:
            self._write(plan)
        for id, (state, version) in plan.changed.items():
            known = self._entry(id)
            known.state, known.version, known.folded, known.tail = state, version, version, []
        for request, version in plan.stored:
            request.version = version
        for request, error in plan.refused:
            request.error = error

    def _planned(self, requests: Sequence[Append]) -> Plan[AggregateT]:
        plan: Plan[AggregateT] = Plan()
        for request in requests:
            try:
                state, version = plan.changed.get(request.id) or self._current(request.id)
                if request.expected is not None and request.expected != version:
                    raise VersionConflictError(request.id, request.expected, version)
                state = self._aggregates.folded(state, request.events)
                key = request.id.encode()
                encoded = [
                    (key, self._aggregates.encode(request.id, version + number, request.name, event))
                    for number, event in enumerate(request.events, 1)
                ]
            except Exception as error:  # of this request alone: its events are wrong, or its version
                plan.refused.append((request, error))
                continue
            plan.rows += encoded
            version += len(encoded)
            plan.changed[request.id] = state, version
            plan.stored.append((request, version))
        return plan

    def _write(self, plan: Plan[AggregateT]) -> None:
        producer = self._owned()
        due = [
            (id, version, state)
            for id, (state, version) in plan.changed.items()
            if version - self._entry(id).snapshot >= self._snapshot_every
        ]
        producer.begin()
        for request, _ in plan.stored:
            request.was_tried = True
            self._unsettled[request.name] = request
        for key, value in plan.rows:
            producer.produce(self._events.topic, value, key, self.partition)
        for id, version, state in due:
            self._produce_snapshot(producer, id, version, state)
        producer.commit()
        for id, version, _ in due:
            self._entry(id).snapshot = version

    def _produce_snapshot(self, producer: Transaction, id: str, version: int, state: AggregateT) -> None:
        encoded = msgspec.Raw(self._aggregates.encode_state(state))
        value = msgspec.json.encode(Snapshot(version, encoded))
        producer.produce(self._snapshots.topic, value, self._snapshot_key(id), self.partition)

    def _snapshot_key(self, id: str) -> bytes:
        return f"{self._aggregates.snapshot_schema}:{id}".encode()

    def _current(self, id: str) -> tuple[AggregateT, int]:
        known = self._entry(id)
        self._fold(known)
        return known.state, known.version

    def _own(self) -> None:
        if self._producer is None:
            self._producer = self._start_producer()
            self._refresh()

    def _owned(self) -> Transaction:
        assert self._producer is not None, "_own() comes first"
        return self._producer

    def _disown(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(PenstockError):  # its transaction is ended by the next owner, or by its timeout
                producer.close()

    def _entry(self, id: str) -> CachedAggregate[AggregateT]:
        known = self._known.get(id)
        if known is None:
            known = self._known[id] = CachedAggregate(self._aggregates.kind())
        return known

    def _fold(self, known: CachedAggregate[AggregateT]) -> None:
        if known.tail:
            state = self._aggregates.folded(known.state, ())
            self._aggregates.fold(state, known.tail)
            known.state, known.folded, known.tail = state, known.version, []

    def _refresh(self) -> None:
        """Read what was stored since the last time."""
        if self._next is None:
            self._next = self._read_snapshots()
        start, end = self._events.span(self.partition)
        for record in _read(self._events, self.partition, max(start, self._next), end):
            self._take(record)
            self._next = record.offset + 1
        self._next = max(self._next, end)

    def _read_snapshots(self) -> Pointer:
        """Take the snapshots that this program can use. Returns the pointer of the first event to read."""
        base = 0
        prefix = self._snapshot_key("")
        start, end = self._snapshots.span(self.partition)
        for record in _read(self._snapshots, self.partition, start, end):
            if record.value is None or record.key is None or not record.key.startswith(prefix):
                continue
            if record.key == prefix:
                base = msgspec.json.decode(record.value, type=Base).pointer
                continue
            snapshot = msgspec.json.decode(record.value, type=Snapshot)
            version = snapshot.version
            state = self._aggregates.decode_state(bytes(snapshot.state))
            self._known[record.key[len(prefix) :].decode()] = CachedAggregate(state, version, version, [], version)
        return base

    def _take(self, record: Record) -> None:
        envelope = opened(record.value, self._events.topic)
        request = self._unsettled.get(envelope.append)
        if request is not None:
            request.version = envelope.version
        known = self._entry(envelope.aggregate)
        if envelope.version <= known.version:
            return  # in a snapshot, or stored by this shard
        if envelope.version != known.version + 1:
            raise EventsLostError(
                f"topic {self._events.topic!r}: after version {known.version} of {envelope.aggregate!r} comes "
                f"{envelope.version}: events between them were removed. Set the topic's retention.ms and "
                "retention.bytes to -1, and restore the events from a copy"
            )
        assert record.value is not None
        known.tail.append(record.value)
        known.version = envelope.version
        if len(known.tail) > self._snapshot_every:
            self._fold(known)  # what is kept of each aggregate is bounded


def _read(topic: TopicStream, partition: int, start: Pointer, end: Pointer) -> Iterator[Record]:
    place, wait_s = start, 0.0
    deadline_s = time.monotonic() + _TIMEOUT_S
    while place < end:
        batch = topic.read(partition, place, _AT_ONCE, wait_s)
        yield from batch.records
        if batch.next != place:
            deadline_s = time.monotonic() + _TIMEOUT_S
        elif time.monotonic() > deadline_s:
            raise StreamError(
                f"topic {topic.topic!r} could not be read to its end within {_TIMEOUT_S:g} s: check that the "
                "stream runs"
            )
        # The last record is followed by its transaction's marker, which needs no wait.
        wait_s = _WAIT_S if batch.next == place else 0.0
        place = batch.next
