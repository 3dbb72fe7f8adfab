"""What a user chooses from."""

from __future__ import annotations

from enum import StrEnum


class Guarantee(StrEnum):
    """How often the effect of a record happens."""

    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


class Order(StrEnum):
    """What must not overtake what."""

    PARTITION = "partition"
    """Records of one partition are handled one after the other."""
    KEY = "key"
    """Records of one key are; others may pass."""
    NONE = "none"
    """Any record may be handled at any time."""
