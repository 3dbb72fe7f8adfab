"""The choices of `order=` and `guarantee=`."""

from __future__ import annotations

from enum import StrEnum


class Guarantee(StrEnum):
    """How often the effect of a record happens."""

    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


class Ordering(StrEnum):
    """Which records must be handled in order."""

    PARTITION = "partition"
    """Records of one partition are handled one after the other."""
    KEY = "key"
    """Records of one key are handled one after the other."""
    NONE = "none"
    """Records may be handled in any order."""
