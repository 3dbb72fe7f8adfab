"""What consumers put into the metadata and the assignments of a group, as far as the broker looks into it.

Both are written by clients for clients. The broker passes them on as bytes; it reads the topics of a subscription to
know which offsets are still of use, and the partitions of an assignment to show them. All later versions begin like
version 0, so only that is read.
"""

from __future__ import annotations

import struct
from typing import Final

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of a ConsumerProtocolSubscription, or None when the bytes are none."""
    try:
        position = _SHORT.size
        count, position = _count(metadata, position)
        topics = set()
        for _ in range(count):
            topic, position = _string(metadata, position)
            topics.add(topic)
    except (struct.error, ValueError):
        return None
    return frozenset(topics)


def assigned_partitions(assignment: bytes) -> tuple[tuple[str, int], ...] | None:
    """The partitions of a ConsumerProtocolAssignment, or None when the bytes are none. Empty bytes assign nothing."""
    if not assignment:
        return ()
    partitions: list[tuple[str, int]] = []
    try:
        position = _SHORT.size
        count, position = _count(assignment, position)
        for _ in range(count):
            topic, position = _string(assignment, position)
            indexes, position = _count(assignment, position)
            partitions += ((topic, index) for index in struct.unpack_from(f">{indexes}i", assignment, position))
            position += indexes * _INT.size
    except (struct.error, ValueError):
        return None
    return tuple(partitions)


def _count(data: bytes, position: int) -> tuple[int, int]:
    (count,) = _INT.unpack_from(data, position)
    position += _INT.size
    if not 0 <= count <= len(data) - position:
        raise ValueError("an array claims more entries than there are bytes")
    return count, position


def _string(data: bytes, position: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(data, position)
    position += _SHORT.size
    end = position + length
    if length < 0 or end > len(data):
        raise ValueError("a string is longer than the bytes that are left")
    return data[position:end].decode(), end
