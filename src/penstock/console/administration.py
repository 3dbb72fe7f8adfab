"""Topics and groups: details, creating, altering, resetting with a dry run, and deleting."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Mapping, Sequence

from penstock.abc import CheckpointStore, Feature
from penstock.console.link import Link
from penstock.console.views import GroupDetail, TopicDetail
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    GroupError,
    InvalidTopicError,
    PenstockError,
    UnknownTopicError,
)
from penstock.model.administration import ConfigValue, GroupDescription
from penstock.observe import group_moves
from penstock.observe.facts import Snapshot
from penstock.observe.group_moves import GroupProgress, Move, Moved, Target


class Topics:
    """The console's operations on topics. Thread-safe."""

    def __init__(self, link: Link, snapshot: Callable[[], Snapshot], look_now: Callable[[], Snapshot]) -> None:
        self._link = link
        self._snapshot = snapshot
        self._look_now = look_now
        self._lock = threading.Lock()
        self._configs: dict[str, tuple[ConfigValue, ...]] = {}

    def detail(self, name: str) -> TopicDetail:
        """A topic; its last known state, and the problem, when the broker cannot be asked."""
        snapshot = self._snapshot()
        if name not in snapshot.topics:
            snapshot = self._look_now()  # it may have been created a moment ago
        facts = snapshot.topics.get(name)
        if facts is None:
            if snapshot.problem is not None:
                raise BrokerUnavailableError(snapshot.problem)
            raise UnknownTopicError(f"there is no topic {name!r}")
        problem, has_settings = snapshot.problem, True
        try:
            has_settings = Feature.ADMIN in self._link.connection().features
            config = tuple(self._link.topics().config(name))
            with self._lock:
                self._configs[name] = config
        except UnknownTopicError:
            raise
        except PenstockError as error:
            problem = str(error)
            with self._lock:
                config = self._configs.get(name, ())
        readers = [each for each in snapshot.groups.values() if any(reader.topic == name for reader in each.readers)]
        return TopicDetail(facts, config, tuple(readers), problem, has_settings)

    def create(self, name: str, partitions: int | None, config: Mapping[str, str]) -> None:
        if partitions is not None and partitions < 1:
            raise ConfigError(f"partitions {partitions} must be >= 1")
        self._link.topics().create(name, partitions, config)

    def alter(self, name: str, changes: Mapping[str, str | None], partitions: int | None) -> None:
        if not changes and partitions is None:
            raise ConfigError(f"nothing to change about topic {name!r}")
        topics = self._link.topics()
        there = topics.partitions_of(name)
        if partitions is not None and partitions < len(there):
            raise ConfigError(f"topic {name!r} has {len(there)} partitions: partitions can be added, not removed")
        if changes:
            topics.change_config(name, changes)
        if partitions is not None and partitions > len(there):
            topics.add_partitions(name, partitions)

    def delete(self, name: str) -> None:
        if name.startswith("__"):
            raise InvalidTopicError(f"topic {name!r} is internal to the broker, which needs it")
        self._link.topics().delete(name)


class Groups:
    """The console's operations on groups. Thread-safe."""

    def __init__(
        self,
        link: Link,
        snapshot: Callable[[], Snapshot],
        look_now: Callable[[], Snapshot],
        now: Callable[[], datetime.datetime],
        stores: Callable[[], Mapping[str, CheckpointStore]],
    ) -> None:
        """`stores` returns the checkpoint stores of the library's groups, by their URLs."""
        self._link = link
        self._snapshot = snapshot
        self._look_now = look_now
        self._now = now
        self._stores = stores

    def detail(self, name: str) -> GroupDetail:
        """A group; its last known state, and the problem, when the broker cannot be asked."""
        snapshot = self._snapshot()
        if name not in snapshot.groups:
            snapshot = self._look_now()
        facts = snapshot.groups.get(name)
        if facts is None:
            if snapshot.problem is not None:
                raise BrokerUnavailableError(snapshot.problem)
            raise GroupError(f"there is no group {name!r}")
        try:
            found = self._description(name)
        except PenstockError as error:
            return GroupDetail(facts, (), "", str(error))
        if found is None:
            return GroupDetail(facts, (), "", snapshot.problem)
        return GroupDetail(facts, found.members, found.assignor, snapshot.problem)

    def plan(self, group: str, to: str, topics: Sequence[str], partitions: Sequence[int]) -> list[Move]:
        """What a reset would change. GroupError while the group has members."""
        return self._plan(group, to, topics, partitions)[1]

    def reset(self, group: str, to: str, topics: Sequence[str], partitions: Sequence[int]) -> Moved:
        """Move the group, where its progress is kept, and return what was moved."""
        progress, moves = self._plan(group, to, topics, partitions)
        return group_moves.reset(self._link.groups(), progress, moves, round(1000 * self._now().timestamp()))

    def delete(self, group: str) -> str:
        progress = group_moves.find_progress(self._link.groups(), self._stores(), group)
        group_moves.check_stopped(progress)
        return group_moves.delete(self._link.groups(), progress)

    def _plan(
        self, group: str, to: str, topics: Sequence[str], partitions: Sequence[int]
    ) -> tuple[GroupProgress, list[Move]]:
        is_counted = self._link.is_counted
        target = Target.parse(to, self._now(), self._link.connection().parse_pointer, is_counted=is_counted)
        progress = group_moves.find_progress(self._link.groups(), self._stores(), group, may_be_new=bool(topics))
        moves = group_moves.plan_reset(self._link.topics(), progress, target, topics, partitions, is_counted=is_counted)
        group_moves.check_stopped(progress)
        return progress, moves

    def _description(self, group: str) -> GroupDescription | None:
        """Kafka's description of a group; None for unknown groups, such as the library's lease groups."""
        try:
            return self._link.groups().describe(group)
        except GroupError:
            return None
