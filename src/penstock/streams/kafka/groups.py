"""Groups: who is in them, how far they have come, and moving them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.errors import GroupError
from penstock.streams.kafka.topics import ANSWER_TIMEOUT_S, TopicAdministration, answer_of, look_up

Place = tuple[str, int]
"""A topic and a partition."""

_WITHOUT_MEMBERS: Final = frozenset({"empty", "dead", "unknown"})


@dataclass(frozen=True, slots=True)
class GroupSummary:
    name: str
    state: str


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    client_id: str
    host: str
    assignment: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a group has come in one partition."""

    topic: str
    partition: int
    committed: int | None
    """The offset that is read next; None where nothing was committed."""
    end: int | None
    """Where the partition ends now; None where it is not there any more."""
    member: Member | None

    @property
    def lag(self) -> int | None:
        """How many offsets are left to read."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    name: str
    state: str
    assignor: str
    members: tuple[Member, ...]
    progress: tuple[Progress, ...]

    @property
    def is_active(self) -> bool:
        return bool(self.members) or self.state not in _WITHOUT_MEMBERS

    @property
    def lag(self) -> int:
        return sum(each.lag or 0 for each in self.progress)


class GroupAdministration:
    """Requests about groups. Each waits for its answer."""

    def __init__(self, topics: TopicAdministration) -> None:
        self._topics = topics

    @property
    def _admin(self) -> AdminClient:
        return self._topics.admin

    def all(self) -> list[GroupSummary]:
        """All groups, in the order of their names."""
        what = "the groups could not be listed"
        found = look_up(what, lambda: self._admin.list_consumer_groups().result(ANSWER_TIMEOUT_S))
        summaries = [GroupSummary(each.group_id, state_text(getattr(each, "state", None))) for each in found.valid]
        return sorted(summaries, key=lambda summary: summary.name)

    def describe(self, group: str) -> GroupDescription:
        """Everything about a group. GroupError when there is none of this name."""
        what = f"group {group!r} could not be looked up"
        found = look_up(what, lambda: self._admin.describe_consumer_groups([group])[group].result(ANSWER_TIMEOUT_S))
        members = tuple(
            Member(
                member.member_id,
                member.client_id,
                member.host,
                tuple(sorted((place.topic, place.partition) for place in member.assignment.topic_partitions)),
            )
            for member in found.members
        )
        committed = self.committed(group)
        state = state_text(found.state)
        if not members and not committed and state in ("dead", "unknown"):
            raise GroupError(f"there is no group {group!r}; see what there is with: penstock groups")
        return GroupDescription(group, state, found.partition_assignor, members, self._progress(members, committed))

    def committed(self, group: str) -> dict[Place, int]:
        """What the group has committed, for each partition."""
        what = f"the offsets of group {group!r} could not be looked up"
        asked = [ConsumerGroupTopicPartitions(group)]
        found = look_up(what, lambda: self._admin.list_consumer_group_offsets(asked)[group].result(ANSWER_TIMEOUT_S))
        places = found.topic_partitions or []
        return {(place.topic, place.partition): place.offset for place in places if place.offset >= 0}

    def move(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Commit these offsets for a group without members; GroupError when it has some."""
        what = f"group {group!r} could not be moved"
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        futures = self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
        for place in answer_of(futures[group], what).topic_partitions or []:
            if place.error is not None:
                raise GroupError(f"{what} in {place.topic}-{place.partition}: {place.error.str()}")

    def delete(self, group: str) -> None:
        """Forget a group without members, and what it has committed."""
        answer_of(self._admin.delete_consumer_groups([group])[group], f"group {group!r} could not be deleted")

    def _progress(self, members: Iterable[Member], committed: Mapping[Place, int]) -> tuple[Progress, ...]:
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


def state_text(state: ConsumerGroupState | None) -> str:
    """A group's state, as people write it."""
    return "unknown" if state is None else state.name.lower().replace("_", " ")
