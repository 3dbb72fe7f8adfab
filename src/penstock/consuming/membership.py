"""Being a member of a group by leases: the sign of life it gives, and what it sees of the others.

A group has one lease for each of its members on a topic, which that member renews, and one for each partition, which
says who may write its checkpoint. Nobody trusts anybody's wall clock. A member is dead for another one when none of its
leases has changed for `ttl_s` by the clock of the one who watches. It counts itself as dead earlier than that, after
`FENCE` of that time since the beginning of its last renewal that worked, so it has stopped before others take over, as
long as clocks run at the same speed within the difference.

Only the lease of the member is renewed, whatever the number of its partitions: each look and each beat is one request.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote

from penstock.abc import CheckpointStore, Clock
from penstock.errors import FencedError
from penstock.model import CheckpointKey, Lease

logger = logging.getLogger(__name__)

FENCE: Final = 0.8
"""After this part of `ttl_s` without a renewal a member no longer counts on what it holds."""
_BEAT: Final = 1 / 3
"""A member renews its lease once in this part of `ttl_s`."""
_SOON: Final = 1 / 15
"""How soon it tries again when the store was away, or looks again when something is to change hands."""


@dataclass(frozen=True, slots=True)
class View:
    """What a member saw of its group when it last looked."""

    members: tuple[str, ...] = ()
    """The owners that are alive, itself included, in order."""
    leases: Mapping[int, Lease] = field(default_factory=dict)
    """The lease of each partition that ever had one."""
    dead: frozenset[str] = frozenset()
    """Owners of leases that have given no sign of life for long enough."""

    def is_free(self, partition: int) -> bool:
        """Whether it may be claimed: nobody had it ever, or it was given back, or its owner is dead."""
        lease = self.leases.get(partition)
        return lease is None or not lease.owner or lease.owner in self.dead


@dataclass(frozen=True, slots=True)
class Standing:
    """How a member stands with its group. Replaced as a whole, so that any thread sees parts that belong together."""

    owner: str = ""
    """Who the member is in leases: its name, and what tells it from others that had or will have the name. It changes
    each time the member joins, so that nobody takes it for what was there before."""
    tenure: int = 0
    """Grows when the member may have been taken for dead in between: what it held before is no longer its own."""
    renewed_s: float = float("-inf")
    """When the last renewal that worked was begun."""
    view: View = View()
    changes: int = 0
    """How many changes of its own the member had made when the look that gave the view was begun."""
    superseded: bool = False
    """Somebody else has joined under the same name. It does not come back from that."""


class Watch:
    """When each owner last gave a sign of life, by the clock of the one who watches.

    A look takes time. What it shows was so at some moment between its beginning and its end: what is new in it counts
    from the end, and what has not changed is known to have stood still until the beginning only.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._seen: dict[str, Lease] = {}
        self._heard_s: dict[str, float] = {}
        self._began_s = float("-inf")

    def saw(self, leases: Sequence[Lease], began_s: float, ended_s: float) -> frozenset[str]:
        """All leases of the group, as a look showed them. Gives the owners that are dead."""
        for lease in leases:
            if lease.owner and self._seen.get(lease.name) != lease:
                self._heard_s[lease.owner] = ended_s
        self._seen = {lease.name: lease for lease in leases}
        self._began_s = began_s
        owners = {lease.owner for lease in leases}
        self._heard_s = {owner: heard_s for owner, heard_s in self._heard_s.items() if owner in owners}
        return frozenset(owner for owner, heard_s in self._heard_s.items() if began_s - heard_s >= self._ttl_s)

    def next_death_s(self) -> float | None:
        """When the first of those who were alive in the last look will be dead, if it gives no sign of life."""
        deaths = (heard_s + self._ttl_s for heard_s in self._heard_s.values())
        return min((death_s for death_s in deaths if death_s > self._began_s), default=None)


