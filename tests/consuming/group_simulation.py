"""A group whose members, threads, clock and store are in the hands of one seeded random generator.

Everything runs in one thread. Each call to the store is a moment at which anything else may happen first: other
members, the other thread of the same member, time passing, as when a process is stopped or a network is slow. So a
member may be stopped between any two of its requests, and inside of one, before or after it has taken effect.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from penstock.abc import CheckpointStore
from penstock.consuming.lease_groups.held_partitions import HeldPartitions
from penstock.consuming.lease_groups.membership import Membership
from penstock.errors import FencedError, StoreUnavailableError
from penstock.model import Batch, Change, Checkpoint, CheckpointKey, Lease, Pointer
from penstock.testing.clock import VirtualClock

TTL_S = 10.0
GROUP = "billing"
TOPIC = "orders"

Answer = TypeVar("Answer")


class Killed(BaseException):
    """The process has ended in the middle of what it did."""


class NoFeed:
    """A feed of nothing, which remembers which partitions it was asked for."""

    def __init__(self) -> None:
        self.partitions: set[int] = set()

    def add(self, partition: int, start: Pointer) -> None:
        assert partition not in self.partitions
        self.partitions.add(partition)

    def remove(self, partition: int) -> None:
        self.partitions.remove(partition)

    def pause(self, partition: int) -> None: ...

    def resume(self, partition: int) -> None: ...

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        return []

    def wake(self) -> None: ...

    def close(self) -> None: ...


class DisturbedStore:
    """The leases of a store, as one member reaches them: through a network on which anything may happen."""

    def __init__(self, member: Member, world: World) -> None:
        self._store = world.store
        self._disturb = member.disturb
        self._world = world

    def _call(self, call: Callable[[], Answer]) -> Answer:
        self._disturb()
        self._maybe_away()
        answer = call()
        self._disturb()
        self._maybe_away()
        return answer

    def _maybe_away(self) -> None:
        if self._world.store_away or self._world.chance.random() < self._world.fault_rate:
            raise StoreUnavailableError("the network is cut")

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        def call() -> Lease | None:
            lease = self._store.claim(group, name, owner, seen)
            if lease is not None and name.startswith("partition:"):
                self._world.claimed(int(name.rpartition(":")[2]), lease)
            return lease

        return self._call(call)

    def renew(self, lease: Lease) -> Lease:
        return self._call(lambda: self._store.renew(lease))

    def release(self, lease: Lease) -> None:
        self._call(lambda: self._store.release(lease))

    def leases(self, group: str, prefix: str = "") -> Sequence[Lease]:
        return self._call(lambda: self._store.leases(group, prefix))

    def forget_lease(self, lease: Lease) -> None:
        self._call(lambda: self._store.forget_lease(lease))


class Member:
    """A process with its two threads, and the listener that hears which partitions are its own."""

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        self.world = world
        self.name = name
        self.gone = False
        self.stopped_until_s = float("-inf")
        self.feed = NoFeed()
        self.leases: dict[int, Lease] = {}
        self.beating = self.polling = False
        self.next_beat_s = float("-inf")
        store: CheckpointStore = DisturbedStore(self, world)  # type: ignore[assignment]
        chance = random.Random(world.chance.random())
        self.membership = Membership(
            store, GROUP, TOPIC, name, TTL_S, world.clock, incarnation=str(incarnation), chance=chance
        )
        self.holder = HeldPartitions(self.membership, self, self.feed)

    def disturb(self) -> None:
        """Anything may happen now, also that this process is killed, or stopped for a while."""
        self.world.disturb()
        while not self.gone and not self.can_run:
            if self.world.depth < 4:
                self.world.disturb(1.0)
            else:
                self.world.clock.advance(1.0)
        if self.gone:
            raise Killed

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        self.disturb()
        for partition, lease in partitions.items():
            assert lease is not None
            assert partition not in self.leases
            self.leases[partition] = lease
        return dict.fromkeys(partitions, 0)

    def revoked(self, partitions: Sequence[int]) -> None:
        self.disturb()
        self.lost(partitions)

    def lost(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            del self.leases[partition]

    @property
    def can_run(self) -> bool:
        return not self.gone and self.world.clock.monotonic_s() >= self.stopped_until_s

    def beat(self) -> None:
        """What its heartbeat thread does, when it is time to."""
        now_s = self.world.clock.monotonic_s()
        if self.beating or not self.can_run or now_s < self.next_beat_s:
            return
        self.beating = True
        try:
            pause_s = self.membership.step()
        except StoreUnavailableError:
            pause_s = self.membership.retry_s()
        except Killed:
            return
        finally:
            self.beating = False
        self.next_beat_s = self.world.clock.monotonic_s() + pause_s

    def poll(self) -> None:
        """What its polling thread does, and then it handles a record of each of its partitions."""
        if self.polling or not self.can_run:
            return
        self.polling = True
        try:
            self.membership.unsettled = not self.holder.rebalance(self.world.partitions)
            if self.membership.changes != self.membership.state.changes:
                self.next_beat_s = float("-inf")
            if not self.gone and self.holder.check():
                assert self.feed.partitions == self.leases.keys() == set(self.holder.held)
                for partition, lease in self.leases.items():
                    self.world.handled(partition, lease)
        except Killed:
            return
        finally:
            self.polling = False

    def leave(self) -> None:
        if self.polling or self.beating or not self.can_run:
            return
        self.polling = self.beating = True
        try:
            self.holder.leave()
            self.membership.leave()
        except (StoreUnavailableError, Killed):
            pass  # others will find out
        self.gone = True


class World:
    """The group, what may happen to it, and what must never."""

    def __init__(self, store: CheckpointStore, seed: int, partitions: int) -> None:
        self.store = store
        self.chance = random.Random(seed)
        self.clock = VirtualClock()
        self.partitions = tuple(range(partitions))
        self.members: list[Member] = []
        self.incarnations = 0
        self.store_away = False
        self.fault_rate = 0.0
        self.disturbance = 0.0
        self.depth = 0
        self.newest: dict[int, Lease] = {}
        self.given: dict[int, list[Lease]] = {}
        self.handled_count = 0
        self.takeovers = 0

    def join(self, name: str) -> Member:
        self.incarnations += 1
        member = Member(self, name, self.incarnations)
        self.members.append(member)
        return member

    def claimed(self, partition: int, lease: Lease) -> None:
        before = self.newest.get(partition)
        assert lease.epoch == (before.epoch + 1 if before else 1), f"{lease} after {before}"
        self.takeovers += before is not None and before.owner != lease.owner
        self.newest[partition] = lease
        self.given.setdefault(partition, []).append(lease)

    def handled(self, partition: int, lease: Lease) -> None:
        """Somebody handles a record: nobody else may have claimed the partition since, nor believe that it is its own.

        All clocks are one, so this holds without any exception; clocks that differ in speed by less than the margin
        between fencing oneself and being taken for dead would do.
        """
        assert lease == self.newest[partition], f"{lease.owner} handles {partition} under {lease}, not {self.newest}"
        others = [
            member.membership.owner
            for member in self.members
            if not member.gone and partition in member.leases and member.holder.holds(partition)
        ]
        assert others == [lease.owner], f"{partition} is held by {others}"
        self.handled_count += 1

    def check_saves(self, partition: int) -> None:
        """Of all leases that were ever given for a partition, at most the newest can save."""
        key = CheckpointKey(GROUP, TOPIC, partition)
        accepted = []
        for lease in self.given.get(partition, ()):
            try:
                self.store.save(lease, key, Change(Checkpoint(0, 0)))
            except FencedError:
                continue
            accepted.append(lease)
        assert accepted in ([], [self.newest.get(partition)]), f"{accepted} could save, {self.newest.get(partition)}"

    def disturb(self, rate: float | None = None) -> None:
        """Anything else may happen now, before whoever called goes on."""
        if self.depth < 4 and self.chance.random() < (self.disturbance if rate is None else rate):
            self.depth += 1
            try:
                for _ in range(self.chance.randrange(1, 6)):
                    self.happen()
            finally:
                self.depth -= 1

    def happen(self) -> None:
        """One thing, chosen at random."""
        roll = self.chance.random()
        living = [member for member in self.members if not member.gone]
        if roll < 0.30:
            self.clock.advance(self.chance.choice((0.1, 0.7, TTL_S / 6, TTL_S / 3)))
        elif roll < 0.32:
            self.clock.advance(self.chance.uniform(0, 2 * TTL_S))
        elif roll < 0.345:
            self.change_membership(living)
        elif roll < 0.36 and living:
            self.chance.choice(living).stopped_until_s = self.clock.monotonic_s() + self.chance.uniform(0, 3 * TTL_S)
        elif roll < 0.365:
            self.store_away = not self.store_away
        elif roll < 0.37 and len(self.partitions) < 12:
            self.partitions = (*self.partitions, len(self.partitions))
        elif roll < 0.42 and self.partitions:
            self.check_saves(self.chance.choice(self.partitions))
        elif living:
            member = self.chance.choice(living)
            self.chance.choice((member.beat, member.poll))()

    def change_membership(self, living: Sequence[Member]) -> None:
        roll = self.chance.random()
        if roll < 0.45 and len(living) < 6:
            gone = [member.name for member in self.members if member.gone]
            names = {member.name for member in living}
            back = sorted(set(gone) - names)
            self.join(self.chance.choice(back) if back and roll < 0.2 else f"w{self.incarnations}")
        elif living and roll < 0.75:
            self.chance.choice(living).gone = True  # kill -9
        elif living:
            self.chance.choice(living).leave()

    def calm(self) -> None:
        """No more disturbance; everybody who is left goes on."""
        self.store_away, self.fault_rate, self.disturbance = False, 0.0, 0.0
        for member in self.members:
            member.stopped_until_s = float("-inf")

    def run_for(self, duration_s: float, step_s: float = 0.1) -> None:
        until_s = self.clock.monotonic_s() + duration_s
        while self.clock.monotonic_s() < until_s:
            self.clock.advance(step_s)
            for member in self.members:
                member.beat()
                member.poll()

    def shares(self) -> dict[str, set[int]]:
        return {member.name: set(member.holder.held) for member in self.members if not member.gone}

    def is_balanced(self) -> bool:
        shares = list(self.shares().values())
        held = sorted(partition for share in shares for partition in share)
        sizes = {len(share) for share in shares}
        return held == list(self.partitions) and max(sizes) - min(sizes) <= 1
