"""A world in memory for the group coordinator: a clock that is moved by hand, and a topic that outlives crashes."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from kio.schema.errors import ErrorCode

from penstock.broker.contracts import StoredBatch, Timer, internal_partition
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.groups.messages import (
    CommitRequest,
    JoinAnswer,
    JoinRequest,
    MemberProtocol,
    OffsetToCommit,
    SyncAnswer,
    SyncRequest,
)
from penstock.broker.groups.offsets import TopicPartition
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.stored_fields import FieldReader

START_MS = 1_700_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def in_a_loop(test: Callable[Arguments, Awaitable[None]]) -> Callable[Arguments, None]:
    """Run an async test on an event loop of its own."""

    @wraps(test)
    def run(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        async def main() -> None:
            await test(*arguments, **named)

        asyncio.run(main())

    return run


async def settle() -> None:
    """Let everything go on that waits for nothing but its turn."""
    for _ in range(30):
        await asyncio.sleep(0)


class VirtualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    def __init__(self) -> None:
        self.now_ms = 0
        self.armed = 0
        self._numbers = itertools.count()
        self._timers: list[tuple[int, int, VirtualTimer]] = []

    def monotonic_s(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return START_MS + self.now_ms

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self.armed += 1
        timer = VirtualTimer(callback)
        heapq.heappush(self._timers, (self.now_ms + round(delay_s * 1000), next(self._numbers), timer))
        return timer

    def forget_timers(self) -> None:
        self._timers.clear()

    def waiting(self) -> int:
        return sum(timer.callback is not None for _, _, timer in self._timers)

    async def advance(self, milliseconds: int) -> None:
        """Let the time pass, and whatever it sets off come to rest."""
        end_ms = self.now_ms + milliseconds
        await settle()
        while self._timers and self._timers[0][0] <= end_ms:
            self.now_ms, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
                await settle()
        self.now_ms = end_ms
        await settle()


class MemoryTopic:
    """`__consumer_offsets` in memory. What is in `batches` survives the coordinator."""

    def __init__(self, partition_count: int = 4, seed: int = 0) -> None:
        self.partition_count = partition_count
        self.batches: list[StoredBatch] = []
        self.random = random.Random(seed)
        self.refuses: BaseException | None = None
        self.appends = 0
        self.last_epoch = -1
        """The producer epoch of the last append."""
        self.fails_at: int | None = None
        """The number of the append at which the power is cut, counted from 1."""
        self.fails_behind = False
        """Whether that append still reaches the log."""
        self.is_off = False
        self._gate: asyncio.Event | None = None
        self._gate_error: Exception | None = None

    def hold(self) -> None:
        """Let appends reach the log but not return."""
        self._gate = asyncio.Event()

    async def release(self, error: Exception | None = None) -> None:
        """Let them return, or fail although they have reached the log."""
        assert self._gate is not None
        self._gate_error = error
        self._gate.set()
        self._gate = None
        await settle()

    async def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        assert records
        gate = self._gate
        if self.is_off:
            await self._silence()
        if self.refuses is not None:
            raise self.refuses
        self.appends += 1
        self.last_epoch = producer_epoch
        strikes = self.appends == self.fails_at
        if not strikes or self.fails_behind:
            self._log(partition, producer_id, None, records)
        if strikes:
            self.is_off = True
            await self._silence()
        if gate is not None:
            await gate.wait()
            if self._gate_error is not None:
                raise self._gate_error
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        if self.is_off:
            await self._silence()

    def mark(self, partition: int, producer_id: int, commit: bool) -> None:
        """What the broker writes at the end of a transaction."""
        self._log(partition, producer_id, "commit" if commit else "abort", ())

    def replay(self) -> Iterator[StoredBatch]:
        return iter(list(self.batches))

    def records(self) -> list[tuple[bytes, bytes | None]]:
        return [record for batch in self.batches for record in batch.records]

    def _log(
        self,
        partition: int,
        producer_id: int,
        control: str | None,
        records: Sequence[tuple[bytes, bytes | None]],
    ) -> None:
        assert 0 <= partition < self.partition_count
        offset = sum(len(batch.records) or 1 for batch in self.batches if batch.partition == partition)
        self.batches.append(StoredBatch(partition, offset, producer_id, producer_id >= 0, control, tuple(records)))

    async def _silence(self) -> None:
        await asyncio.get_running_loop().create_future()


class World:
    """A coordinator with its clock and its topic, and the clients' side of the protocol."""

    def __init__(
        self,
        topic: MemoryTopic | None = None,
        settings: GroupSettings | None = None,
        clock: VirtualClock | None = None,
        seed: int = 0,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.topic = topic or MemoryTopic(seed=seed)
        self.settings = settings or GroupSettings()
        self.ids = (f"id{number}" for number in itertools.count(1))
        self.tasks: list[asyncio.Task[Any]] = []
        self.transactions: dict[int, ErrorCode] = {}
        """By producer id: why it has no transaction open; those that are not in it have one."""
        self.groups = self._coordinator()

    def restart(self) -> None:
        """Forget the coordinator, as a kill does, and start a new one on what the topic holds."""
        self.clock.forget_timers()
        self.topic.is_off = False
        self.topic.fails_at = None
        self.topic.refuses = None
        self.groups = self._coordinator()

    def join(self, group: str = "g", member_id: str = "", **options: Any) -> asyncio.Task[JoinAnswer]:
        return self._start(self.groups.join(join_request(group, member_id, **options)))

    def sync(
        self,
        joined: JoinAnswer,
        assignments: dict[str, bytes] | None = None,
        group: str = "g",
        instance_id: str | None = None,
    ) -> asyncio.Task[SyncAnswer]:
        return self._start(
            self.groups.sync(
                SyncRequest(
                    group_id=group,
                    member_id=joined.member_id,
                    generation=joined.generation,
                    instance_id=instance_id,
                    assignments=assignments or {},
                )
            )
        )

    async def new_id(self, group: str = "g", **options: Any) -> str:
        """The first half of a join: the id that the member is given."""
        answer = await self.groups.join(join_request(group, "", **options))
        assert answer.error is ErrorCode.member_id_required, answer.error
        return answer.member_id

    async def begin_join(self, group: str = "g", **options: Any) -> asyncio.Task[JoinAnswer]:
        """A whole join, up to where it waits for the others."""
        task = self.join(group, await self.new_id(group, **options), **options)
        await settle()
        return task

    async def member(self, group: str = "g", assignment: bytes = b"", **options: Any) -> JoinAnswer:
        """The only member of a stable group."""
        task = await self.begin_join(group, **options)
        await self.clock.advance(0)
        joined = await task
        assert joined.error is ErrorCode.none, joined.error
        await self.sync(joined, {joined.member_id: assignment}, group)
        return joined

    async def stable_pair(self, group: str = "g", **options: Any) -> tuple[JoinAnswer, JoinAnswer]:
        """A stable group of two; the leader first."""
        first = await self.member(group, **options)
        second = await self.begin_join(group, **options)
        again = self.join(group, first.member_id, **options)
        leader, follower = await again, await second
        assignments = {leader.member_id: b"for the leader", follower.member_id: b"for the follower"}
        syncs = self.sync(follower, group=group), self.sync(leader, assignments, group)
        assert [(await each).error for each in syncs] == [ErrorCode.none, ErrorCode.none]
        return leader, follower

    async def commit(self, group: str, offset: int, partition: int = 0, topic: str = "t", **options: Any) -> ErrorCode:
        answers = await self.groups.commit(commit_request(group, offset, partition, topic, **options))
        return answers[topic, partition]

    def committed(self, group: str, partition: int = 0, topic: str = "t") -> int | None:
        found = self.groups.offsets(group).get((topic, partition))
        return None if found is None else found.offset

    def end_transaction(self, producer_id: int, commit: bool, *groups: str) -> None:
        """As the broker does it: the markers first, then the word to the coordinator."""
        for partition in {internal_partition(group, self.topic.partition_count) for group in groups}:
            self.topic.mark(partition, producer_id, commit)
            self.groups.complete_transaction(producer_id, commit=commit, partition=partition)

    def partition_of(self, group: str) -> int:
        return internal_partition(group, self.topic.partition_count)

    def state(self, group: str = "g") -> str | None:
        described = self.groups.describe(group)
        return None if described is None else described.state.value

    def _coordinator(self) -> GroupCoordinator:
        groups = GroupCoordinator(
            self.topic,
            self.clock,
            self.settings,
            verify_transaction=lambda _, producer_id, *__: self.transactions.get(producer_id, ErrorCode.none),
            new_id=lambda: next(self.ids),
        )
        groups.load()
        return groups

    def _start(self, work: Awaitable[Answer]) -> asyncio.Task[Answer]:
        async def run() -> Answer:
            return await work

        task = asyncio.get_running_loop().create_task(run())
        self.tasks.append(task)
        return task


def protocols(*names: str, topics: Iterable[str] = ("t",)) -> tuple[MemberProtocol, ...]:
    return tuple(MemberProtocol(name, subscription(*topics)) for name in names)


def join_request(group: str, member_id: str, **options: Any) -> JoinRequest:
    fields: dict[str, Any] = {
        "protocol_type": "consumer",
        "protocols": protocols("range"),
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "client_id": "c",
        **options,
    }
    return JoinRequest(group_id=group, member_id=member_id, **fields)


def commit_request(group: str, offset: int, partition: int = 0, topic: str = "t", **options: Any) -> CommitRequest:
    metadata = options.pop("metadata", None)
    wanted = OffsetToCommit(topic, partition, offset, metadata=metadata)
    return CommitRequest(group_id=group, offsets=(wanted,), **options)


def subscription(*topics: str) -> bytes:
    """ConsumerProtocolSubscription version 0, with no user data."""
    return struct.pack(">hi", 0, len(topics)) + b"".join(_string(topic) for topic in topics) + struct.pack(">i", -1)


def assignment(*partitions: TopicPartition) -> bytes:
    """ConsumerProtocolAssignment version 0, with no user data."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    encoded = b"".join(
        _string(topic) + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
        for topic, indexes in by_topic.items()
    )
    return struct.pack(">hi", 0, len(by_topic)) + encoded + struct.pack(">i", -1)


def assigned_partitions(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of what `assignment` has made."""
    partitions: list[TopicPartition] = []
    reader = FieldReader(data or struct.pack(">hi", 0, 0))
    reader.int16()
    for _ in range(reader.array_length()):
        topic = reader.string()
        partitions += [(topic, reader.int32()) for _ in range(reader.array_length())]
    return tuple(partitions)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()
