"""Consumers of the library, from the stores in which they keep their checkpoints. Looking makes no store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from penstock.abc import CheckpointStore, Feature
from penstock.checkpoints.opening import open_store
from penstock.console.link import ANSWER_S, Link
from penstock.console.views import ConsumerDetail, ConsumerFacts, ConsumerPartition
from penstock.consuming.defaults import LOG_CHECKPOINTS
from penstock.errors import BrokerUnavailableError, GroupError, PenstockError, StoreUnavailableError
from penstock.model import Checkpoint, CheckpointKey, Happening, Pointer
from penstock.observe.facts import Snapshot
from penstock.observe.library_groups import KAFKA_TOPICS
from penstock.streams import Connection
from penstock.streams.url import LogUrl, parse_url, without_password

_KAFKA: Final = "kafka:"


class Consumers:
    """The groups of the checkpoint stores that go with a stream. Any thread may use it."""

    def __init__(
        self, link: Link, given: str | None, snapshot: Callable[[], Snapshot], look_now: Callable[[], Snapshot]
    ) -> None:
        self._link = link
        self._given = given
        self._snapshot = snapshot
        self._look_now = look_now
        self._lock = threading.Lock()
        self._stores: dict[str, tuple[CheckpointStore, Connection | None]] = {}

    def all(self) -> list[ConsumerFacts]:
        """All groups, in the order of their names. StoreUnavailableError when a store cannot be asked."""
        found: dict[str, ConsumerFacts] = {}
        for name, store in self._opened().items():
            for group in store.groups():
                found.setdefault(group, _facts(group, name, store.checkpoints(group)))
        return [found[group] for group in sorted(found)]

    def detail(self, group: str) -> ConsumerDetail:
        name, store = self._store_of(group)
        checkpoints = store.checkpoints(group)
        leases = {lease.name: lease for lease in store.leases(group)}
        partitions = tuple(
            ConsumerPartition(
                key.topic,
                key.partition,
                checkpoint,
                leases.pop(key.lease_name, None),
                _in_flight(checkpoint),
                _finished(checkpoint),
            )
            for key, checkpoint in sorted(checkpoints.items(), key=lambda each: (each[0].topic, each[0].partition))
        )
        has_history = Feature.HISTORY in store.features
        return ConsumerDetail(_facts(group, name, checkpoints), partitions, tuple(leases.values()), has_history)

    def history(self, group: str, topic: str, partition: int, pointer: Pointer | None, limit: int) -> list[Happening]:
        """What happened to a record, or in a partition, oldest first; nothing where the store does not remember."""
        _, store = self._store_of(group)
        if Feature.HISTORY not in store.features:
            return []
        return list(store.history(CheckpointKey(group, topic, partition), pointer, limit))

    def store_of(self, group: str) -> CheckpointStore:
        """The store that knows this group. GroupError when none does."""
        return self._store_of(group)[1]

    def close(self) -> None:
        with self._lock:
            stores, self._stores = list(self._stores.values()), {}
        for store, _ in stores:
            store.close()

    def _store_of(self, group: str) -> tuple[str, CheckpointStore]:
        found = self._found(group)
        if found is None and self._snapshot().problem is not None:
            snapshot = self._look_now()  # nobody has looked yet which stores there are, or in vain
            found = self._found(group)
            if found is None and snapshot.problem is not None:
                raise BrokerUnavailableError(f"whether there is a consumer {group!r} is not known: {snapshot.problem}")
        if found is not None:
            return found
        raise GroupError(
            f"no checkpoint store knows a group {group!r}: it is none of the library's, or has saved nothing"
        )

    def _found(self, group: str) -> tuple[str, CheckpointStore] | None:
        return next(((name, store) for name, store in self._opened().items() if group in store.groups()), None)

    def _opened(self) -> dict[str, CheckpointStore]:
        with self._lock:
            return {without_password(name): self._open(name, how) for name, how in self._places().items()}

    def _open(self, name: str, how: Callable[[], tuple[CheckpointStore, Connection | None]]) -> CheckpointStore:
        """The store, opened once; that in the brokers once for each connection."""
        known = self._stores.get(name)
        if known is not None and (known[1] is None or known[1] is self._link.connection()):
            return known[0]
        self._stores[name] = how()
        return self._stores[name][0]

    def _places(self) -> Mapping[str, Callable[[], tuple[CheckpointStore, Connection | None]]]:
        """The stores that exist, each with how it is opened."""
        given = self._given
        if given is not None and given.rstrip("/") != _KAFKA:
            return {given: lambda: (open_store(given), None)}
        found: dict[str, Callable[[], tuple[CheckpointStore, Connection | None]]] = {}
        where = parse_url(self._link.url)
        if given is None and isinstance(where, LogUrl) and (where.folder / LOG_CHECKPOINTS).exists():
            url = f"sqlite:{where.folder / LOG_CHECKPOINTS}"
            found[url] = lambda: (open_store(f"{url}?busy_timeout_s={ANSWER_S}"), None)
        if self._snapshot().topics.keys() >= set(KAFKA_TOPICS):
            found[_KAFKA] = self._kafka_store
        return found

    def _kafka_store(self) -> tuple[CheckpointStore, Connection | None]:
        from penstock.checkpoints.kafka import KafkaCheckpoints

        connection = self._link.connection()
        try:
            return KafkaCheckpoints(connection, timeout_s=ANSWER_S), connection
        except PenstockError as error:
            raise StoreUnavailableError(f"the checkpoints in {self._link.url} cannot be read now: {error}") from error


def _facts(group: str, store: str, checkpoints: Mapping[CheckpointKey, Checkpoint]) -> ConsumerFacts:
    found = checkpoints.values()
    return ConsumerFacts(
        group=group,
        store=store,
        topics=tuple(sorted({key.topic for key in checkpoints})),
        partitions=len(checkpoints),
        in_flight=sum(map(_in_flight, found)),
        failing=sum(len(each.failing) for each in found),
        processed=sum(each.processed for each in found),
        delivered=sum(each.delivered for each in found),
        restarts=sum(each.restarts for each in found),
        saved_ms=max((each.saved_ms for each in found), default=0),
    )


def _finished(checkpoint: Checkpoint) -> int:
    return sum(end - first for first, end in checkpoint.finished)


def _in_flight(checkpoint: Checkpoint) -> int:
    """Records that were read and are not finished, pointers without a record counted with them."""
    return max(0, checkpoint.next - checkpoint.start - _finished(checkpoint))