class Membership:
    """One member of a group on one topic. It has no thread: somebody calls `step`, when it says so.

    `step` is for one thread; `standing`, `is_fresh` and `fresh_for_s` are for any.
    """

    def __init__(
        self,
        store: CheckpointStore,
        group: str,
        topic: str,
        member: str,
        ttl_s: float,
        clock: Clock,
        *,
        incarnation: str | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.store = store
        self.group = group
        self.topic = topic
        self.member = member
        self.ttl_s = ttl_s
        self.clock = clock
        self._self = f"{member}/{incarnation or secrets.token_hex(4)}"
        self._joins = 0
        self.standing = Standing()
        self.unsettled = False
        """Something is to change hands, so look soon. Set by the one who holds the partitions."""
        self.changes = 0
        """Counts what the one who holds the partitions has changed in the store: a view from before is out of date."""
        self._chance = chance or random.Random()
        self._watch = Watch(ttl_s)
        self._lease: Lease | None = None
        self._beat_due_s = float("-inf")
        self._name = f"{self._prefix}:{quote(member, safe=' /@+,=()[]')}"

    @property
    def owner(self) -> str:
        return self.standing.owner or self._self

    @property
    def fence_s(self) -> float:
        return self.ttl_s * FENCE

    def fresh_for_s(self) -> float:
        """How long it may still count on what it holds, if no renewal works from now on; negative: no longer."""
        return self.standing.renewed_s + self.fence_s - self.clock.monotonic_s()

    def key(self, partition: int) -> CheckpointKey:
        return CheckpointKey(self.group, self.topic, partition)

    def is_same_member(self, owner: str) -> bool:
        """Whether this owner is this member, or was it before it was started again."""
        return owner.rpartition("/")[0] == self.member

    def step(self) -> float:
        """Give a sign of life if it is time to, look at the others, and say in how many seconds to call again.

        Raises StoreUnavailableError: call again after `retry_s`.
        """
        if self.standing.superseded:
            return self.ttl_s
        if self.clock.monotonic_s() >= self._beat_due_s:
            self._beat()
        self._look()
        return self._pause_s()

    def retry_s(self) -> float:
        """When to call `step` again after the store was away."""
        return self.ttl_s * _SOON * (1 + self._chance.random())

    def leave(self) -> None:
        """Be no member any more. What it holds has been released before."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        self.store.release(lease)
        for left in self.store.leases(self.group):
            if left.name == self._name and not left.owner:
                self.store.forget_lease(left)

    @property
    def _prefix(self) -> str:
        return f"member:{self.topic}"

    def _beat(self) -> None:
        began_s = self.clock.monotonic_s()
        if self._lease is not None:
            try:
                self._lease = self.store.renew(self._lease)
            except FencedError:  # taken for dead and forgotten, or superseded by one of the same name
                self._lease = None
                self._break()
        if self._lease is None:
            began_s = self._join()
        if self._lease is not None:
            self._renewed(began_s)
        else:
            self._beat_due_s = self.clock.monotonic_s() + self.retry_s()

    def _join(self) -> float:
        began_s = self.clock.monotonic_s()
        seen = next((lease for lease in self.store.leases(self.group) if lease.name == self._name), None)
        if self.standing.tenure and seen is not None and seen.owner and not self._is_self(seen.owner):
            self._superseded()
            return began_s
        self._joins += 1
        owner = f"{self._self}.{self._joins}"
        self._lease = self.store.claim(self.group, self._name, owner, seen)
        if self._lease is not None:
            self.standing = Standing(owner, self.standing.tenure + 1)
        return began_s

    def _is_self(self, owner: str) -> bool:
        return owner.rpartition(".")[0] == self._self

    def _renewed(self, began_s: float) -> None:
        before = self.standing
        # Known only now. If it counted as dead until now, others may be about to take what it held.
        broken = self.clock.monotonic_s() - before.renewed_s >= self.fence_s
        tenure = before.tenure + 1 if broken and before.renewed_s > float("-inf") else before.tenure
        self.standing = replace(before, tenure=tenure, renewed_s=began_s)
        self._beat_due_s = began_s + self.ttl_s * _BEAT * (1 - 0.2 * self._chance.random())

    def _look(self) -> None:
        changes, began_s = self.changes, self.clock.monotonic_s()
        leases = self.store.leases(self.group)
        dead = self._watch.saw(leases, began_s, self.clock.monotonic_s()) - {self.owner}
        members = set[str]()
        partitions = dict[int, Lease]()
        for lease in leases:
            kind, _, last = lease.name.rpartition(":")
            if kind == self._prefix and lease.owner:
                members.add(lease.owner)
                if lease.name == self._name and self._lease is not None and not self._is_self(lease.owner):
                    self._superseded()
            elif kind == f"partition:{self.topic}":
                partitions[int(last)] = lease
        view = View(tuple(sorted((members - dead) | {self.owner})), partitions, dead)
        self.standing = replace(self.standing, view=view, changes=changes)
        self._forget_the_gone(leases, dead)

    def _superseded(self) -> None:
        self._lease = None
        self._break()
        self.standing = replace(self.standing, superseded=True)

    def _break(self) -> None:
        """What was held is not any more."""
        self.standing = replace(self.standing, tenure=self.standing.tenure + 1, renewed_s=float("-inf"))

    def _forget_the_gone(self, leases: Sequence[Lease], dead: frozenset[str]) -> None:
        for lease in leases:
            is_member = lease.name.rpartition(":")[0] == self._prefix
            if is_member and lease.name != self._name and (not lease.owner or lease.owner in dead):
                if lease.owner:
                    logger.info("%s of group %r is gone", lease.owner, self.group)
                self.store.forget_lease(lease)

    def _pause_s(self) -> float:
        now_s = self.clock.monotonic_s()
        times_s = [self._beat_due_s]
        if self.unsettled:
            times_s.append(now_s + self.ttl_s * _SOON)
        death_s = self._watch.next_death_s()
        if death_s is not None:
            times_s.append(death_s)
        return max(0.0, min(times_s) - now_s)
