"""Groups of this library, from the stores of their checkpoints. Looking creates no store.

`stores_of` and `open_found` are where everything that shows or moves a group finds its store: `penstock groups`,
`penstock lag`, the console and alerts.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.abc import CheckpointStore, Clock, Feature, HasCheckpoints
from penstock.checkpoints.kafka.store import KafkaCheckpoints
from penstock.checkpoints.opening import is_absent, open_store
from penstock.errors import ConfigError, CorruptCheckpointError, PenstockError, StoreUnavailableError
from penstock.model import Checkpoint, Lease
from penstock.model.administration import PartitionId
from penstock.streams import Connection
from penstock.streams.capability import capability
from penstock.streams.schemes import scheme_of
from penstock.streams.url import KAFKA_SCHEMES, LOG_CHECKPOINTS, log_folder, without_password

logger = logging.getLogger(__name__)

KAFKA_TOPICS: Final = ("penstock.checkpoints", "penstock.checkpoints.history")
"""The topics of the store in the brokers. It is opened only when both exist, as opening creates them."""
ALIVE_S: Final = 30.0
"""A member of a lease group without a sign of life for this long counts as dead."""
RETRY_S: Final = 30.0
KAFKA_STORE: Final = "kafka:"
MEMBER: Final = "member:"
"""The prefixes of the leases that members of lease groups renew."""
_BUSY_S: Final = 2.0
_ANSWER_S: Final = 5.0


def stores_of(
    given: str | None, stream_url: str, topics: Collection[str], connection: Callable[[], Connection]
) -> list[str]:
    """The URLs of the stores that exist: the given one, or those that consumers use by default.

    `topics` are those of the stream, which show whether there is a store in it. `connection` is called for other
    streams than Kafka and logs: they tell where their default store is. Raises StoreUnavailableError if it is away.
    """
    if given is not None and given.rstrip("/") != KAFKA_STORE:
        return [] if is_absent(given) else [given]
    found = []
    folder = log_folder(stream_url)
    if given is None and folder is not None and (folder / LOG_CHECKPOINTS).exists():
        found.append(f"sqlite:{folder / LOG_CHECKPOINTS}")
    if set(topics).issuperset(KAFKA_TOPICS):
        found.append(KAFKA_STORE)
    if given is None and scheme_of(stream_url) not in KAFKA_SCHEMES:
        default = default_store(connection())
        if default is not None and not is_absent(default):
            found.append(default)
    return found


def default_store(connection: Connection) -> str | None:
    """The URL of the store that consumers of this stream use by default; None: it has none, so apps name theirs."""
    beside = capability(connection, HasCheckpoints)
    return None if beside is None else beside.checkpoint_url(in_stream=False)


def no_groups_text(connection: Connection, given: str | None) -> str:
    """What to say to people when there are no groups."""
    if given is None and default_store(connection) is None:
        return (
            f"{connection.url} has no groups of its own, and no place for checkpoints: name the store that the app "
            "uses, such as --checkpoints sqlite:./checkpoints.db"
        )
    if Feature.GROUPS not in connection.features:
        return "There are no groups yet. An app that reads with group=NAME creates one."
    return "There are no groups yet. Reading creates one: penstock consume TOPIC --group NAME"


def open_found(
    url: str, connection: Callable[[], Connection], *, busy_s: float = _BUSY_S, answer_s: float = _ANSWER_S
) -> CheckpointStore:
    """Open one of `stores_of`. `connection` is called for the store that is in the stream."""
    if url != KAFKA_STORE:
        is_plain_file = url.startswith("sqlite:") and "busy_timeout_s=" not in url
        return open_store(f"{url}{'&' if '?' in url else '?'}busy_timeout_s={busy_s}" if is_plain_file else url)
    try:
        return KafkaCheckpoints(connection(), timeout_s=answer_s)
    except PenstockError as error:
        raise StoreUnavailableError(f"the checkpoints in the brokers cannot be read now: {error}") from error


def check_given(connection: Connection, given: str | None) -> list[str]:
    """The stores of a stream's groups, by their URLs. Raises ConfigError when a given one does not exist."""
    urls = stores_of(given, connection.url, [each.name for each in connection.admin().all()], lambda: connection)
    if given is not None and not urls:
        raise ConfigError(f"there are no checkpoints in {without_password(given)}: name the store that the app uses")
    return urls


