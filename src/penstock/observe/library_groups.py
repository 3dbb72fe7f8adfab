"""Groups of the library, from the stores in which they keep their checkpoints. Looking makes no store."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.abc import CheckpointStore, Clock
from penstock.checkpoints.opening import open_store
from penstock.consuming.defaults import LOG_CHECKPOINTS
from penstock.errors import CorruptCheckpointError, PenstockError
from penstock.model import Lease
from penstock.streams import Connection
from penstock.streams.kafka.groups import Place
from penstock.streams.url import LogUrl, parse_url

logger = logging.getLogger(__name__)

KAFKA_TOPICS: Final = ("penstock.checkpoints", "penstock.checkpoints.history")
"""Where the store that is kept in the brokers is. It is opened only when both are there, as opening makes them."""
ALIVE_S: Final = 30.0
"""A member of a group by lease that has given no sign of life for so long is taken for dead."""
RETRY_S: Final = 30.0
"""How soon a store that could not be asked is asked again."""
_BUSY_S: Final = 2.0
_MEMBER: Final = "member:"


@dataclass(frozen=True, slots=True)
class LibraryGroup:
    """What a store knows of a group."""

    starts: Mapping[Place, int] = field(default_factory=dict)
    """Everything before it is finished, for each partition that has a checkpoint."""
    owners: Mapping[Place, str] = field(default_factory=dict)
    """Who holds the lease on each partition."""
    members: int = 0
    """Members of a group by lease that are alive; those of a group that Kafka keeps are Kafka's to count."""


class LibraryGroups:
    """All groups of the stores that go with a connection: the one that was given, or those that programs use when none
    is given to them. Used by one thread at a time."""

    def __init__(self, given: str | CheckpointStore | None, clock: Clock) -> None:
        self._given = given
        self._clock = clock
        self._connection: Connection | None = None
        self._sources: dict[str, _Source] = {}

    def use(self, connection: Connection) -> None:
        self.close()
        self._connection = connection

    def look(self, ends: Mapping[Place, int]) -> dict[str, LibraryGroup]:
        """The groups by name. `ends` are those of all partitions of the stream, which tell what is there, and new."""
        for name, open_it in self._places(ends).items():
            if name not in self._sources:
                self._sources[name] = _Source(name, open_it, self._clock)
        found: dict[str, LibraryGroup] = {}
        for name, source in self._sources.items():
            found |= source.look(self._mark(name, ends))
        return found

    def close(self) -> None:
        for source in self._sources.values():
            source.close()
        self._sources.clear()

    def _places(self, ends: Mapping[Place, int]) -> dict[str, Callable[[], CheckpointStore]]:
        """The stores that exist, each with how it is opened."""
        given, connection = self._given, self._connection
        if given is not None and given != "kafka:":
            return {} if _is_absent(given) else {"given": lambda: open_store(given)}
        found: dict[str, Callable[[], CheckpointStore]] = {}
        if connection is None:
            return found
        path = _sqlite_path(connection.url)
        if given is None and path is not None and path.exists():
            found[str(path)] = lambda: open_store(f"sqlite:{path}?busy_timeout_s={_BUSY_S}")
        topics = {topic for topic, _ in ends}
        if topics.issuperset(KAFKA_TOPICS):
            found["kafka:"] = lambda: _kafka_store(connection)
        return found

    def _mark(self, name: str, ends: Mapping[Place, int]) -> Hashable | None:
        """What changes when something in the store does; None where nothing tells."""
        if name == "given":
            return None
        if name == "kafka:":
            return tuple(sorted((place, end) for place, end in ends.items() if place[0] == KAFKA_TOPICS[0]))
        return tuple(_stamp(Path(name + suffix)) for suffix in ("", "-wal"))


class _Source:
    """One store, and what was last found in it."""

    def __init__(self, name: str, open_it: Callable[[], CheckpointStore], clock: Clock) -> None:
        self._name = name
        self._open = open_it
        self._clock = clock
        self._store: CheckpointStore | None = None
        self._mark: Hashable | None = None
        self._found: dict[str, tuple[Mapping[Place, int], list[Lease]]] = {}
        self._retry_at_s = float("-inf")
        self._heard: dict[tuple[str, str], tuple[Lease, float]] = {}

    def look(self, mark: Hashable | None) -> dict[str, LibraryGroup]:
        now_s = self._clock.monotonic_s()
        if (mark is None or mark != self._mark) and now_s >= self._retry_at_s:
            try:
                self._found = self._read()
                self._mark = mark
            except PenstockError as error:
                logger.warning("the checkpoints in %s could not be read: %s", self._name, error)
                self._retry_at_s = now_s + RETRY_S
        return {name: self._group(name, starts, leases, now_s) for name, (starts, leases) in self._found.items()}

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(PenstockError):
                store.close()

    def _read(self) -> dict[str, tuple[Mapping[Place, int], list[Lease]]]:
        if self._store is None:
            self._store = self._open()
        found: dict[str, tuple[Mapping[Place, int], list[Lease]]] = {}
        for group in self._store.groups():
            try:
                checkpoints = self._store.checkpoints(group)
            except CorruptCheckpointError as error:
                logger.warning("a checkpoint of group %s is left out: %s", group, error)
                checkpoints = {}
            starts = {(key.topic, key.partition): int(each.start) for key, each in checkpoints.items()}
            found[group] = (starts, list(self._store.leases(group)))
        return found

    def _group(self, name: str, starts: Mapping[Place, int], leases: list[Lease], now_s: float) -> LibraryGroup:
        alive = set()
        owners: dict[Place, str] = {}
        for lease in leases:
            if lease.owner and lease.name.startswith(_MEMBER):
                heard = self._heard.get((name, lease.name))
                if heard is None or heard[0] != lease:
                    heard = self._heard[name, lease.name] = (lease, now_s)
                if now_s - heard[1] < ALIVE_S:
                    alive.add(lease.owner)
            elif lease.owner and (place := _place(lease.name)) is not None:
                owners[place] = lease.owner
        return LibraryGroup(starts, owners, len(alive))


def _place(lease_name: str) -> Place | None:
    """The partition that a lease is for, by `CheckpointKey.lease_name`."""
    kind, _, rest = lease_name.partition(":")
    topic, _, partition = rest.rpartition(":")
    return (topic, int(partition)) if kind == "partition" and topic and partition.isdecimal() else None


def _is_absent(store: str | CheckpointStore) -> bool:
    """Whether it is a file or a folder that is not there, which opening would make."""
    if not isinstance(store, str):
        return False
    scheme, _, rest = store.partition(":")
    return scheme in ("sqlite", "file") and not Path(rest.partition("?")[0]).exists()


def _sqlite_path(url: str) -> Path | None:
    where = parse_url(url)
    return where.folder / LOG_CHECKPOINTS if isinstance(where, LogUrl) else None


def _kafka_store(connection: Connection) -> CheckpointStore:
    from penstock.checkpoints.kafka import KafkaCheckpoints

    return KafkaCheckpoints(connection, timeout_s=5.0)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
