"""Who gets which partitions: the same answer for everyone who sees the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def assign(
    partitions: Collection[int], members: Collection[str], held: Mapping[int, str]
) -> Mapping[str, frozenset[int]]:
    """The share of each member: sizes differ by one at most, and as few partitions move as that allows.

    `held` says who has which partition now; those of nobody, or of somebody who is no member, are given out. Who has
    most keeps the larger shares, and gives up its highest partitions first. Names decide between equals, so members
    that see the same come to the same answer without talking to each other, and a balanced group stays as it is.
    """
    if not members:
        return {}
    has: dict[str, list[int]] = {member: [] for member in sorted(members)}
    for partition in sorted(partitions):
        owner = held.get(partition)
        if owner in has:
            has[owner].append(partition)
    smallest, larger = divmod(len(set(partitions)), len(has))
    by_size = sorted(has, key=lambda member: (-len(has[member]), member))
    room = {member: smallest + (place < larger) for place, member in enumerate(by_size)}
    shares = {member: has[member][: room[member]] for member in has}
    kept = {partition for share in shares.values() for partition in share}
    to_give = iter(partition for partition in sorted(set(partitions)) if partition not in kept)
    for member, share in shares.items():
        while len(share) < room[member]:
            share.append(next(to_give))
    return {member: frozenset(share) for member, share in shares.items()}
