"""The settings of the group coordinator, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from penstock.errors import ConfigError

LONGEST_STORABLE_METADATA: Final = 8191
"""Characters of four bytes each that still fit the two-byte length of a stored offset's metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """How groups behave. Every default is Kafka's unless its text says otherwise."""

    min_session_timeout_ms: int = 6_000
    """`group.min.session.timeout.ms`. A JoinGroup that asks for less is refused with INVALID_SESSION_TIMEOUT.
    Lower notices dead consumers sooner, at the price of more heartbeats."""

    max_session_timeout_ms: int = 1_800_000
    """`group.max.session.timeout.ms`. A JoinGroup that asks for more is refused with INVALID_SESSION_TIMEOUT."""

    initial_rebalance_delay_ms: int = 0
    """`group.initial.rebalance.delay.ms`. How long the first rebalance of an empty group waits for further members.

    Kafka's default is 3000: consumers that start together then share one rebalance, but a lone consumer sits idle for
    three seconds. The default here is 0: a consumer starts at once, and each one that arrives later causes a rebalance,
    which the earlier ones learn of with their next heartbeat."""

    max_size: int = 1_000
    """`group.max.size`. A member beyond this number is refused with GROUP_MAX_SIZE_REACHED. Kafka's default is no
    limit; this one keeps a client that joins in a loop from filling the broker's memory."""

    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait in its first JoinGroup before it is taken for gone (a constant in Kafka)."""

    offset_metadata_max_length: int = 4_096
    """`offset.metadata.max.bytes`. A commit with a longer metadata string is refused with OFFSET_METADATA_TOO_LARGE.
    Characters are counted, as Kafka does in spite of the name."""

    offsets_retention_minutes: int = 10_080
    """`offsets.retention.minutes`. How long offsets are kept once nobody uses them: after the group became empty, or
    after the commit for consumers that are no member of a group and for topics that a group no longer subscribes to."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            lowest = 0 if field.name == "initial_rebalance_delay_ms" else 1
            if not isinstance(value, int) or value < lowest:
                raise ConfigError(f"{field.name} must be a whole number of at least {lowest}, not {value!r}")
        if self.max_session_timeout_ms < self.min_session_timeout_ms:
            raise ConfigError(
                f"max_session_timeout_ms ({self.max_session_timeout_ms}) must not be below "
                f"min_session_timeout_ms ({self.min_session_timeout_ms})"
            )
        if self.offset_metadata_max_length > LONGEST_STORABLE_METADATA:
            raise ConfigError(
                f"offset_metadata_max_length must be at most {LONGEST_STORABLE_METADATA}, "
                f"the longest that can be stored, not {self.offset_metadata_max_length}"
            )
