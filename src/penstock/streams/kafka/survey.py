"""Everything about all topics and all groups, in few requests: what those need who look again and again.

Where `TopicAdministration` and `GroupAdministration` answer about one and try again until they can, this asks about
many at once, each request of a kind sent before the first answer is waited for, and does not try again: who looks every
few seconds looks again anyhow. What is not there, or not ready, is left out; a broker that does not answer is a
BrokerUnavailableError, after `timeout_s` at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from penstock.streams.kafka.failures import is_unreachable, refused
from penstock.streams.kafka.groups import GroupSummary, Member, Place, state_text
from penstock.streams.kafka.topics import TopicSummary

TIMEOUT_S: Final = 5.0
AT_ONCE: Final = 200
"""How many topics' settings, or groups, are asked for before their answers are waited for."""

Key = TypeVar("Key")
_OFFSETS: Final = "offsets could not be looked up"
_SETTINGS: Final = "the settings of topics could not be looked up"
_MEMBERS: Final = "the members of groups could not be looked up"
_COMMITTED: Final = "the offsets of groups could not be looked up"


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """Who is in a group."""

    state: str
    members: tuple[Member, ...]


class Survey:
    """Requests about many topics and groups."""

    def __init__(self, admin: AdminClient, timeout_s: float = TIMEOUT_S) -> None:
        self._admin = admin
        self._timeout_s = timeout_s

    def topics(self) -> list[TopicSummary]:
        """All topics, the broker's own among them."""
        try:
            found = self._admin.list_topics(timeout=self._timeout_s).topics.values()
        except KafkaException as error:
            raise refused("the topics could not be listed", error) from error
        return [
            TopicSummary(topic.topic, tuple(sorted(topic.partitions)), topic.topic.startswith("__"))
            for topic in found
            if topic.topic is not None
        ]

    def starts(self, places: Iterable[Place]) -> dict[Place, int]:
        """The first offset that can be read in each of these partitions."""
        return self._offsets(places, OffsetSpec.earliest())

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The offset behind the last one that can be read: records of open transactions cannot."""
        return self._offsets(places, OffsetSpec.latest())

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str | None]]:
        """The settings of these topics."""
        found: dict[str, dict[str, str | None]] = {}
        for some in _batches(topics):
            resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in some]
            answers = self._answers(_SETTINGS, partial(self._admin.describe_configs, resources))
            for resource, entries in answers.items():
                found[resource.name] = {name: each.value for name, each in entries.items()}
        return found

    def groups(self) -> list[GroupSummary]:
        """All groups."""
        answers = self._answers("the groups could not be listed", lambda: {"": self._admin.list_consumer_groups()})
        return [
            GroupSummary(each.group_id, state_text(getattr(each, "state", None)))
            for answer in answers.values()
            for each in answer.valid
            if each.group_id  # one without a name cannot be asked about
        ]

    def members(self, groups: Iterable[str]) -> dict[str, GroupMembers]:
        """Who is in each of these groups, and what it has."""
        found: dict[str, GroupMembers] = {}
        for some in _batches(groups):
            answers = self._answers(_MEMBERS, partial(self._admin.describe_consumer_groups, some))
            for group, answer in answers.items():
                found[group] = GroupMembers(state_text(answer.state), tuple(map(_member, answer.members)))
        return found

    def committed(self, groups: Iterable[str]) -> dict[str, dict[Place, int]]:
        """What each of these groups has committed."""
        found: dict[str, dict[Place, int]] = {}
        for some in _batches(groups):
            answers = self._answers(_COMMITTED, partial(self._ask_committed, some))
            for group, answer in answers.items():
                places = answer.topic_partitions or []
                found[group] = {(place.topic, place.partition): place.offset for place in places if place.offset >= 0}
        return found

    def _offsets(self, places: Iterable[Place], spec: OffsetSpec) -> dict[Place, int]:
        asked = {TopicPartition(*place): spec for place in places}
        if not asked:
            return {}
        ask = partial(self._admin.list_offsets, asked, isolation_level=IsolationLevel.READ_COMMITTED)
        answers = self._answers(_OFFSETS, ask)
        return {(place.topic, place.partition): int(answer.offset) for place, answer in answers.items()}

    def _ask_committed(self, groups: Iterable[str]) -> dict[str, Future[Any]]:
        """The client takes one group at a time. All are asked before the first answer is waited for."""
        ask = self._admin.list_consumer_group_offsets
        return {group: ask([ConsumerGroupTopicPartitions(group)])[group] for group in groups}

    def _answers(self, what: str, ask: Callable[[], Mapping[Key, Future[Any]]]) -> dict[Key, Any]:
        """The answers that came. What one of many cannot be told is left out; when nobody answers, it is an error."""
        found: dict[Key, Any] = {}
        try:
            futures = ask()
        except (KafkaException, ValueError, RuntimeError) as error:
            raise refused(what, error) from error
        for key, future in futures.items():
            try:
                found[key] = future.result(self._timeout_s)
            except (KafkaException, TimeoutError) as error:
                if is_unreachable(error):
                    raise refused(what, error) from error
        return found


def _member(member: Any) -> Member:
    places = tuple(sorted((place.topic, place.partition) for place in member.assignment.topic_partitions))
    return Member(member.member_id, member.client_id, member.host, places)


def _batches(names: Iterable[str]) -> Iterable[list[str]]:
    asked = list(names)
    return (asked[first : first + AT_ONCE] for first in range(0, len(asked), AT_ONCE))
