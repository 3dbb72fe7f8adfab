"""Holding partitions by lease: taking what is due to a member, giving back what is too much, noticing what is lost."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from penstock.abc import Feed, GroupListener
from penstock.consuming.assignment import assign
from penstock.consuming.membership import Membership, View
from penstock.errors import StoreUnavailableError
from penstock.model import Lease

logger = logging.getLogger(__name__)


class Tenancy:
    """The partitions of one member. Used by the one thread that reads and handles them.

    Leases change hands here only, by compare-and-set on what the member has seen, and only while its own sign of life
    is fresh. It acts on a view once, and then on none that was begun before its own last change, so it never argues
    from what it has changed itself.
    """

    def __init__(self, membership: Membership, listener: GroupListener, feed: Feed) -> None:
        self._membership = membership
        self._listener = listener
        self._feed = feed
        self._held: dict[int, Lease] = {}
        self._tenure = 0
        self._acted: tuple[View, tuple[int, ...]] | None = None
        """What was last acted on."""
        self._settled = False

    @property
    def held(self) -> Sequence[int]:
        return sorted(self._held)

    def holds(self, partition: int) -> bool:
        """Whether it is ours, as far as anybody can know without asking the store."""
        return partition in self._held and self.is_valid()

    def is_valid(self) -> bool:
        """Whether what is held may still be counted on. To be asked right before anything is handled."""
        return self._membership.standing.tenure == self._tenure and self._membership.fresh_for_s() > 0

    def check(self) -> bool:
        """Give up everything if it may be others' by now. Gives whether what is held is ours."""
        if self._held and not self.is_valid():
            logger.warning("%s gave no sign of life for too long, so it stops: others may take over", self._who)
            self._lose(self.held)
        return self.is_valid()

    def settle(self, partitions: tuple[int, ...]) -> bool:
        """Come closer to the share that is due, `partitions` being all there are. Gives whether that has been reached.

        Raises what the listener raises.
        """
        self.check()
        standing = self._membership.standing
        if not self._held:
            self._tenure = standing.tenure
        if not self.is_valid():
            return False
        view = standing.view
        if self._acted is not None and view is self._acted[0] and partitions is self._acted[1]:
            return self._settled
        self._lose([p for p, lease in self._held.items() if p in view.leases and _has_gone(lease, view.leases[p])])
        if standing.changes != self._membership.changes or not view.members:
            return False
        if not self._settled or (view, partitions) != self._acted:
            self._settled = self._act(view, standing.owner, partitions)
        self._acted = (view, partitions)
        return self._settled

    def leave(self) -> None:
        """Hand everything back. Raises what the listener raises, when all that can be released is."""
        if not self.check():
            return
        self._give_up(self.held)

    @property
    def _who(self) -> str:
        return f"{self._membership.owner} of group {self._membership.group!r}"

    def _act(self, view: View, me: str, partitions: tuple[int, ...]) -> bool:
        owners = {partition: lease.owner for partition, lease in view.leases.items() if lease.owner}
        owners.update({p: me for p, owner in owners.items() if self._membership.is_same_member(owner)})
        owners.update(dict.fromkeys(self._held, me))
        due = assign(partitions, view.members, owners)[me]
        not_ours = self._held.keys() - due
        self._give_up(sorted(not_ours))
        missing = sorted(due - self._held.keys())
        self._take(view, me, [p for p in missing if owners.get(p) == me or view.is_free(p)])
        stray = [p for p, owner in owners.items() if owner == me and p not in due | not_ours]
        self._release([view.leases[p] for p in stray])
        # What was released counts when it has been seen to be: the store may not have heard of it.
        return due == self._held.keys() and not not_ours and not stray

    def _take(self, view: View, me: str, partitions: Sequence[int]) -> None:
        membership, claimed = self._membership, dict[int, Lease]()
        for partition in partitions:
            if not self.is_valid():
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
                logger.warning("%s cannot begin with %s: %s", self._who, sorted(claimed), error)
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
    """Whether a lease as it was seen says that it is no longer held. What was seen may be older than the claim."""
    return seen.epoch > held.epoch or (seen.epoch == held.epoch and seen.owner != held.owner)
