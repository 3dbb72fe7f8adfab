"""Which names a client may give to a new topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.internal_topics import INTERNAL_TOPICS
from penstock.errors import InvalidTopicError

RESERVED_TOPICS: Final = INTERNAL_TOPICS | {"__cluster_metadata"}
"""What only the broker may make; the last one is Kafka's, and not needed here."""


def check_not_reserved(name: str) -> None:
    if name in RESERVED_TOPICS:
        raise ProtocolError(
            ErrorCode.invalid_request, f"{name} is the broker's own topic, and made by it; choose another name"
        )


def check_no_collision(name: str, existing: Iterable[str]) -> None:
    """Raise InvalidTopicError if Kafka would: in the names of its metrics a dot and an underscore look the same."""
    if "." not in name and "_" not in name:
        return
    flat = name.replace(".", "_")
    for other in existing:
        if other != name and len(other) == len(name) and other.replace(".", "_") == flat:
            raise InvalidTopicError(
                f"topic {name!r} differs from {other!r} only in dots and underscores, which Kafka does not allow; "
                "choose another name"
            )
