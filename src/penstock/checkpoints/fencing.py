"""What is told to owners who are none any more, and to who would forget a group that is in use."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import FencedError, GroupError
from penstock.model import Lease


def fenced(lease: Lease, now: Lease | None) -> FencedError:
    """The error for an owner whose lease is `now` another one, or gone."""
    if now is None:
        state = "it is gone"
    elif now.owner:
        state = f"{now.owner!r} holds it, with epoch {now.epoch}"
    else:
        state = f"it was released, with epoch {now.epoch}"
    return FencedError(
        f"{lease.owner!r} does not hold {lease.name!r} of group {lease.group!r} with epoch {lease.epoch} any more: "
        f"{state}. Nothing was saved; stop working on it."
    )


def lease_named(name: str, leases: Iterable[Lease]) -> Lease | None:
    """The lease of this name, if there is one."""
    return next((each for each in leases if each.name == name), None)


def in_use(lease: Lease) -> GroupError:
    """The error for who wants to forget a group while this lease is held."""
    return GroupError(
        f"the group {lease.group!r} is in use: {lease.owner!r} holds {lease.name!r}; stop its members first"
    )
