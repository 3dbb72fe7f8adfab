"""What all stores check: that the lease is held, that no group in use is deleted, and that users end no transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.abc import Feature, Features
from penstock.errors import FencedError, GroupError
from penstock.model import CheckpointKey, Lease

FEATURES: Final[Features] = frozenset(
    {Feature.DURABLE, Feature.LEASES, Feature.STATE, Feature.HISTORY, Feature.DEDUPLICATION}
)
"""What every store can do; databases with transactions can do more."""

LAST_CHARACTER: Final = "\U0010ffff"
"""Names that start with a prefix are those from the prefix on, and before the prefix with this behind it."""

NOT_YOURS: Final = (
    "this transaction also holds the checkpoint, and ends with its block: leave the block to commit, raise to roll "
    "back, and use savepoint() to undo a part"
)


def fenced(lease: Lease, now: Lease | None) -> FencedError:
    """The error for an owner whose lease is `now` another one, or gone."""
    if now is None:
        state = "it is gone"
    elif now.owner:
        state = f"{now.owner!r} holds it, with epoch {now.epoch}"
    else:
        state = f"it was released, with epoch {now.epoch}"
    return FencedError(
        f"{lease.owner!r} no longer holds {lease.name!r} of group {lease.group!r} with epoch {lease.epoch}: "
        f"{state}. Nothing was saved; stop working on it."
    )


def check_owner(owner: str) -> None:
    if not owner:
        raise ValueError("an owner needs a non-empty name: an empty one means that the lease is free")


def check_lease_of(lease: Lease, key: CheckpointKey) -> None:
    """Raise FencedError for the lease of another partition."""
    if (lease.group, lease.name) != (key.group, key.lease_name):
        raise FencedError(f"{lease} is not the lease of {key}, {key.lease_name!r}. Nothing was saved")


def lease_named(name: str, leases: Iterable[Lease]) -> Lease | None:
    """The lease of this name, if there is one."""
    return next((each for each in leases if each.name == name), None)


def in_use(lease: Lease) -> GroupError:
    """The error for deleting a group while this lease is held."""
    return GroupError(
        f"the group {lease.group!r} is in use: {lease.owner!r} holds {lease.name!r}; stop its members first"
    )
