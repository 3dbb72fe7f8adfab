"""All topics and groups in few requests, for callers that ask every few seconds.

Unlike `TopicAdministration` and `GroupAdministration`, this asks about many at once, sends all requests before it waits
for the first answer, and retries only with the new leader of a partition. What is missing or not ready is left out; a
broker that does not answer within `timeout_s` is a BrokerUnavailableError.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from penstock.model.administration import GroupMembers, GroupSummary, PartitionId, TopicSummary
from penstock.streams.kafka.administration.groups import member_of, state_text
from penstock.streams.kafka.administration.topics import LEADER_TIMEOUT_S, list_topics, refresh_leaders
from penstock.streams.kafka.failures import has_moved, is_unreachable, refused

TIMEOUT_S: Final = 5.0
_PAUSE_S: Final = 0.1
AT_ONCE: Final = 200
"""How many requests are sent before their answers are awaited."""

Key = TypeVar("Key")
_OFFSETS: Final = "offsets could not be looked up"
_SETTINGS: Final = "the settings of topics could not be looked up"
_MEMBERS: Final = "the members of groups could not be looked up"
_COMMITTED: Final = "the offsets of groups could not be looked up"


class KafkaSurvey:
    """`abc.Survey` of Kafka."""

    def __init__(self, admin: AdminClient, timeout_s: float = TIMEOUT_S) -> None:
        self._admin = admin
        self._timeout_s = timeout_s

    def topics(self) -> list[TopicSummary]:
        try:
            return list_topics(self._admin, self._timeout_s)
        except KafkaException as error:
            raise refused("the topics could not be listed", error) from error

    def starts(self, places: Iterable[PartitionId]) -> dict[PartitionId, int]:
        return self._offsets(places, OffsetSpec.earliest())

    def ends(self, places: Iterable[PartitionId]) -> dict[PartitionId, int]:
        return self._offsets(places, OffsetSpec.latest())

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str | None]]:
        found: dict[str, dict[str, str | None]] = {}
        for some in _batches(topics):
            resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in some]
            answers = self._answers(_SETTINGS, partial(self._admin.describe_configs, resources))
            for resource, entries in answers.items():
                found[resource.name] = {name: each.value for name, each in entries.items()}
        return found

    def groups(self) -> list[GroupSummary]:
        answers = self._answers("the groups could not be listed", lambda: {"": self._admin.list_consumer_groups()})
        return [
            GroupSummary(each.group_id, state_text(getattr(each, "state", None)))
            for answer in answers.values()
            for each in answer.valid
            if each.group_id  # the API cannot describe a group without a name
        ]

    def members(self, groups: Iterable[str]) -> dict[str, GroupMembers]:
        found: dict[str, GroupMembers] = {}
        for some in _batches(groups):
            answers = self._answers(_MEMBERS, partial(self._admin.describe_consumer_groups, some))
            for group, answer in answers.items():
                found[group] = GroupMembers(state_text(answer.state), tuple(map(member_of, answer.members)))
        return found

    def committed(self, groups: Iterable[str]) -> dict[str, dict[PartitionId, int]]:
        found: dict[str, dict[PartitionId, int]] = {}
        for some in _batches(groups):
            answers = self._answers(_COMMITTED, partial(self._ask_committed, some))
            for group, answer in answers.items():
                places = answer.topic_partitions or []
                found[group] = {(place.topic, place.partition): place.offset for place in places if place.offset >= 0}
        return found

    def _offsets(self, places: Iterable[PartitionId], spec: OffsetSpec) -> dict[PartitionId, int]:
        asked = {TopicPartition(*place): spec for place in places}
        if not asked:
            return {}
        ask = partial(self._admin.list_offsets, isolation_level=IsolationLevel.READ_COMMITTED)
        deadline_s = time.monotonic() + min(LEADER_TIMEOUT_S, self._timeout_s)
        moved: list[TopicPartition] = []
        answers = self._answers(_OFFSETS, partial(ask, asked), moved)
        while moved and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S)
            refresh_leaders(self._admin)
            asked = dict.fromkeys(moved, spec)
            moved.clear()
            answers |= self._answers(_OFFSETS, partial(ask, asked), moved)
        return {(place.topic, place.partition): int(answer.offset) for place, answer in answers.items()}

    def _ask_committed(self, groups: Iterable[str]) -> dict[str, Future[Any]]:
        """The client takes one group per request."""
        ask = self._admin.list_consumer_group_offsets
        return {group: ask([ConsumerGroupTopicPartitions(group)])[group] for group in groups}

    def _answers(
        self, what: str, ask: Callable[[], Mapping[Key, Future[Any]]], moved: list[Key] | None = None
    ) -> dict[Key, Any]:
        """The successful answers. Raises only if the brokers cannot be reached.

        Adds those to `moved` that another broker has to be asked for.
        """
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
                if moved is not None and has_moved(error):
                    moved.append(key)
        return found


def _batches(names: Iterable[str]) -> Iterable[list[str]]:
    asked = list(names)
    return (asked[first : first + AT_ONCE] for first in range(0, len(asked), AT_ONCE))
