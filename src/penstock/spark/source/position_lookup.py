"""From positions to pointers: where a query begins or ends, and where it continues when records have expired."""

from __future__ import annotations

import logging
from typing import Final

from penstock.errors import ConfigError, OffsetOutOfRangeError, RecordsExpiredError
from penstock.model import Position, PositionKind
from penstock.spark.source.positions import Pointers, parse_position, parse_single_position
from penstock.spark.source.topic_view import Described, TopicView

logger = logging.getLogger(__name__)

FAIL: Final = "fail"


def resolve_position(view: TopicView, described: Described, text: str, option: str) -> Pointers:
    """The pointer in each partition for the position in an option.

    Raises ConfigError, and OffsetOutOfRangeError for a pointer beyond the end.
    """
    given = parse_position(text, option, view.names)
    if isinstance(given, Position):
        return view.locate(given, described.partitions)
    there = set(described.partitions)
    if given.keys() != there:
        topic, odd = min(given.keys() ^ there)
        count = len([each for each, _ in there if each == topic])
        problem = (
            f"has no pointer for partition {odd} of topic {topic!r}"
            if (topic, odd) in there
            else f"has one for partition {odd}, and topic {topic!r} has only {count} partitions"
        )
        raise ConfigError(f"the option {option!r} {problem}: it needs one for each")
    ends = view.ends(given)
    starts = view.starts(given)
    for (topic, partition), pointer in given.items():
        if pointer > ends[topic, partition]:
            raise OffsetOutOfRangeError(
                f"{topic}-{partition}", pointer, starts[topic, partition], ends[topic, partition]
            )
    return given


def skip_expired_records(view: TopicView, begin: Pointers, ends: Pointers, policy: str) -> Pointers:
    """Where to begin in each partition if records from `begin` on may have expired.

    With the policy "fail", raises RecordsExpiredError. Partitions with nothing to read are unchanged.
    """
    asked = [each for each in begin if ends[each] > begin[each]]
    starts = view.starts(asked)
    gone = [each for each in asked if begin[each] < starts[each]]
    if not gone:
        return begin
    if policy == FAIL:
        first = min(gone)
        raise RecordsExpiredError(*first, begin[first], starts[first])
    position = parse_single_position(policy, "onExpired")
    found = ends if position.kind is PositionKind.LATEST else view.locate(position, gone)
    moved = {each: min(max(found[each], starts[each]), max(ends[each], starts[each])) for each in gone}
    for (topic, partition), pointer in moved.items():
        logger.warning(
            "topic %r, partition %d: records from %d on have expired; continuing at %d (onExpired=%s)",
            topic,
            partition,
            begin[topic, partition],
            pointer,
            policy,
        )
    return {**begin, **moved}
