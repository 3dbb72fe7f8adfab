"""Administration of groups: their members, their progress, and moving them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.errors import GroupError
from penstock.model.administration import (
    ANSWER_TIMEOUT_S,
    CHECKPOINTED,
    GroupDescription,
    GroupSummary,
    Member,
    PartitionId,
    Progress,
    is_checkpoint_metadata,
)
from penstock.streams.kafka.administration.topics import TopicAdministration, answer_of, look_up


class GroupAdministration:
    """Requests about groups. Each waits for its answer."""

    def __init__(self, topics: TopicAdministration) -> None:
        self._topics = topics

    @property
    def _admin(self) -> AdminClient:
        return self._topics.admin

    def all(self) -> list[GroupSummary]:
        what = "the groups could not be listed"
        found = look_up(what, lambda: self._admin.list_consumer_groups().result(ANSWER_TIMEOUT_S))
        summaries = [GroupSummary(each.group_id, state_text(getattr(each, "state", None))) for each in found.valid]
        return sorted(summaries, key=lambda summary: summary.name)

    def describe(self, group: str) -> GroupDescription:
        what = f"group {group!r} could not be looked up"
        found = look_up(what, lambda: self._admin.describe_consumer_groups([group])[group].result(ANSWER_TIMEOUT_S))
        members = tuple(map(member_of, found.members))
        offsets = self._offsets(group)
        committed = {(place.topic, place.partition): place.offset for place in offsets}
        state = state_text(found.state)
        if not members and not committed and state in ("dead", "unknown"):
            raise GroupError(f"there is no group {group!r}; see what there is with: penstock groups")
        return GroupDescription(
            group,
            state,
            found.partition_assignor,
            members,
            self._progress(members, committed),
            any(is_checkpoint_metadata(place.metadata) for place in offsets),
        )

    def committed(self, group: str) -> dict[PartitionId, int]:
        return {(place.topic, place.partition): place.offset for place in self._offsets(group)}

    def move(self, group: str, offsets: Mapping[PartitionId, int], *, is_checkpointed: bool = False) -> None:
        what = f"group {group!r} could not be moved"
        metadata = CHECKPOINTED if is_checkpointed else ""
        places = [TopicPartition(topic, partition, offset, metadata) for (topic, partition), offset in offsets.items()]
        futures = self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
        for place in answer_of(futures[group], what).topic_partitions or []:
            if place.error is not None:
                raise GroupError(f"{what} in {place.topic}-{place.partition}: {place.error.str()}")

    def delete(self, group: str) -> None:
        answer_of(self._admin.delete_consumer_groups([group])[group], f"group {group!r} could not be deleted")

    def _offsets(self, group: str) -> list[TopicPartition]:
        what = f"the offsets of group {group!r} could not be looked up"
        asked = [ConsumerGroupTopicPartitions(group)]
        found = look_up(what, lambda: self._admin.list_consumer_group_offsets(asked)[group].result(ANSWER_TIMEOUT_S))
        return [place for place in found.topic_partitions or [] if place.offset >= 0]

    def _progress(self, members: Iterable[Member], committed: Mapping[PartitionId, int]) -> tuple[Progress, ...]:
        owners = {place: member for member in members for place in member.assignment}
        places = sorted({*committed, *owners})
        spans = self._topics.spans(places)
        return tuple(
            Progress(
                topic=place[0],
                partition=place[1],
                committed=committed.get(place),
                end=spans[place].end if place in spans else None,
                member=owners.get(place),
            )
            for place in places
        )


def member_of(described: Any) -> Member:
    """A member as confluent-kafka describes it."""
    places = tuple(sorted((place.topic, place.partition) for place in described.assignment.topic_partitions))
    return Member(described.member_id, described.client_id, described.host, places)


def state_text(state: ConsumerGroupState | None) -> str:
    """The state of a group in lower case, such as "preparing rebalancing"."""
    return "unknown" if state is None else state.name.lower().replace("_", " ")
