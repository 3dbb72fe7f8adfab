"""Membership in a lease group: this member's heartbeat, and its view of the others.

A group has one lease for each of its members on a topic, which that member renews, and one for each partition, which
says who may write its checkpoint. Wall clocks are never compared. A member counts as dead for another one when none of
its leases has changed for `ttl_s` by the observer's clock. It considers itself dead earlier, after `FENCE` of that time
since the start of its last successful renewal, so it has stopped before others take over, provided that clocks run at
the same speed within that margin.

Only the member's own lease is renewed, however many partitions it has. A look reads the leases of the members. Those of
the partitions, of which there may be many more, are read only while they may move: after members came, died or left,
until the group is balanced, and now and then.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
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
_ALL: Final = 6
"""After this many `ttl_s` a member reads the leases of the partitions even if nothing seems to have changed."""
_CROWD: Final = 100
"""In larger groups, members look again later while partitions move: as many looks for all of them together."""
SOON: Final = 1 / 15
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


@dataclass(frozen=True, slots=True)
class _Look:
    """The leases of one kind, and when they were read."""

    leases: Mapping[str, Lease]
    """By name."""
    changed: Sequence[Lease]
    """Members that have changed or appeared since the last look."""
    owners: Set[str]
    began_s: float


class Watch:
    """When each owner last sent a heartbeat, by the observer's clock.

    A look takes time, and shows the state at some moment between its start and its end: a change counts from the end,
    and an unchanged lease is known to be unchanged only until the start.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._looks: dict[str, _Look] = {}
        self._heard_s: dict[str, float] = {}
        self._began_s = float("-inf")

    def saw(self, leases: Sequence[Lease], began_s: float, ended_s: float, kind: str = "") -> frozenset[str]:
        """Take all leases of a kind as a look showed them. Returns the dead owners of leases of all kinds."""
        before = self._looks[kind].leases if kind in self._looks else {}
        now, changed = dict[str, Lease](), list[Lease]()
        for lease in leases:
            known = before.get(lease.name)
            if known is lease or known == lease:
                now[lease.name] = known  # the same object, with which later comparisons are quick
                continue
            now[lease.name] = lease
            changed.append(lease)
            if lease.owner:
                self._heard_s[lease.owner] = ended_s
        self._looks[kind] = _Look(now, changed, {lease.owner for lease in leases}, began_s)
        self._began_s = began_s
        return frozenset(self._dead())

    def last(self, kind: str) -> _Look:
        """The last look at this kind."""
        return self._looks[kind]

    def _dead(self) -> Iterator[str]:
        """Forget owners without a lease, and give those without a sign of life until the last look that showed them."""
        looks = sorted(self._looks.values(), key=lambda look: look.began_s, reverse=True)
        for owner, heard_s in list(self._heard_s.items()):
            began_s = next((look.began_s for look in looks if owner in look.owners), None)
            if began_s is None:
                del self._heard_s[owner]
            elif began_s - heard_s >= self._ttl_s:
                yield owner

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
        self.balanced: View | None = None
        """The view in which every member has its share of the partitions. Set by the holder of the partitions."""
        self.changes = 0
        """Counts the changes made by the holder of the partitions: an earlier view is out of date."""
        self._random = chance or random.Random()
        self._watch = Watch(ttl_s)
        self._lease: Lease | None = None
        self._beat_due_s = float("-inf")
        self._all_due_s = float("-inf")
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
        return self.ttl_s * SOON * (1 + self._random.random())

    def leave(self) -> None:
        """Leave the group. Partitions must have been released before."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        self.store.release(lease)
        for left in self.store.leases(self.group, prefix=self._name):
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
        alike = self.store.leases(self.group, prefix=self._name)
        seen = next((lease for lease in alike if lease.name == self._name), None)
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
        leases = [lease for lease in self._of_topic("member") if lease.owner or lease.name != self._name]
        dead = self._watch.saw(leases, began_s, self.clock.monotonic_s(), "member") - {self.owner}
        for lease in leases:
            if lease.name == self._name and self._lease is not None and not self._is_self(lease.owner):
                self._superseded()
        members = self._living(leases, dead)
        view = self.state.view
        if not self._is_quiet(view, changes) or (members, dead) != (view.members, view.dead):
            began_s = self.clock.monotonic_s()
            claimed = self._of_topic("partition")
            dead = self._watch.saw(claimed, began_s, self.clock.monotonic_s(), "partition") - {self.owner}
            view = View(self._living(leases, dead), self._by_partition(self._watch.last("partition")), dead)
            self._all_due_s = began_s + _ALL * self.ttl_s * (1 - 0.2 * self._random.random())
            self.state = replace(self.state, view=view, changes=changes)
        self._forget_the_gone(leases, dead)

    def _of_topic(self, kind: str) -> Sequence[Lease]:
        """The leases of members or partitions. A topic may have a colon in its name, so others may begin alike."""
        prefix = f"{kind}:{self.topic}:"
        return [each for each in self.store.leases(self.group, prefix=prefix) if ":" not in each.name[len(prefix) :]]

    def _by_partition(self, look: _Look) -> Mapping[int, Lease]:
        """The leases of this look by partition. Few differ from those of the view before."""
        found = {**self.state.view.leases, **_numbered(look.changed)}
        return found if len(found) == len(look.leases) else _numbered(look.leases.values())

    def _living(self, members: Sequence[Lease], dead: frozenset[str]) -> tuple[str, ...]:
        return tuple(sorted(({lease.owner for lease in members if lease.owner} - dead) | {self.owner}))

    def _is_quiet(self, view: View, changes: int) -> bool:
        """Whether no partition may move while the members stay as they are in this view."""
        return (
            view is self.balanced
            and not self.unsettled
            and changes == self.state.changes
            and self.clock.monotonic_s() < self._all_due_s
        )

    def _superseded(self) -> None:
        self._lease = None
        self._break()
        self.state = replace(self.state, superseded=True)

    def _break(self) -> None:
        """Give up what was held."""
        self.state = replace(self.state, generation=self.state.generation + 1, renewed_s=float("-inf"))

    def _forget_the_gone(self, leases: Sequence[Lease], dead: frozenset[str]) -> None:
        for lease in leases:
            if lease.name != self._name and (not lease.owner or lease.owner in dead):
                if lease.owner:
                    logger.info("%s of group %r is dead", lease.owner, self.group)
                self.store.forget_lease(lease)

    def _pause_s(self) -> float:
        now_s = self.clock.monotonic_s()
        times_s = [self._beat_due_s]
        if self.unsettled:
            crowd = max(1.0, len(self.state.view.members) / _CROWD)
            times_s.append(now_s + self.ttl_s * SOON * crowd)
        death_s = self._watch.next_death_s()
        if death_s is not None:
            times_s.append(death_s)
        return max(0.0, min(times_s) - now_s)


def _numbered(leases: Iterable[Lease]) -> dict[int, Lease]:
    return {int(lease.name.rpartition(":")[2]): lease for lease in leases}
