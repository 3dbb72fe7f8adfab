"""Many consumers, a broker that is killed, and a disk that fails: a world that runs by itself from a seed.

The consumers do what real ones do: join, let their leader assign, heartbeat, commit, join again when told to, and start
over when they are fenced or forgotten. The simulation notes what each was answered and checks it against all others.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from penstock.broker.contracts import StoredBatch, Timer
from penstock.broker.errors import ProtocolError
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.groups.messages import JoinAnswer, LeavingMember, SyncRequest
from penstock.broker.groups.settings import GroupSettings
from penstock.errors import StorageError
from tests.broker.groups.doubles import (
    MemoryTopic,
    VirtualClock,
    assigned_partitions,
    assignment,
    commit_request,
    join_request,
    protocols,
    settle,
)

PARTITIONS = 7
HEARTBEAT_MS = 2_000
SESSION_MS = 7_000
REBALANCE_MS = 15_000
REQUEST_TIMEOUT_MS = 25_000

Answer = TypeVar("Answer")


class DisconnectedError(Exception):
    """The request got no answer."""


class OneLife:
    """The clock and the topic of one run of the broker. Once it is over, nothing that it does has any effect."""

    def __init__(self, clock: VirtualClock, topic: MemoryTopic) -> None:
        self.partition_count = topic.partition_count
        self._clock = clock
        self._topic = topic
        self.is_over = False

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_later(delay_s, lambda: None if self.is_over else callback())

    async def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        if not self.is_over:
            await self._topic.append(partition, records, producer_id=producer_id, producer_epoch=producer_epoch)
        if self.is_over:
            await asyncio.get_running_loop().create_future()

    def replay(self) -> Iterator[StoredBatch]:
        return self._topic.replay()


class Simulation:
    group = "g"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = VirtualClock()
        self.topic = MemoryTopic(seed=seed)
        self.settings = GroupSettings(initial_rebalance_delay_ms=self.random.choice([0, 0, 500]))
        self.consumers: dict[str, Consumer] = {}
        self.requests: set[asyncio.Task[Any]] = set()
        self.owned: dict[int, dict[str, bytes]] = defaultdict(dict)
        """By generation and member id: the assignment that was answered."""
        self.acknowledged: dict[int, int] = defaultdict(lambda: -1)
        """By partition: the latest offset whose commit was answered."""
        self.next_offset = 0
        self.latest_generation = 0
        self._start_broker()

    def _start_broker(self) -> None:
        self.life = OneLife(self.clock, self.topic)
        self.groups = GroupCoordinator(
            self.life, self.life, self.settings, new_id=lambda: f"{self.random.getrandbits(40):x}"
        )
        self.groups.load()
        self.check_offsets()

    async def restart_broker(self, *, cleanly: bool) -> None:
        if cleanly:
            await self.groups.close()
        self.life.is_over = True
        for request in list(self.requests):
            request.cancel()
        await settle()
        self._start_broker()

    async def request(self, ask: Callable[[GroupCoordinator], Awaitable[Answer]]) -> Answer:
        """Ask the broker that runs now. Cancelling the asker cuts the connection."""

        async def run() -> Answer:
            return await ask(self.groups)

        task = asyncio.get_running_loop().create_task(run())
        self.requests.add(task)

        def give_up() -> None:
            task.cancel()

        timer = self.clock.call_later(REQUEST_TIMEOUT_MS / 1000, give_up)
        try:
            return await task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is not None and me.cancelling():
                raise
            raise DisconnectedError from None
        finally:
            timer.cancel()
            self.requests.discard(task)

    async def sleep(self, delay_ms: int) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.clock.call_later(delay_ms / 1000, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def start(self, name: str, *, static: bool) -> None:
        self.consumers[name] = Consumer(self, name, name if static else None)

    def note_assignment(self, generation: int, member_id: str, answered: bytes) -> None:
        known = self.owned[generation].setdefault(member_id, answered)
        assert known == answered, f"seed {self.seed}: two assignments for {member_id} in generation {generation}"
        claimed = [partition for each in self.owned[generation].values() for partition in assigned_partitions(each)]
        assert len(claimed) == len(set(claimed)), f"seed {self.seed}: a partition twice in generation {generation}"

    def check_offsets(self) -> None:
        found = self.groups.offsets(self.group)
        for partition, offset in self.acknowledged.items():
            committed = found.get(("t", partition))
            assert committed is not None, f"seed {self.seed}: the offset of partition {partition} is lost"
            assert committed.offset >= offset, f"seed {self.seed}: the offset of partition {partition} went back"

    def check_generation(self) -> None:
        described = self.groups.describe(self.group)
        if described is not None:
            members = {member.member_id for member in described.members.values()}
            assert described.leader_id in members or not members, f"seed {self.seed}: nobody leads"


class Consumer:
    def __init__(self, simulation: Simulation, name: str, instance_id: str | None) -> None:
        self.simulation = simulation
        self.name = name
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.partitions: tuple[tuple[str, int], ...] = ()
        self.is_stable = False
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def leave(self) -> None:
        """Go in good order."""
        await self.die()
        if self.member_id:
            try:
                await self.simulation.request(
                    lambda groups: groups.leave(
                        self.simulation.group, [LeavingMember(self.member_id, self.instance_id)]
                    )
                )
            except (DisconnectedError, ProtocolError):
                return

    async def die(self) -> None:
        """Go without a word; the connection breaks."""
        self.task.cancel()
        await asyncio.wait([self.task])

    async def _run(self) -> None:
        while True:  # ends when the task is cancelled
            self.is_stable = False
            try:
                if await self._take_part():
                    await self._work()
            except DisconnectedError:
                await self.simulation.sleep(100)
            except ProtocolError as error:
                self._react(error.code)
                await self.simulation.sleep(50)

    def _react(self, code: ErrorCode) -> None:
        if code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id, ErrorCode.group_id_not_found):
            self.member_id, self.generation = "", -1

    async def _take_part(self) -> bool:
        """Join and sync; False when it has to be tried again."""
        joined = await self._join()
        if joined.error is not ErrorCode.none:
            if joined.error is ErrorCode.member_id_required:
                self.member_id = joined.member_id
                return False
            raise ProtocolError(joined.error)
        self.member_id, self.generation = joined.member_id, joined.generation
        assignments = self._assign(joined)
        synced = await self.simulation.request(
            lambda groups: groups.sync(
                SyncRequest(
                    group_id=self.simulation.group,
                    member_id=self.member_id,
                    generation=self.generation,
                    instance_id=self.instance_id,
                    assignments=assignments,
                )
            )
        )
        if synced.error is not ErrorCode.none:
            raise ProtocolError(synced.error)
        self.simulation.note_assignment(self.generation, self.instance_id or self.member_id, synced.assignment)
        self.partitions = assigned_partitions(synced.assignment)
        self.is_stable = True
        return True

    async def _join(self) -> JoinAnswer:
        request = join_request(
            self.simulation.group,
            self.member_id,
            instance_id=self.instance_id,
            client_id=self.name,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocols=protocols("range", "sticky"),
        )
        return await self.simulation.request(lambda groups: groups.join(request))

    def _assign(self, joined: JoinAnswer) -> dict[str, bytes]:
        if joined.leader != joined.member_id or joined.skip_assignment:
            return {}
        members = [member.member_id for member in joined.members]
        self.simulation.random.shuffle(members)
        return {
            member_id: assignment(*(("t", partition) for partition in range(place, PARTITIONS, len(members))))
            for place, member_id in enumerate(members)
        }

    async def _work(self) -> None:
        while True:  # ends with the answer that says so, or when the task is cancelled
            await self.simulation.sleep(self.simulation.random.randrange(HEARTBEAT_MS // 2, HEARTBEAT_MS))
            await self.simulation.request(self._heartbeat)
            for _, partition in self.partitions:
                await self._commit(partition)

    async def _heartbeat(self, groups: GroupCoordinator) -> None:
        groups.heartbeat(self.simulation.group, self.member_id, self.generation, self.instance_id)

    async def _commit(self, partition: int) -> None:
        """Offsets come from one counter, so whichever is committed later is also larger."""
        self.simulation.next_offset += 1
        offset = self.simulation.next_offset
        request = commit_request(
            self.simulation.group,
            offset,
            partition,
            member_id=self.member_id,
            generation=self.generation,
            instance_id=self.instance_id,
        )
        answers = await self.simulation.request(lambda groups: groups.commit(request))
        if answers["t", partition] is ErrorCode.none:
            self.simulation.acknowledged[partition] = max(self.simulation.acknowledged[partition], offset)


def disk_failure() -> StorageError:
    return StorageError("the disk is full")
