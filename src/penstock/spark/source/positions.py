"""Positions as the text of options: where reading begins or ends."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.model import Position, PositionKind
from penstock.model.administration import PartitionId

Pointers = dict[PartitionId, int]
"""Topic and partition to pointer."""
UNCOUNTED: Final = "@uncounted"
"""In a source's latest offset, if pointers do not count records: their difference says nothing about the lag."""
Start = str | datetime.datetime | Position | Mapping[int, int] | Mapping[str, Mapping[int, int]]
"""A position as users write it: "earliest", "latest", a time, a Position, or a pointer for each partition, of each
topic if there are several."""

SINGLE_FORMS: Final = "earliest, latest, or a time such as 2026-11-15T08:00Z"
FORMS: Final = (
    'earliest, latest, a time such as 2026-11-15T08:00Z, or a pointer for each partition as JSON: {"0": 17, "1": 4}; '
    'for several topics {"orders": {"0": 17}, "returns": {"0": 4}}'
)


def parse_position(text: str, option: str, topics: Sequence[str]) -> Position | Pointers:
    """Parse a position for all partitions, or a pointer for each partition of these topics.

    Raises ConfigError, with the option.
    """
    stripped = text.strip()
    if stripped.startswith("{"):
        return _pointers(stripped, option, topics)
    return parse_single_position(stripped, option, FORMS)


def parse_single_position(text: str, option: str, forms: str = SINGLE_FORMS) -> Position:
    """Parse a position for all partitions. `forms` describes the allowed forms in the ConfigError."""
    try:
        position = Position.parse(text.strip(), datetime.datetime.now(datetime.UTC))
    except ConfigError:
        position = None
    if position is None or position.kind is PositionKind.POINTER:
        raise ConfigError(f"the option {option!r} is {text!r}; it may be {forms}")
    return position


def position_text(start: Start) -> str:
    """A position as the text of an option."""
    if isinstance(start, Mapping):
        written: Mapping[Any, Any] = start
        return json.dumps({str(each): _written(its) for each, its in sorted(written.items())})
    if isinstance(start, datetime.datetime):
        start = Position.at_time(start)
    if isinstance(start, Position):
        if start.kind is PositionKind.POINTER:
            raise ConfigError("a single pointer is ambiguous: give one for each partition, {0: 42, 1: 7}")
        return f"@{start.time_ms}" if start.kind is PositionKind.TIME else str(start.kind)
    return start


def is_time(text: str) -> bool:
    """Whether the text of a position, which was checked, is a time."""
    if text.strip().startswith("{") or text.lower() in ("fail", PositionKind.EARLIEST, PositionKind.LATEST):
        return False
    return parse_single_position(text, "").kind is PositionKind.TIME


def _written(pointers: int | Mapping[int, int]) -> Any:
    if isinstance(pointers, Mapping):
        return {str(partition): int(pointer) for partition, pointer in sorted(pointers.items())}
    return int(pointers)


def by_topic(pointers: Pointers) -> dict[str, dict[str, int]]:
    """Pointers as JSON, in a fixed order."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), pointer in sorted(pointers.items()):
        found.setdefault(topic, {})[str(partition)] = pointer
    return found


def by_partition(written: Mapping[str, Mapping[str, Any]]) -> Pointers:
    """The inverse of `by_topic`."""
    return {(topic, int(partition)): it for topic, its in written.items() for partition, it in its.items()}


def _pointers(text: str, option: str, topics: Sequence[str]) -> Pointers:
    try:
        found = json.loads(text)
        if not all(isinstance(value, dict) for value in found.values()):
            if len(topics) != 1:
                raise ConfigError(
                    f"the option {option!r} has pointers by partition, and several topics are read: write them by "
                    'topic, {"orders": {"0": 17}}'
                )
            found = {topics[0]: found}
        pointers = by_partition(found)
    except (ValueError, AttributeError):
        found, pointers = {}, {}
    valid = found and all(found.values()) and all(type(each) is int and each >= 0 for each in pointers.values())
    if not valid:
        raise ConfigError(
            f'the option {option!r} is {text!r}; pointers are written as {{"0": 17, "1": 4}}, and those of several '
            'topics as {"orders": {"0": 17}}'
        )
    return pointers
