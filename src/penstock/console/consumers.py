"""Consumers of the library, from the stores of their checkpoints. Looking creates no store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final

from penstock.abc import CheckpointStore, Feature
from penstock.console.link import Link
from penstock.console.views import ConsumerDetail, ConsumerFacts, ConsumerPartition
from penstock.errors import BrokerUnavailableError, GroupError
from penstock.model import Checkpoint, CheckpointKey, HistoryEntry, Pointer
from penstock.model.administration import PartitionId
from penstock.observe.facts import Snapshot, total
from penstock.observe.library_groups import KAFKA_STORE, checkpoints_of, newest, open_found, stores_of
from penstock.streams import Connection
from penstock.streams.url import without_password

_BUSY_S: Final = 5.0
"""How long to wait for a SQLite database that another process writes."""
_READ_S: Final = 60.0
"""How long to wait for the first read of the checkpoints in the brokers."""


class Consumers:
    """The groups in the checkpoint stores of a stream. Thread-safe."""

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
        """All groups, by name. Raises StoreUnavailableError when a store cannot be asked."""
        found: dict[str, dict[str, Mapping[PartitionId, Checkpoint]]] = {}
        snapshot = self._snapshot()
        for name, store in self._opened(snapshot.topics).items():
            for group in store.groups():
                found.setdefault(group, {})[name] = checkpoints_of(store, group)
        return [_facts(group, found[group], is_counted=snapshot.is_counted) for group in sorted(found)]

    def detail(self, group: str) -> ConsumerDetail:
        stores = self._stores_of(group)
        found = {name: checkpoints_of(store, group) for name, store in stores.items()}
        leases = {lease.name: lease for store in stores.values() for lease in store.leases(group)}
        is_counted = self._snapshot().is_counted
        partitions = tuple(
            ConsumerPartition(
                *place,
                checkpoint,
                leases.pop(CheckpointKey(group, *place).lease_name, None),
                _in_flight(checkpoint, is_counted=is_counted),
                _finished(checkpoint, is_counted=is_counted),
            )
            for place, checkpoint in sorted(newest(found).items())
        )
        has_history = any(Feature.HISTORY in store.features for store in stores.values())
        facts = _facts(group, found, is_counted=is_counted)
        return ConsumerDetail(facts, partitions, tuple(leases.values()), has_history)

    def history(
        self, group: str, topic: str, partition: int, pointer: Pointer | None, limit: int
    ) -> list[HistoryEntry]:
        """The history of a record or a partition, oldest first; empty where the store keeps none."""
        lines = [
            line
            for store in self._stores_of(group).values()
            if Feature.HISTORY in store.features
            for line in store.history(CheckpointKey(group, topic, partition), pointer, limit)
        ]
        return sorted(lines, key=lambda line: line.ended_ms)[max(0, len(lines) - limit) :]

    def stores(self) -> Mapping[str, CheckpointStore]:
        """The stores that exist now, by their URLs without passwords. Asks the broker whether there is one in it."""
        return self._opened([each.name for each in self._link.topics().all()])

    def close(self) -> None:
        with self._lock:
            stores, self._stores = list(self._stores.values()), {}
        for store, _ in stores:
            store.close()

    def _stores_of(self, group: str) -> dict[str, CheckpointStore]:
        """The stores that have a group: an app may use another store for each handler."""
        found = self._found(group)
        if not found and self._snapshot().problem is not None:
            snapshot = self._look_now()  # the stores are not known yet, or the last look failed
            found = self._found(group)
            if not found and snapshot.problem is not None:
                raise BrokerUnavailableError(f"it is unknown whether consumer {group!r} exists: {snapshot.problem}")
        if found:
            return found
        raise GroupError(
            f"no checkpoint store has group {group!r}: it is not one of this library, or has saved nothing"
        )

    def _found(self, group: str) -> dict[str, CheckpointStore]:
        opened = self._opened(self._snapshot().topics)
        return {name: store for name, store in opened.items() if group in store.groups()}

    def _opened(self, topics: Collection[str]) -> dict[str, CheckpointStore]:
        urls = stores_of(self._given, self._link.url, topics, self._link.connection)
        with self._lock:
            return {without_password(url): self._open(url) for url in urls}

    def _open(self, url: str) -> CheckpointStore:
        """The store, opened once; the one in the brokers once for each connection."""
        connection = self._link.connection() if url == KAFKA_STORE else None
        known = self._stores.get(url)
        if known is None or known[1] is not connection:
            opened = open_found(url, self._link.connection, busy_s=_BUSY_S, answer_s=_READ_S)
            known = self._stores[url] = (opened, connection)
        return known[0]


def _facts(group: str, kept: Mapping[str, Mapping[PartitionId, Checkpoint]], *, is_counted: bool) -> ConsumerFacts:
    checkpoints = newest(kept)
    found = checkpoints.values()
    return ConsumerFacts(
        group=group,
        store=", ".join(kept),
        topics=tuple(sorted({topic for topic, _ in checkpoints})),
        partitions=len(checkpoints),
        in_flight=total(_in_flight(each, is_counted=is_counted) for each in found),
        failing=sum(len(each.failing) for each in found),
        processed=sum(each.processed for each in found),
        delivered=sum(each.delivered for each in found),
        restarts=sum(each.restarts for each in found),
        saved_ms=max((each.saved_ms for each in found), default=0),
    )


def _finished(checkpoint: Checkpoint, *, is_counted: bool) -> int | None:
    """How many records between `start` and `next` are finished. None where pointers do not count records."""
    if not is_counted and checkpoint.finished:
        return None
    return sum(end - first for first, end in checkpoint.finished)


def _in_flight(checkpoint: Checkpoint, *, is_counted: bool) -> int | None:
    """Records that were read and are not finished, counting offsets without a record. None: unknown."""
    if not is_counted and checkpoint.next > checkpoint.start:
        return None
    return max(0, checkpoint.next - checkpoint.start - (_finished(checkpoint, is_counted=is_counted) or 0))