@contextmanager
def opened_stores(connection: Connection, given: str | None) -> Iterator[dict[str, CheckpointStore]]:
    """The stores of a stream's groups, by their URLs without a password, open while the block lasts.

    Raises ConfigError when a given store does not exist.
    """
    urls = check_given(connection, given)
    with contextlib.ExitStack() as stack:
        stores = {}
        for url in urls:
            store = open_found(url, lambda: connection, busy_s=30.0, answer_s=30.0)
            stack.callback(store.close)
            stores[without_password(url)] = store
        yield stores


def newest(checkpoints: Mapping[str, Mapping[PartitionId, Checkpoint]]) -> dict[PartitionId, Checkpoint]:
    """For each partition the checkpoint that was saved last in any store."""
    found: dict[PartitionId, Checkpoint] = {}
    for each in checkpoints.values():
        for place, checkpoint in each.items():
            if place not in found or checkpoint.saved_ms > found[place].saved_ms:
                found[place] = checkpoint
    return found


def checkpoints_of(store: CheckpointStore, group: str) -> dict[PartitionId, Checkpoint]:
    return {(key.topic, key.partition): each for key, each in store.checkpoints(group).items()}


@dataclass(frozen=True, slots=True)
class LibraryGroup:
    """A group as the stores know it."""

    starts: Mapping[PartitionId, int] = field(default_factory=dict)
    """For each partition with a checkpoint: everything before this offset is finished."""
    owners: Mapping[PartitionId, str] = field(default_factory=dict)
    members: int = 0
    """Live members of a lease group; Kafka counts those of the groups that it manages."""
    stores: tuple[str, ...] = ()
    """The URLs of the stores that have the group, without passwords."""
    delivered: Mapping[PartitionId, int] = field(default_factory=dict)
    """For each partition with a checkpoint: how often its handler has returned, in all."""


class LibraryGroups:
    """All groups in the stores of a connection: the given store, or those that consumers use by default. Used by one
    thread at a time."""

    def __init__(self, given: str | CheckpointStore | None, clock: Clock) -> None:
        self._given = given
        self._clock = clock
        self._connection: Connection | None = None
        self._sources: dict[str, _Source] = {}
        self._urls: list[str] = []
        """The one store that there can be, once it was found: it stays."""

    def use(self, connection: Connection) -> None:
        self.close()
        self._connection, self._urls = connection, []

    def look(self, ends: Mapping[PartitionId, int]) -> dict[str, LibraryGroup]:
        """The groups by name. `ends` are those of all partitions of the stream, which show what exists and has
        changed."""
        for name, open_it in self._places(ends).items():
            if name not in self._sources:
                self._sources[name] = _Source(name, open_it, self._clock, is_ours=isinstance(self._given, str | None))
        seen = {name: source.look(_mark(name, ends)) for name, source in self._sources.items()}
        return {
            group: _merged({name: found[group] for name, found in seen.items() if group in found})
            for group in {group for found in seen.values() for group in found}
        }

    def close(self) -> None:
        for source in self._sources.values():
            source.close()
        self._sources.clear()

    def _places(self, ends: Mapping[PartitionId, int]) -> dict[str, Callable[[], CheckpointStore]]:
        """The stores that exist, each with a function that opens it."""
        given, connection = self._given, self._connection
        if given is not None and not isinstance(given, str):
            return {type(given).__name__: lambda: given}
        if connection is None:
            return {}
        urls = self._urls
        if not urls:
            try:
                urls = stores_of(given, connection.url, {topic for topic, _ in ends}, lambda: connection)
            except StoreUnavailableError:
                urls = [] if given is None else [given]  # opening it fails, and tells why
            if given is not None or scheme_of(connection.url) not in KAFKA_SCHEMES:
                self._urls = urls
        return {url: functools.partial(open_found, url, lambda: connection) for url in urls}


