"""Where resetting a group would move it: worked out first, so that it can be shown before it is done."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigError, GroupError, UnknownTopicError
from penstock.model import Position
from penstock.streams.kafka.groups import GroupAdministration, Place
from penstock.streams.kafka.topics import TopicAdministration

_SHIFT: Final = re.compile(r"[+-]\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target:
    """Where to: a position, or so many records back or on."""

    position: Position | None
    shift: int = 0

    @classmethod
    def parse(cls, text: str, now: datetime.datetime) -> Target:
        """What a person writes: a position, or +100 or -100 records. ConfigError says what can be written."""
        if _SHIFT.fullmatch(text.strip()):
            return cls(None, int(text))
        try:
            return cls(Position.parse(text, now))
        except ConfigError as error:
            raise ConfigError(f"{error}; or so many records back or on (-100, +100)") from None


@dataclass(frozen=True, slots=True)
class Move:
    """What happens to one partition of the group."""

    topic: str
    partition: int
    committed: int | None
    to: int
    by: int | None
    """How many offsets on; less than nothing is back."""
    note: str


def plan_moves(
    topics: TopicAdministration,
    groups: GroupAdministration,
    group: str,
    target: Target,
    chosen_topics: Sequence[str],
    chosen_partitions: Sequence[int],
) -> list[Move]:
    """The moves, in order. Refused for a group that has members, and for places that are not there."""
    committed = _committed_without_members(groups, group, chosen_topics)
    return moves_from(topics, group, committed, target, chosen_topics, chosen_partitions)


def moves_from(
    topics: TopicAdministration,
    group: str,
    committed: Mapping[Place, int],
    target: Target,
    chosen_topics: Sequence[str],
    chosen_partitions: Sequence[int],
) -> list[Move]:
    """The moves of a group that stands at these places, whoever has written them down."""
    places = _places(topics, group, committed, chosen_topics, chosen_partitions)
    spans = topics.spans(places)
    located = _locate(topics, target, [place for place in places if place in spans])
    moves = []
    for place in places:
        if place not in spans:
            continue
        topic, partition = place
        before = committed.get(place)
        if target.position is None and before is None:
            raise GroupError(
                f"group {group!r} has committed nothing in {topic}-{partition}: it cannot be moved from there"
            )
        wanted = located[place] if target.position is not None else (before or 0) + target.shift
        span = spans[place]
        to = min(max(wanted, span.start), span.end)
        note = "" if to == wanted else "the first that is left" if to == span.start else "the present end"
        moves.append(Move(topic, partition, before, to, None if before is None else to - before, note))
    return moves


def moved_places(moves: Sequence[Move]) -> Mapping[Place, int]:
    """Where the group is to go, without the places where it stands already."""
    return {(move.topic, move.partition): move.to for move in moves if move.to != move.committed}


def _committed_without_members(
    groups: GroupAdministration, group: str, chosen_topics: Sequence[str]
) -> dict[Place, int]:
    try:
        description = groups.describe(group)
    except GroupError:
        if chosen_topics:
            return {}  # a group that does not exist yet can be given a place to begin
        raise
    if description.is_active:
        raise GroupError(
            f"group {group!r} is {description.state} with {len(description.members)} members: stop them first, "
            "or they would commit over it"
        )
    return {(each.topic, each.partition): each.committed for each in description.progress if each.committed is not None}


def _places(
    topics: TopicAdministration,
    group: str,
    committed: Mapping[Place, int],
    chosen_topics: Sequence[str],
    chosen_partitions: Sequence[int],
) -> list[Place]:
    if chosen_topics:
        there = [(name, number) for name in chosen_topics for number in topics.require(name).partitions]
    else:
        there = sorted(committed)
    places = [place for place in there if not chosen_partitions or place[1] in chosen_partitions]
    missing = set(chosen_partitions) - {number for _, number in there}
    if missing:
        raise UnknownTopicError(f"there is no partition {min(missing)} among what would be moved")
    if not places:
        raise GroupError(f"group {group!r} has committed nothing: name the topic to move it in (--topic)")
    return places


def _locate(topics: TopicAdministration, target: Target, places: list[Place]) -> dict[Place, int]:
    if target.position is None:
        return {}
    located = {}
    for name in dict.fromkeys(topic for topic, _ in places):
        numbers = [number for topic, number in places if topic == name]
        offsets = topics.locate(name, target.position, numbers)
        located.update({(name, number): offset for number, offset in offsets.items()})
    return located
