"""Large groups, simulated: time to stable after joins and deaths, the load that they make, and their fairness.

Members run the real code on a virtual clock. By leases: `LeaseGroupFeed` on a table of leases in memory, each member
with its threads, which are greenlets here: one scheduler runs them in the order of virtual time, so a run depends on
its seed alone. A request to the store takes `REQUEST_S`, and `LEASE_S` more for each lease in its answer. By Kafka's
groups: the broker's `GroupCoordinator`, with clients that join, heartbeat and assign as librdkafka does. The broker has
the classic protocol only, not that of KIP-848.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import greenlet  # type: ignore[import-untyped]
from kio.schema.errors import ErrorCode

from benchmarks.report import Figure, Report
from penstock.abc import Feature, Features
from penstock.broker.errors import ProtocolError
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.groups.group import GroupState
from penstock.broker.groups.messages import JoinAnswer, SyncRequest
from penstock.broker.groups.settings import GroupSettings
from penstock.consuming.lease_groups import group as lease_group
from penstock.consuming.lease_groups.group import LeaseGroupFeed
from penstock.consuming.lease_groups.held_partitions import assign
from penstock.errors import FencedError
from penstock.model import Batch, Lease, Pointer
from penstock.testing.clock import VirtualClock
from penstock.testing.interception import InterceptedStore
from tests.broker.groups.doubles import MemoryTopic, assigned_partitions, assignment, join_request, protocols
from tests.broker.groups.doubles import VirtualClock as TimerClock

MEMBERS: Final = 1_000
PARTITIONS: Final = 10_000
PLAIN_SCALE: Final = 0.25
"""Of a run of all benchmarks: the time that the simulation of leases takes grows with the square of the members."""
SEED: Final = 14
TTL_S: Final = 10.0
"""The default of lease groups."""
REQUEST_S: Final = 0.001
LEASE_S: Final = 0.000_001
STARTING_S: Final = 10.0
"""Members start within this time, as in a deployment."""
STEADY_S: Final = 2 * TTL_S
HEARTBEAT_S: Final = 3.0
SESSION_S: Final = 45.0
"""Of Kafka's clients, by default."""
REBALANCE_S: Final = 300.0
"""max.poll.interval.ms of Kafka's clients, by default."""
NETWORK_MS: Final = 1
SKEW: Final = 0.5
"""The exponent of Zipf's law, by which the records are spread over the partitions."""


@dataclass(slots=True)
class Phase:
    """What happened from one change of the group until it was stable."""

    name: str
    stable_s: float
    """Since the change began."""
    operations_per_s: float
    """On average, until it was stable."""
    peak_per_s: float
    """In the busiest second."""
    leases_per_s: float
    """Read from the store, on average; 0 for Kafka's groups."""
    moved: int
    """Partitions that got another owner, or their first one."""


@dataclass(slots=True)
class Outcome:
    phases: list[Phase]
    shares: list[Sequence[int]]
    """The partitions of each member in the end."""
    real_s: float

    @property
    def sizes(self) -> list[int]:
        return [len(share) for share in self.shares]

    def busiest(self, seed: int) -> tuple[float, float]:
        """The load of the busiest member with partitions of unequal rates, and of the busiest partition alone, which
        no assignment can divide. Both are multiples of the average load of a member."""
        chance = random.Random(seed)
        rates: list[float] = [1 / rank**SKEW for rank in range(1, sum(self.sizes) + 1)]
        chance.shuffle(rates)
        loads = [sum(rates[partition] for partition in share) for share in self.shares]
        average = sum(loads) / len(loads)
        return max(loads) / average, max(rates) / average

    def __getitem__(self, name: str) -> Phase:
        return next(phase for phase in self.phases if phase.name == name)