@dataclass(frozen=True, slots=True)
class _Found:
    checkpoints: Mapping[PartitionId, Checkpoint]
    owners: Mapping[PartitionId, str]
    members: int


def _merged(found: Mapping[str, _Found]) -> LibraryGroup:
    """A group that several stores know: an app may use another store for each handler."""
    starts = newest({name: each.checkpoints for name, each in found.items()})
    return LibraryGroup(
        {place: int(checkpoint.start) for place, checkpoint in starts.items()},
        {place: owner for each in found.values() for place, owner in each.owners.items()},
        sum(each.members for each in found.values()),
        tuple(map(without_password, found)),
        {place: checkpoint.delivered for place, checkpoint in starts.items()},
    )


def _mark(url: str, ends: Mapping[PartitionId, int]) -> Hashable | None:
    """Changes when something in the store does; None where nothing shows it."""
    if url == KAFKA_STORE:
        return tuple(sorted((place, end) for place, end in ends.items() if place[0] == KAFKA_TOPICS[0]))
    if not url.startswith("sqlite:"):
        return None
    path = url.removeprefix("sqlite:").partition("?")[0]
    return tuple(_stamp(Path(path + suffix)) for suffix in ("", "-wal"))


class _Source:
    """One store, and what was last found in it."""

    def __init__(self, name: str, open_it: Callable[[], CheckpointStore], clock: Clock, *, is_ours: bool) -> None:
        self._name = without_password(name)
        self._is_ours = is_ours
        self._open = open_it
        self._clock = clock
        self._store: CheckpointStore | None = None
        self._mark: Hashable | None = None
        self._found: dict[str, tuple[Mapping[PartitionId, Checkpoint], list[Lease]]] = {}
        self._retry_at_s = float("-inf")
        self._heard: dict[tuple[str, str], tuple[Lease, float]] = {}

    def look(self, mark: Hashable | None) -> dict[str, _Found]:
        now_s = self._clock.monotonic_s()
        if (mark is None or mark != self._mark) and now_s >= self._retry_at_s:
            try:
                self._found = self._read()
                self._mark = mark
            except PenstockError as error:
                logger.warning("the checkpoints in %s could not be read: %s", self._name, error)
                self._retry_at_s = now_s + RETRY_S
        return {name: self._group(name, found, leases, now_s) for name, (found, leases) in self._found.items()}

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None and self._is_ours:
            with contextlib.suppress(PenstockError):
                store.close()

    def _read(self) -> dict[str, tuple[Mapping[PartitionId, Checkpoint], list[Lease]]]:
        if self._store is None:
            self._store = self._open()
        found: dict[str, tuple[Mapping[PartitionId, Checkpoint], list[Lease]]] = {}
        for group in self._store.groups():
            try:
                checkpoints = checkpoints_of(self._store, group)
            except CorruptCheckpointError as error:
                logger.warning("a checkpoint of group %s is left out: %s", group, error)
                checkpoints = {}
            found[group] = (checkpoints, list(self._store.leases(group)))
        return found

    def _group(
        self, name: str, checkpoints: Mapping[PartitionId, Checkpoint], leases: list[Lease], now_s: float
    ) -> _Found:
        alive = set()
        owners: dict[PartitionId, str] = {}
        for lease in leases:
            if lease.owner and lease.name.startswith(MEMBER):
                heard = self._heard.get((name, lease.name))
                if heard is None or heard[0] != lease:
                    heard = self._heard[name, lease.name] = (lease, now_s)
                if now_s - heard[1] < ALIVE_S:
                    alive.add(lease.owner)
            elif lease.owner and (place := _place(lease.name)) is not None:
                owners[place] = lease.owner
        return _Found(checkpoints, owners, len(alive))


def _place(lease_name: str) -> PartitionId | None:
    """The partition of a lease, by `CheckpointKey.lease_name`."""
    kind, _, rest = lease_name.partition(":")
    topic, _, partition = rest.rpartition(":")
    return (topic, int(partition)) if kind == "partition" and topic and partition.isdecimal() else None


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
