"""`EventStore`: the events of aggregates of one kind, in a topic."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, Self

from penstock.abc import Feature, HasAdmin, Record, Stream, Transaction, Transactional
from penstock.errors import ConfigError, VersionConflictError
from penstock.producing.partitioners import partition_of_key
from penstock.streams.capability import capability
from penstock.streams.connecting import connect
from penstock.streams.declared import provide_topic
from penstock.tables.events.aggregate import AggregateT, AggregateType, opened
from penstock.tables.events.shard import Append, Shard

EVENT_SETTINGS: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
SNAPSHOT_SETTINGS: Final = {"cleanup.policy": "compact"}
_TIMEOUT_S: Final = 30.0
_TRANSACTION_TIMEOUT_S: Final = 15.0
"""After this long the broker ends a transaction whose writer has died, unless another writer does so before."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[AggregateT]):
    """An aggregate as it was loaded."""

    id: str
    version: int
    """How many events it has: 0 for one that does not exist."""
    state: AggregateT
    """A copy: changing it changes nothing else."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event, and where it stands."""

    id: str
    """The id of its aggregate."""
    version: int
    """Of the aggregate after this event: 1 for its first."""
    event: Any
    """In its newest schema."""
    timestamp_ms: int
    partition: int
    pointer: int


class EventStore(Generic[AggregateT]):
    """Aggregates of one kind: load them, and append events if nobody else did in the meantime.

    ```python
    accounts = EventStore("log:./data", "accounts", Account)
    account = accounts.load("a1")
    accounts.append("a1", [Deposited(5)], expected_version=account.version)
    ```

    Events are in the topic of this name, keyed by the id of their aggregate; snapshots in `NAME.snapshots`. The stream
    needs transactions: `log:` or `kafka:`. Any number of processes may append; those that often append to one partition
    at the same time slow each other down. Each process keeps the states of all aggregates that it has read in memory.
    Thread-safe.
    """

    def __init__(
        self,
        stream: str | Stream,
        name: str,
        kind: type[AggregateT],
        *,
        snapshot_every: int = 100,
        partitions: int = 4,
    ) -> None:
        """`stream` is a URL or what `connect` returned. A snapshot of an aggregate is stored after each
        `snapshot_every` of its events. `partitions` are those of topics that do not exist yet: they cannot be changed
        later, because the partition of an aggregate depends on their number."""
        for option, number in {"snapshot_every": snapshot_every, "partitions": partitions}.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigError(f"{option}={number!r} must be an integer >= 1")
        self.aggregates = AggregateType(kind, name)
        self.name = name
        self._owned = connect(stream) if isinstance(stream, str) else None
        self.stream: Stream = stream if self._owned is None else self._owned  # type: ignore[assignment]  # a str was opened
        try:
            transactional = self._transactional()
            count = self._provide(name, partitions, EVENT_SETTINGS)
            snapshots = f"{name}.snapshots"
            if self._provide(snapshots, count, SNAPSHOT_SETTINGS) != count:
                raise ConfigError(
                    f"the topics {name!r} and {snapshots!r} have different numbers of partitions: events need the "
                    "number that they were first stored with. Snapshots can be lost: delete that topic"
                )
            self._events = self.stream.open_topic(name)
            self._snapshots = self.stream.open_topic(snapshots)
            self._shards = [self._open_shard(transactional, each, snapshot_every) for each in range(count)]
        except BaseException:
            if self._owned is not None:
                self._owned.close()
            raise

    def load(self, id: str, *, fresh: bool = True) -> Loaded[AggregateT]:
        """The aggregate with all events that are stored now.

        `fresh=False` asks no broker: the state is as this process last read it, which an append with its version
        detects.
        """
        version, state = self._shard(id).load(id, fresh=fresh)
        return Loaded(id, version, state)

    def append(self, id: str, events: Sequence[Any], *, expected_version: int | None) -> int:
        """Store events of one aggregate, all or none, and return its new version.

        Raises VersionConflictError if the aggregate has another version than expected: load it again, decide again.
        None appends to whatever version there is. An event that the aggregate does not apply, or whose method raises,
        is not stored. OutcomeUnknownError if the broker was lost in between.
        """
        if isinstance(expected_version, bool) or not isinstance(expected_version, int | None):
            raise ConfigError(f"expected_version={expected_version!r} must be an integer, or None for any version")
        if isinstance(events, str | bytes) or not isinstance(events, Sequence) or not events:
            raise ConfigError(f"events={events!r} must be a list of at least one event")
        return self._shard(id).append(Append(id, list(events), expected_version))

    def change(
        self, id: str, decide: Callable[[AggregateT], Sequence[Any]], *, attempts: int = 10
    ) -> Loaded[AggregateT]:
        """Append the events that `decide` returns for the current state; after a conflict, decide again.

        Nothing is appended if it returns none, or raises. VersionConflictError after `attempts` conflicts.
        """
        fresh = False  # an outdated state is noticed when it is appended to
        for attempt in range(attempts):
            loaded = self.load(id, fresh=fresh)
            events = decide(loaded.state)
            if not events:
                if fresh:
                    return loaded
            else:
                try:
                    version = self.append(id, events, expected_version=loaded.version)
                    return Loaded(id, version, self.aggregates.folded(loaded.state, ()))
                except VersionConflictError:
                    if attempt == attempts - 1:
                        raise
            fresh = True
        return self.load(id)

    def history(self, id: str | None = None) -> Iterator[StoredEvent]:
        """The stored events of one aggregate, oldest first, or of all, partition by partition.

        Reads the whole partition: the log has no index by key.
        """
        for shard in self._shards if id is None else [self._shard(id)]:
            for record in shard.history(id):
                yield self.decode(record)

    def replay(self, id: str, *, version: int | None = None) -> Loaded[AggregateT]:
        """The aggregate folded from its events alone, without snapshots, up to a version if one is given."""
        state, last = self.aggregates.kind(), 0
        for stored in self.history(id):
            if version is not None and stored.version > version:
                break
            state, last = self.aggregates.folded(state, [stored.event]), stored.version
        return Loaded(id, last, state)

    def ids(self) -> list[str]:
        """The ids of all aggregates."""
        return [id for shard in self._shards for id in shard.ids()]

    def snapshot_all(self) -> int:
        """Take a snapshot of each aggregate that changed since its last one, and return how many.

        From then on, a process that opens the store reads the snapshots and only the events since.
        """
        return sum(shard.snapshot_all() for shard in self._shards)

    def decode(self, record: Record) -> StoredEvent:
        """The event in a record of the topic."""
        envelope = opened(record.value, self.name)
        return StoredEvent(
            envelope.aggregate,
            envelope.version,
            self.aggregates.event(envelope),
            record.timestamp_ms or 0,
            record.partition,
            record.offset,
        )

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            if self._owned is not None:
                closing.callback(self._owned.close)
            closing.callback(self._events.close)
            closing.callback(self._snapshots.close)
            for shard in self._shards:
                closing.callback(shard.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _shard(self, id: str) -> Shard[AggregateT]:
        if not isinstance(id, str) or not id:
            raise ConfigError(f"the id {id!r} of an aggregate must be a non-empty string")
        return self._shards[partition_of_key(id.encode(), len(self._shards))]

    def _open_shard(self, transactional: Transactional, partition: int, snapshot_every: int) -> Shard[AggregateT]:
        def start() -> Transaction:
            return transactional.transactional(
                f"penstock-events-{self.name}-{partition}",
                timeout_s=_TIMEOUT_S,
                transaction_timeout_s=_TRANSACTION_TIMEOUT_S,
            )

        return Shard(partition, self.aggregates, self._events, self._snapshots, start, snapshot_every)

    def _transactional(self) -> Transactional:
        found = capability(self.stream, Transactional)
        if found is None or Feature.TRANSACTIONS not in self.stream.features:
            raise ConfigError(
                f"{self.stream.url} cannot keep the events of aggregates: it has no {Feature.TRANSACTIONS}; use a log: "
                "or kafka: URL"
            )
        return found

    def _provide(self, topic: str, partitions: int, settings: Mapping[str, str]) -> int:
        administered = capability(self.stream, HasAdmin)
        if administered is None:
            return provide_topic(self.stream, topic, partitions)
        admin = administered.admin()
        count = admin.provide(topic, partitions, settings)
        there = {each.name: each.value for each in admin.config(topic)}
        for name, value in settings.items():
            if there.get(name) != value:
                raise ConfigError(
                    f"topic {topic!r} has {name}={there.get(name)}, so it would lose events or snapshots: set it to "
                    f"{value}, with: penstock topics alter {topic} --config {name}={value}"
                )
        return count
