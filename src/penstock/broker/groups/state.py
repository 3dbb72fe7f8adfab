"""The states of a group."""

from __future__ import annotations

from enum import Enum
from typing import Final


class GroupState(Enum):
    """Named as clients and tools see them."""

    EMPTY = "Empty"
    """No members. It may hold offsets; joins and commits of consumers that are no members are welcome."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for the members to join again. Heartbeats are answered with REBALANCE_IN_PROGRESS."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A new generation has begun; waiting for the leader's assignment."""
    STABLE = "Stable"
    """Every member has, or can ask for, its assignment."""
    DEAD = "Dead"
    """Its deletion is being written. It comes back as Empty should that fail."""


PREVIOUS: Final = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.PREPARING_REBALANCE: {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: {GroupState.EMPTY},
}
"""The states from which each state can be reached."""
