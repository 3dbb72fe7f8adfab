"""Where reading begins or ends, as it is written in an option."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping

from penstock.errors import ConfigError
from penstock.model import Position, PositionKind

Pointers = dict[int, int]
"""Partition to pointer."""
Start = str | datetime.datetime | Position | Mapping[int, int]
"""What users may write: "earliest", "latest", a time, a Position, or a pointer for each partition."""

FORMS = 'earliest, latest, a time such as 2026-11-15T08:00Z, or a pointer for each partition as JSON: {"0": 17, "1": 4}'


def parse_position(text: str, option: str, *, pointers: bool = True, besides: str = "") -> Position | Pointers:
    """What an option says: a position for all partitions, or a pointer for each. ConfigError names the option."""
    stripped = text.strip()
    if pointers and stripped.startswith("{"):
        return _pointers(stripped, option)
    try:
        position = Position.parse(stripped, datetime.datetime.now(datetime.UTC))
    except ConfigError:
        position = None
    if position is None or position.kind is PositionKind.POINTER:
        forms = FORMS if pointers else f"{besides}, earliest, latest, or a time such as 2026-11-15T08:00Z"
        raise ConfigError(f"the option {option!r} is {text!r}; it may be {forms}")
    return position


def position_text(start: Start) -> str:
    """What a user gave, as the text of an option."""
    if isinstance(start, Mapping):
        return json.dumps({str(partition): int(pointer) for partition, pointer in sorted(start.items())})
    if isinstance(start, datetime.datetime):
        start = Position.at_time(start)
    if isinstance(start, Position):
        if start.kind is PositionKind.POINTER:
            raise ConfigError("one pointer cannot be meant for all partitions: give one for each, {0: 42, 1: 7}")
        return f"@{start.time_ms}" if start.kind is PositionKind.TIME else str(start.kind)
    return start


def _pointers(text: str, option: str) -> Pointers:
    try:
        found = json.loads(text)
        pointers = {int(partition): pointer for partition, pointer in found.items()}
    except ValueError:
        pointers = {}
    if not pointers or not all(type(pointer) is int and pointer >= 0 for pointer in pointers.values()):
        raise ConfigError(f'the option {option!r} is {text!r}; pointers are written as {{"0": 17, "1": 4}}')
    return pointers