class Scheduler:
    """Runs greenlets in the order of the times for which they wait."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self._hub = greenlet.getcurrent()
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Waiting]] = []

    def now_s(self) -> float:
        return self.clock.monotonic_s()

    def start(self, run: Callable[[], object], after_s: float = 0.0) -> None:
        self._push(Waiting(greenlet.greenlet(run)), after_s)

    def wait(self, duration_s: float, on: Waiting | None = None) -> None:
        """Let others run for this long, or until `on` is woken."""
        waiting = on or Waiting()
        waiting.thread, waiting.woken = greenlet.getcurrent(), False
        self._push(waiting, duration_s)
        self._hub.switch()

    def stop(self) -> None:
        """Never let the current greenlet run again."""
        self._hub.switch()

    def wake(self, waiting: Waiting) -> None:
        if waiting.thread is not None and not waiting.woken:
            waiting.woken = True
            again = Waiting(waiting.thread)
            waiting.thread = None
            self._push(again, 0.0)

    def run_until(self, end_s: float) -> None:
        while self._due and self._due[0][0] <= end_s:
            due_s, _, waiting = heapq.heappop(self._due)
            thread, waiting.thread = waiting.thread, None
            if thread is None or thread.dead:
                continue
            self.clock.advance(max(0.0, due_s - self.now_s()))
            thread.switch()
        self.clock.advance(max(0.0, end_s - self.now_s()))

    def _push(self, waiting: Waiting, after_s: float) -> None:
        heapq.heappush(self._due, (self.now_s() + max(after_s, 1e-6), next(self._numbers), waiting))


@dataclass(slots=True, eq=False)
class Waiting:
    thread: Any = None
    woken: bool = False


class Load:
    """Requests, counted by the second in which they came."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.by_second = Counter[int]()
        self.kinds = Counter[str]()
        self.leases = 0

    def count(self, kind: str) -> None:
        self.by_second[int(self._now_s())] += 1
        self.kinds[kind] += 1

    def clear(self) -> None:
        self.by_second.clear()
        self.kinds.clear()
        self.leases = 0


class LeaseTable:
    """The leases of a checkpoint store, in memory. A request lets time pass, before and after it takes effect."""

    features: Features = frozenset({Feature.LEASES})

    def __init__(self, scheduler: Scheduler, load: Load) -> None:
        self._scheduler = scheduler
        self._load = load
        self._tables: dict[str, dict[str, Lease]] = {"member": {}, "partition": {}}
        self.moved = 0

    def _table(self, name: str) -> dict[str, Lease]:
        return self._tables[name.partition(":")[0]]

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        self._arrive("claim")
        lease, table = None, self._table(name)
        if table.get(name) == seen:
            lease = table[name] = Lease(group, name, owner, 1 if seen is None else seen.epoch + 1, 0)
            self.moved += name.startswith("partition:")
        self._answer()
        return lease

    def renew(self, lease: Lease) -> Lease:
        self._arrive("renew")
        table = self._table(lease.name)
        now = table.get(lease.name)
        if now is None or (now.owner, now.epoch) != (lease.owner, lease.epoch):
            self._answer()
            raise FencedError(f"{lease} is {now}")
        table[lease.name] = now = Lease(lease.group, lease.name, lease.owner, lease.epoch, now.beat + 1)
        self._answer()
        return now

    def release(self, lease: Lease) -> None:
        self._arrive("release")
        table = self._table(lease.name)
        now = table.get(lease.name)
        if now is not None and (now.owner, now.epoch) == (lease.owner, lease.epoch):
            table[lease.name] = Lease(lease.group, lease.name, "", lease.epoch, now.beat)
        self._answer()

    def leases(self, group: str, prefix: str = "") -> Sequence[Lease]:
        self._arrive("leases")
        if prefix.count(":") == 2 and prefix.endswith(":"):  # all of a kind: there is one topic
            found = list(self._table(prefix).values())
        else:
            found = [lease for lease in self._table(prefix).values() if lease.name.startswith(prefix)]
        self._load.leases += len(found)
        self._answer(len(found))
        return found

    def forget_lease(self, lease: Lease) -> None:
        self._arrive("forget")
        table = self._table(lease.name)
        if table.get(lease.name) == lease:
            del table[lease.name]
        self._answer()

    def _arrive(self, kind: str) -> None:
        self._scheduler.wait(REQUEST_S / 2)
        self._load.count(kind)

    def _answer(self, leases: int = 0) -> None:
        self._scheduler.wait(REQUEST_S / 2 + leases * LEASE_S)


class QuietTopic:
    """A topic, and the feed of it, that never has a record."""

    topic = "orders"

    def __init__(self, scheduler: Scheduler, partitions: int, is_dead: Callable[[], bool]) -> None:
        self._scheduler = scheduler
        self._partitions = range(partitions)
        self._is_dead = is_dead
        self._waiting = Waiting()
        self._woken = False

    def partitions(self) -> Sequence[int]:
        return self._partitions

    def add(self, partition: int, start: Pointer) -> None: ...

    def remove(self, partition: int) -> None: ...

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        if not self._woken:
            self._scheduler.wait(wait_s, self._waiting)
        if self._is_dead():
            self._scheduler.stop()
        self._woken = False
        return []

    def wake(self) -> None:
        self._woken = True
        self._scheduler.wake(self._waiting)

    def close(self) -> None: ...


