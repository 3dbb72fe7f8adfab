"""The partitions that a member of a lease group holds: claim, release, and notice losses."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from penstock.abc import Feed, GroupListener
from penstock.consuming.lease_groups.membership import SOON, Membership, View
from penstock.errors import StoreUnavailableError
from penstock.model import Lease


def assign(
    partitions: Collection[int], members: Collection[str], held: Mapping[int, str]
) -> Mapping[str, frozenset[int]]:
    """The partitions of each member: sizes differ by at most one, and as few partitions move as that allows.

    `held` maps partitions to their owners; partitions without a living owner are given out. The members with the most
    partitions keep the larger sizes, and give up their highest partitions first. Names break ties, so members that see
    the same leases reach the same answer without talking to each other, and a balanced group does not move.
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


logger = logging.getLogger(__name__)


class HeldPartitions:
    """The partitions of one member. Used only by the thread that reads and handles them.

    Leases are claimed and released only here, by compare-and-set on what the member has seen, and only while its own
    heartbeat is fresh. It acts on a view once, and never on one that was read before its own last change.
    """

    def __init__(self, membership: Membership, listener: GroupListener, feed: Feed) -> None:
        self._membership = membership
        self._listener = listener
        self._feed = feed
        self._held: dict[int, Lease] = {}
        self._generation = 0
        self._acted: tuple[View, tuple[int, ...]] | None = None
        """The view last acted on."""
        self._settled = False
        self._is_balanced = False
        """Whether every member has its share in the view last acted on."""

    @property
    def held(self) -> Sequence[int]:
        return sorted(self._held)

    def holds(self, partition: int) -> bool:
        """Whether it is held, as far as can be known without the store."""
        return partition in self._held and self.is_valid()

    def is_valid(self) -> bool:
        """Whether the held partitions are still valid. Ask right before handling a record."""
        return self._membership.state.generation == self._generation and self._membership.fresh_for_s() > 0

    def check(self) -> bool:
        """Give up everything if others may own it by now. Returns whether the held partitions are valid."""
        if self._held and not self.is_valid():
            logger.warning("%s could not renew its lease in time and stops: others may take over", self._who)
            self._lose(self.held)
        return self.is_valid()

    def rebalance(self, partitions: tuple[int, ...]) -> bool:
        """Claim and release towards a balanced group of all `partitions`. Returns whether that is reached.

        Raises what the listener raises.
        """
        self.check()
        state = self._membership.state
        if not self._held:
            self._generation = state.generation
        if not self.is_valid():
            return False
        view = state.view
        if self._acted is not None and view is self._acted[0] and partitions is self._acted[1]:
            return self._settled
        self._lose([p for p, lease in self._held.items() if p in view.leases and _has_gone(lease, view.leases[p])])
        if state.changes != self._membership.changes or not view.members:
            return False
        if not self._settled or (view, partitions) != self._acted:
            self._settled = self._act(view, state.owner, partitions)
        self._acted = (view, partitions)
        self._membership.balanced = view if self._settled and self._is_balanced else None
        return self._settled

    def leave(self) -> None:
        """Release everything. Raises what the listener raises, after releasing what it can."""
        if not self.check():
            return
        self._give_up(self.held)

    @property
    def _who(self) -> str:
        return f"{self._membership.owner} of group {self._membership.group!r}"

    def _act(self, view: View, me: str, partitions: tuple[int, ...]) -> bool:
        owners = {partition: lease.owner for partition, lease in view.leases.items() if lease.owner}
        earlier_runs = set(filter(self._membership.is_same_member, set(owners.values())))
        owners.update({p: me for p, owner in owners.items() if owner in earlier_runs})
        owners.update(dict.fromkeys(self._held, me))
        shares = assign(partitions, view.members, owners)
        due = shares[me]
        self._is_balanced = all(owners.get(p) == member for member, share in shares.items() for p in share)
        not_ours = self._held.keys() - due
        self._give_up(sorted(not_ours))
        missing = sorted(due - self._held.keys())
        self._take(view, me, [p for p in missing if owners.get(p) == me or view.is_free(p)])
        stray = [p for p, owner in owners.items() if owner == me and p not in due | not_ours]
        self._release([view.leases[p] for p in stray])
        # A release counts once it is seen in the store, which may not have received it.
        return due == self._held.keys() and not not_ours and not stray

    def _take(self, view: View, me: str, partitions: Sequence[int]) -> None:
        membership, claimed = self._membership, dict[int, Lease]()
        until_s = membership.clock.monotonic_s() + membership.ttl_s * SOON
        for partition in partitions:
            # A first member would claim thousands before it looks again, and give most of them to those that came.
            if not self.is_valid() or membership.clock.monotonic_s() > until_s:
                break
            try:
                name = membership.key(partition).lease_name
                lease = membership.store.claim(membership.group, name, me, view.leases.get(partition))
            except StoreUnavailableError as error:
                logger.warning("%s-%d could not be claimed: %s", membership.topic, partition, error)
                break
            finally:
                self._touched()
            if lease is not None:
                claimed[partition] = lease
        if not self.is_valid():
            self._release(claimed.values())
            return
        if not claimed:
            return
        try:
            starts = self._listener.assigned(claimed)
        except BaseException as error:
            self._release(claimed.values())
            if isinstance(error, StoreUnavailableError):
                logger.warning("%s cannot start with %s: %s", self._who, sorted(claimed), error)
                return
            raise
        self._held.update(claimed)
        for partition in claimed:
            self._feed.add(partition, starts[partition])

    def _give_up(self, partitions: Sequence[int]) -> None:
        if not partitions:
            return
        for partition in partitions:
            self._feed.remove(partition)
        try:
            self._listener.revoked(partitions)
        finally:
            self._release([self._held.pop(partition) for partition in partitions])

    def _lose(self, partitions: Sequence[int]) -> None:
        if not partitions:
            return
        for partition in partitions:
            self._feed.remove(partition)
            del self._held[partition]
        self._settled = False
        self._listener.lost(partitions)

    def _release(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            try:
                self._membership.store.release(lease)
            except StoreUnavailableError as error:
                logger.warning("%s of group %r could not be released: %s", lease.name, lease.group, error)
                break
            finally:
                self._touched()

    def _touched(self) -> None:
        self._settled = False
        self._membership.changes += 1


def _has_gone(held: Lease, seen: Lease) -> bool:
    """Whether a seen lease shows that this one is no longer held. The view may be older than the claim."""
    return seen.epoch > held.epoch or (seen.epoch == held.epoch and seen.owner != held.owner)
