"""The settings of the group coordinator, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigError
from penstock.log.configs.setting import whole_number

LONGEST_STORABLE_METADATA: Final = 8191
"""Characters of four bytes each that still fit the two-byte length of a stored offset's metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The behaviour of groups. Every default is Kafka's unless a comment says otherwise."""

    min_session_timeout_ms: int = whole_number(
        "group.min.session.timeout.ms", 6_000, "the shortest session timeout that a consumer may ask for"
    )
    max_session_timeout_ms: int = whole_number(
        "group.max.session.timeout.ms", 1_800_000, "the longest session timeout that a consumer may ask for"
    )
    # With Kafka's 3000, consumers that start together share one rebalance, but a lone one is idle for three seconds.
    initial_rebalance_delay_ms: int = whole_number(
        "group.initial.rebalance.delay.ms",
        0,
        "how long the first rebalance of an empty group waits for further members",
        minimum=0,
    )
    # Unlimited in Kafka; the limit keeps a client that joins in a loop from filling the broker's memory.
    max_size: int = whole_number("group.max.size", 1_000, "how many members a group may have")
    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait in its first JoinGroup before it counts as gone (a constant in Kafka)."""
    # As in Kafka, it counts characters in spite of its name.
    offset_metadata_max_length: int = whole_number(
        "offset.metadata.max.bytes",
        4_096,
        "the longest text that may be committed with an offset",
        maximum=LONGEST_STORABLE_METADATA,
    )
    offsets_retention_minutes: int = whole_number(
        "offsets.retention.minutes", 10_080, "how long committed offsets are kept after their last use"
    )

    def __post_init__(self) -> None:
        if self.max_session_timeout_ms < self.min_session_timeout_ms:
            raise ConfigError(
                f"group.max.session.timeout.ms={self.max_session_timeout_ms} must not be below "
                f"group.min.session.timeout.ms={self.min_session_timeout_ms}"
            )
