"""From positions to pointers: where a query begins, where a batch read ends, where to go on when records are gone."""

from __future__ import annotations

import logging
from typing import Final

from penstock.errors import ConfigError, OffsetOutOfRangeError, RecordsExpiredError
from penstock.model import Position, PositionKind
from penstock.spark.source.positions import Pointers, parse_position
from penstock.spark.source.topic_view import Described, TopicView

logger = logging.getLogger(__name__)

FAIL: Final = "fail"


def chosen_pointers(view: TopicView, topic: str, described: Described, text: str, option: str) -> Pointers:
    """The pointer that an option means in each partition. Raises ConfigError, and OffsetOutOfRangeError for a pointer
    that has not been written yet."""
    position = parse_position(text, option)
    if isinstance(position, Position):
        return view.locate(position, described.partitions)
    there = set(described.partitions)
    if position.keys() != there:
        odd = min(position.keys() ^ there)
        what = "has no pointer for" if odd in there else f"has one for partition {odd}, and topic {topic!r} has only"
        which = f"partition {odd} of topic {topic!r}" if odd in there else f"{len(there)} partitions"
        raise ConfigError(f"the option {option!r} {what} {which}: it needs one for each")
    ends = view.ends(position)
    starts = view.starts(position)
    for partition, pointer in position.items():
        if pointer > ends[partition]:
            raise OffsetOutOfRangeError(f"{topic}-{partition}", pointer, starts[partition], ends[partition])
    return position


def without_expired(view: TopicView, topic: str, begin: Pointers, ends: Pointers, policy: str) -> Pointers:
    """Where to begin in each partition, given that records may be gone and what is to happen then.

    RecordsExpiredError with the policy "fail". Partitions in which there is nothing to read are left alone.
    """
    asked = [partition for partition in begin if ends[partition] > begin[partition]]
    starts = view.starts(asked)
    gone = [partition for partition in asked if begin[partition] < starts[partition]]
    if not gone:
        return begin
    if policy == FAIL:
        partition = min(gone)
        raise RecordsExpiredError(topic, partition, begin[partition], starts[partition])
    position = parse_position(policy, "onExpired", pointers=False)
    assert isinstance(position, Position)
    found = ends if position.kind is PositionKind.LATEST else view.locate(position, gone)
    moved = {each: min(max(found[each], starts[each]), max(ends[each], starts[each])) for each in gone}
    for partition, pointer in moved.items():
        logger.warning(
            "topic %r, partition %d: records from %d on are gone; reading goes on at %d (onExpired=%s)",
            topic,
            partition,
            begin[partition],
            pointer,
            policy,
        )
    return {**begin, **moved}
