"""Membership in a lease group: this member's heartbeat, and its view of the others.

A group has one lease for each of its members on a topic, which that member renews, and one for each partition, which
says who may write its checkpoint. Wall clocks are never compared. A member counts as dead for another one when none of
its leases has changed for `ttl_s` by the observer's clock. It considers itself dead earlier, after `FENCE` of that time
since the start of its last successful renewal, so it has stopped before others take over, provided that clocks run at
the same speed within that margin.

Only the member's own lease is renewed, however many partitions it has: each look and each heartbeat is one request.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote

from penstock.abc import CheckpointStore, Clock
from penstock.errors import FencedError
from penstock.model import CheckpointKey, Lease


def member_name() -> str:
    """A unique member name that shows the host and the process."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


logger = logging.getLogger(__name__)

FENCE: Final = 0.8
"""After this part of `ttl_s` without a renewal, a member no longer relies on its leases."""
_BEAT: Final = 1 / 3
"""The part of `ttl_s` after which a member renews its lease."""
_SOON: Final = 1 / 15
"""The part of `ttl_s` after which to retry when the store was unavailable, or look again when partitions move."""


@dataclass(frozen=True, slots=True)
class View:
    """What a member last saw of its group."""

    members: tuple[str, ...] = ()
    """The owners that are alive, including itself, in order."""
    leases: Mapping[int, Lease] = field(default_factory=dict)
    """The lease of each partition that ever had one."""
    dead: frozenset[str] = frozenset()
    """Owners of leases without a heartbeat for long enough."""

    def is_free(self, partition: int) -> bool:
        """Whether it may be claimed: never claimed, released, or its owner is dead."""
        lease = self.leases.get(partition)
        return lease is None or not lease.owner or lease.owner in self.dead


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member's state in its group. Replaced as a whole, so that every thread sees consistent parts."""

    owner: str = ""
    """The member's name in leases, with a suffix that changes each time it joins, so that it is not mistaken for an
    earlier run."""
    generation: int = 0
    """Grows when others may have considered the member dead: what it held before is no longer its own."""
    renewed_s: float = float("-inf")
    """When the last successful renewal started."""
    view: View = View()
    changes: int = 0
    """How many changes of its own the member had made when the look that gave this view started."""
    superseded: bool = False
    """Another process has joined under the same name. This is final."""


class Watch:
    """When each owner last sent a heartbeat, by the observer's clock.

    A look takes time, and shows the state at some moment between its start and its end: a change counts from the end,
    and an unchanged lease is known to be unchanged only until the start.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._seen: dict[str, Lease] = {}
        self._heard_s: dict[str, float] = {}
        self._began_s = float("-inf")

    def saw(self, leases: Sequence[Lease], began_s: float, ended_s: float) -> frozenset[str]:
        """Take all leases of the group as a look showed them. Returns the dead owners."""
        for lease in leases:
            if lease.owner and self._seen.get(lease.name) != lease:
                self._heard_s[lease.owner] = ended_s
        self._seen = {lease.name: lease for lease in leases}
        self._began_s = began_s
        owners = {lease.owner for lease in leases}
        self._heard_s = {owner: heard_s for owner, heard_s in self._heard_s.items() if owner in owners}
        return frozenset(owner for owner, heard_s in self._heard_s.items() if began_s - heard_s >= self._ttl_s)

    def next_death_s(self) -> float | None:
        """When the next living owner will count as dead if it sends no heartbeat."""
        deaths = (heard_s + self._ttl_s for heard_s in self._heard_s.values())
        return min((death_s for death_s in deaths if death_s > self._began_s), default=None)


class Membership:
    """One member of a group on one topic. Without a thread: call `step` whenever it says so.

    `step` is for one thread; `state`, `is_fresh` and `fresh_for_s` are thread-safe.
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
        self.state = MemberState()
        self.unsettled = False
        """Partitions are about to move, so look again soon. Set by the holder of the partitions."""
        self.changes = 0
        """Counts the changes made by the holder of the partitions: an earlier view is out of date."""
        self._random = chance or random.Random()
        self._watch = Watch(ttl_s)
        self._lease: Lease | None = None
        self._beat_due_s = float("-inf")
        self._name = f"{self._prefix}:{quote(member, safe=' /@+,=()[]')}"

    @property
    def owner(self) -> str:
        return self.state.owner or self._self

    @property
    def fence_s(self) -> float:
        return self.ttl_s * FENCE

    def fresh_for_s(self) -> float:
        """How long its leases stay valid without another renewal; negative: no longer."""
        return self.state.renewed_s + self.fence_s - self.clock.monotonic_s()

    def key(self, partition: int) -> CheckpointKey:
        return CheckpointKey(self.group, self.topic, partition)

    def is_same_member(self, owner: str) -> bool:
        """Whether this owner is this member, or an earlier run of it."""
        return owner.rpartition("/")[0] == self.member

    def step(self) -> float:
        """Send a heartbeat if due, look at the others, and return in how many seconds to call again.

        StoreUnavailableError: call again after `retry_s`.
        """
        if self.state.superseded:
            return self.ttl_s
        if self.clock.monotonic_s() >= self._beat_due_s:
            self._beat()
        self._look()
        return self._pause_s()

    def retry_s(self) -> float:
        """When to call `step` again after the store was unavailable."""
        return self.ttl_s * _SOON * (1 + self._random.random())

    def leave(self) -> None:
        """Leave the group. Partitions must have been released before."""
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
            except FencedError:  # considered dead and removed, or superseded by a process of the same name
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
        if self.state.generation and seen is not None and seen.owner and not self._is_self(seen.owner):
            self._superseded()
            return began_s
        self._joins += 1
        owner = f"{self._self}.{self._joins}"
        self._lease = self.store.claim(self.group, self._name, owner, seen)
        if self._lease is not None:
            self.state = MemberState(owner, self.state.generation + 1)
        return began_s

    def _is_self(self, owner: str) -> bool:
        return owner.rpartition(".")[0] == self._self

    def _renewed(self, began_s: float) -> None:
        before = self.state
        # Known only now: if it counted as dead until now, others may be about to take what it held.
        broken = self.clock.monotonic_s() - before.renewed_s >= self.fence_s
        generation = before.generation + 1 if broken and before.renewed_s > float("-inf") else before.generation
        self.state = replace(before, generation=generation, renewed_s=began_s)
        self._beat_due_s = began_s + self.ttl_s * _BEAT * (1 - 0.2 * self._random.random())

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
        self.state = replace(self.state, view=view, changes=changes)
        self._forget_the_gone(leases, dead)

    def _superseded(self) -> None:
        self._lease = None
        self._break()
        self.state = replace(self.state, superseded=True)

    def _break(self) -> None:
        """Give up what was held."""
        self.state = replace(self.state, generation=self.state.generation + 1, renewed_s=float("-inf"))

    def _forget_the_gone(self, leases: Sequence[Lease], dead: frozenset[str]) -> None:
        for lease in leases:
            is_member = lease.name.rpartition(":")[0] == self._prefix
            if is_member and lease.name != self._name and (not lease.owner or lease.owner in dead):
                if lease.owner:
                    logger.info("%s of group %r is dead", lease.owner, self.group)
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