class LeaseMember:
    """A process with a `LeaseGroupFeed`."""

    def __init__(self, world: LeaseWorld, number: int) -> None:
        self.number = number
        self.is_dead = False
        self.feed: LeaseGroupFeed | None = None
        self._world = world

    def run(self) -> None:
        world = self._world
        topic: Any = QuietTopic(world.scheduler, world.partitions, lambda: self.is_dead)
        store: Any = InterceptedStore(world.store, self)  # type: ignore[arg-type]
        with world.as_member(self):
            self.feed = LeaseGroupFeed(
                topic, store, "group", self, member=f"m{self.number:05}", clock=world.scheduler.clock, feed=topic
            )
        while not self.is_dead:
            self.feed.poll(100, 3_600.0)

    def call(self, operation: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Every request to the store comes through here: a dead process makes none."""
        if self.is_dead:
            self._world.scheduler.stop()
        return function(*args, **kwargs)

    @property
    def held(self) -> Sequence[int]:
        return () if self.feed is None or self.is_dead else self.feed.held

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        return dict.fromkeys(partitions, 0)

    def revoked(self, partitions: Sequence[int]) -> None: ...

    def lost(self, partitions: Sequence[int]) -> None: ...


class LeaseWorld:
    """A lease group whose members and store share one virtual clock."""

    def __init__(self, partitions: int, seed: int) -> None:
        self.partitions = partitions
        self.chance = random.Random(seed)
        random.seed(seed)
        self.scheduler = Scheduler()
        self.load = Load(self.scheduler.now_s)
        self.store = LeaseTable(self.scheduler, self.load)
        self.members: list[LeaseMember] = []

    def as_member(self, member: LeaseMember) -> Any:
        """Threads that are made inside of it are greenlets of this member."""
        scheduler = self.scheduler

        class GreenThread:
            def __init__(self, name: str, clock: object, step: Callable[[], float | None]) -> None:
                self._step = step
                self._waiting = Waiting()
                self._hurried = False
                scheduler.start(self._run)

            def hurry(self) -> None:
                self._hurried = True
                scheduler.wake(self._waiting)

            def _run(self) -> None:
                while not member.is_dead and (pause_s := self._step()) is not None:
                    if not self._hurried:
                        scheduler.wait(pause_s, self._waiting)
                    self._hurried = False

        return mock.patch.object(lease_group, "_RepeatingThread", GreenThread)

    def start(self, count: int, within_s: float) -> None:
        for _ in range(count):
            member = LeaseMember(self, len(self.members))
            self.members.append(member)
            self.scheduler.start(member.run, self.chance.uniform(0, within_s))

    def kill(self, count: int) -> None:
        for member in self.chance.sample([each for each in self.members if not each.is_dead], count):
            member.is_dead = True

    def owners(self) -> Counter[int]:
        """How many living members hold each partition."""
        return Counter(partition for member in self.members for partition in member.held)

    def is_stable(self) -> bool:
        shares = self.shares()
        owners = self.owners()
        return len(owners) == self.partitions and max(owners.values()) == 1 and max(shares) - min(shares) <= 1

    def shares(self) -> list[int]:
        return [len(member.held) for member in self.members if not member.is_dead]

    def phase(self, name: str, least_s: float, most_s: float = 600.0) -> Phase:
        """Run until the group is stable, and `least_s` at least."""
        begin_s = self.scheduler.now_s()
        self.load.clear()
        self.store.moved = 0
        while self.scheduler.now_s() < begin_s + most_s:
            self.scheduler.run_until(self.scheduler.now_s() + 0.5)
            if self.scheduler.now_s() >= begin_s + least_s and self.is_stable():
                break
        else:
            raise AssertionError(f"{name}: not stable after {most_s:g} s: {Counter(self.shares())}")
        return phase_of(name, self.scheduler.now_s() - begin_s, self.load, self.store.moved)


def phase_of(name: str, took_s: float, load: Load, moved: int) -> Phase:
    total = sum(load.by_second.values())
    peak = max(load.by_second.values(), default=0)
    return Phase(name, took_s, total / took_s, peak, load.leases / took_s, moved)


def by_leases(members: int, partitions: int, seed: int) -> Outcome:
    """Everybody starts; then a tenth dies; then as many new ones join; then nothing happens."""
    began_s = time.perf_counter()
    world = LeaseWorld(partitions, seed)
    world.start(members, STARTING_S)
    phases = [world.phase("start", STARTING_S)]
    world.kill(members // 10)
    phases.append(world.phase("deaths", 0.5))
    world.start(members // 10, 1.0)
    phases.append(world.phase("joins", 1.0))
    phases.append(world.phase("steady", STEADY_S))
    shares = [member.held for member in world.members if not member.is_dead]
    assert world.is_stable(), "every partition has one owner"
    return Outcome(phases, shares, time.perf_counter() - began_s)


class KafkaClient:
    """A consumer with Kafka's classic protocol."""

    def __init__(self, world: KafkaWorld, number: int, after_ms: int) -> None:
        self.number = number
        self.member_id = ""
        self.generation = -1
        self.partitions: tuple[int, ...] = ()
        self._world = world
        self.task = asyncio.get_running_loop().create_task(self._run(after_ms))

    @property
    def is_dead(self) -> bool:
        return self.task.done()

    async def _run(self, after_ms: int) -> None:
        await self._world.sleep(after_ms)
        while True:  # ends when the task is cancelled
            try:
                await self._take_part()
                while True:
                    await self._world.sleep(round(HEARTBEAT_S * 1000))
                    await self._world.request("heartbeat", self._heartbeat)
            except ProtocolError as error:
                if error.code in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
                    self.generation = -1
                if error.code is ErrorCode.unknown_member_id:
                    self.member_id = ""

    async def _heartbeat(self, groups: GroupCoordinator) -> None:
        groups.heartbeat("g", self.member_id, self.generation)

    async def _take_part(self) -> None:
        joined = await self._join()
        if joined.error is ErrorCode.member_id_required:
            self.member_id = joined.member_id
            joined = await self._join()
        if joined.error is not ErrorCode.none:
            raise ProtocolError(joined.error)
        self.member_id = joined.member_id
        assignments: dict[str, bytes] = {}
        if joined.leader == joined.member_id and not joined.skip_assignment:
            assignments = self._world.assigned([member.member_id for member in joined.members])
        request = SyncRequest(
            group_id="g", member_id=self.member_id, generation=joined.generation, assignments=assignments
        )
        synced = await self._world.request("sync", lambda groups: groups.sync(request))
        if synced.error is not ErrorCode.none:
            raise ProtocolError(synced.error)
        self.generation = joined.generation
        self.partitions = tuple(partition for _, partition in assigned_partitions(synced.assignment))

    async def _join(self) -> JoinAnswer:
        request = join_request(
            "g",
            self.member_id,
            client_id=f"c{self.number}",
            session_timeout_ms=round(SESSION_S * 1000),
            rebalance_timeout_ms=round(REBALANCE_S * 1000),
            protocols=protocols("cooperative-sticky"),
        )
        joined: JoinAnswer = await self._world.request("join", lambda groups: groups.join(request))
        return joined


class KafkaWorld:
    """A group coordinator and its clients, on one virtual clock."""

    def __init__(self, partitions: int, seed: int) -> None:
        self.partitions = partitions
        self.chance = random.Random(seed)
        self.clock = TimerClock()
        ids = (f"id{number:06}" for number in itertools.count())
        self.groups = GroupCoordinator(
            MemoryTopic(seed=seed), self.clock, GroupSettings(max_size=10 * MEMBERS), new_id=lambda: next(ids)
        )
        self.groups.load()
        self.load = Load(self.clock.monotonic_s)
        self.clients: list[KafkaClient] = []
        self.owners: dict[int, str] = {}
        self.moved = 0

    async def sleep(self, milliseconds: int) -> None:
        over = asyncio.get_running_loop().create_future()
        self.clock.call_later(milliseconds / 1000, lambda: None if over.done() else over.set_result(None))
        await over

    async def request(self, kind: str, ask: Callable[[GroupCoordinator], Awaitable[Any]]) -> Any:
        self.load.count(kind)
        answer = await ask(self.groups)
        await self.sleep(NETWORK_MS)
        return answer

    def assigned(self, members: list[str]) -> dict[str, bytes]:
        """What the leader's assignor decides: equal numbers, and as few moves as these allow."""
        shares = assign(range(self.partitions), members, self.owners)
        owners = {partition: member for member, share in shares.items() for partition in share}
        self.moved += sum(self.owners.get(partition) != member for partition, member in owners.items())
        self.owners = owners
        return {member: assignment(*(("t", each) for each in sorted(share))) for member, share in shares.items()}

    def start(self, count: int, within_s: float) -> None:
        for _ in range(count):
            after_ms = round(self.chance.uniform(0, within_s) * 1000)
            self.clients.append(KafkaClient(self, len(self.clients), after_ms))

    def kill(self, count: int) -> None:
        for client in self.chance.sample([each for each in self.clients if not each.is_dead], count):
            client.task.cancel()

    def living(self) -> list[KafkaClient]:
        return [client for client in self.clients if not client.is_dead]

    def is_stable(self) -> bool:
        group = self.groups.describe("g")
        living = self.living()
        return (
            group is not None
            and group.state is GroupState.STABLE
            and len(group.members) == len(living)
            and all(client.generation == group.generation for client in living)
        )

    async def phase(self, name: str, least_s: float, most_s: float = 900.0) -> Phase:
        begin_s = self.clock.monotonic_s()
        self.load.clear()
        self.moved = 0
        while self.clock.monotonic_s() < begin_s + most_s:
            await self.clock.advance(500)
            if self.clock.monotonic_s() >= begin_s + least_s and self.is_stable():
                break
        else:
            raise AssertionError(f"{name}: not stable after {most_s:g} s")
        return phase_of(name, self.clock.monotonic_s() - begin_s, self.load, self.moved)


async def _by_kafka(members: int, partitions: int, seed: int) -> Outcome:
    began_s = time.perf_counter()
    world = KafkaWorld(partitions, seed)
    world.start(members, STARTING_S)
    phases = [await world.phase("start", STARTING_S)]
    world.kill(members // 10)
    phases.append(await world.phase("deaths", 0.5))
    world.start(members // 10, 1.0)
    phases.append(await world.phase("joins", 1.0))
    phases.append(await world.phase("steady", STEADY_S))
    shares: list[Sequence[int]] = [client.partitions for client in world.living()]
    held = Counter(partition for share in shares for partition in share)
    assert len(held) == partitions, "every partition has an owner"
    assert max(held.values()) == 1, "no partition has two"
    for client in world.living():
        client.task.cancel()
    return Outcome(phases, shares, time.perf_counter() - began_s)


def by_kafka(members: int, partitions: int, seed: int) -> Outcome:
    """The same as `by_leases`, with Kafka's groups."""
    return asyncio.run(_by_kafka(members, partitions, seed))


WAYS: Final[Mapping[str, tuple[str, Callable[[int, int, int], Outcome]]]] = {
    "groups-leases": ("leases", by_leases),
    "groups-kafka": ("Kafka's groups", by_kafka),
}
"""By the name on the command line: what it is called in the report, and the simulation."""


def run(report: Report, say: Callable[[str], None], *, scale: float, ways: Sequence[str] = tuple(WAYS)) -> None:
    members, partitions = max(20, round(MEMBERS * scale)), max(200, round(PARTITIONS * scale))
    report.notes.append(
        f"groups: {members:,} members x {partitions:,} partitions, simulated on a virtual clock, seed {SEED}. All "
        f"start within {STARTING_S:g} s; a tenth is killed; as many join within 1 s; then {STEADY_S:g} s without "
        f"changes. Leases: ttl {TTL_S:g} s, {REQUEST_S * 1000:g} ms a request. Kafka: classic protocol, heartbeats "
        f"every {HEARTBEAT_S:g} s, session timeout {SESSION_S:g} s"
    )
    for what, simulate in map(WAYS.__getitem__, ways):
        outcome = simulate(members, partitions, SEED)
        figures = []
        for phase in outcome.phases:
            if phase.name != "steady":
                figures.append(Figure(f"{what}, {phase.name}: stable after", phase.stable_s, "s"))
                figures.append(Figure(f"{what}, {phase.name}: partitions moved", phase.moved, "partitions"))
            figures.append(Figure(f"{what}, {phase.name}: requests", phase.operations_per_s, "a second"))
            figures.append(Figure(f"{what}, {phase.name}: requests in the busiest second", phase.peak_per_s, ""))
            if phase.leases_per_s:
                figures.append(Figure(f"{what}, {phase.name}: leases read", phase.leases_per_s, "a second"))
        spread = max(outcome.sizes) - min(outcome.sizes)
        figures.append(Figure(f"{what}: most minus fewest partitions of a member", spread, "", 1, lower_is_better=True))
        for whose, load in zip(("member", "partition alone"), outcome.busiest(SEED), strict=True):
            figures.append(Figure(f"{what}, rates by Zipf's law: load of the busiest {whose}", load, "x average"))
        figures.append(Figure(f"{what}: the simulation took", outcome.real_s, "s"))
        for figure in figures:
            say("  " + figure.line())
        report.figures.extend(figures)
