"""A world in memory for the transaction coordinator: a clock that is moved by hand, and a disk that can crash.

What is durable is kept in the World and outlives a coordinator. Every durable operation is counted, and the world can
be told to end just before or just behind one of them: from then on nothing returns any more and nothing is written, as
after a power cut. A new Life on the same World is the restart.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from penstock.broker.contracts import Marker, StoredBatch, Timer
from penstock.broker.transactions.coordinator import Initialised, TransactionCoordinator
from penstock.broker.transactions.settings import TransactionSettings
from penstock.broker.transactions.state_log import decode_key, decode_value
from penstock.broker.transactions.states import ProducerIdentity, TopicPartition, Transaction, TransactionState
from penstock.log.producers import ProducerStates

START_MS = 1_700_000_000_000
OFFSETS_PARTITIONS = 4


class VirtualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, VirtualTimer]] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return START_MS + round(self.now_s * 1000)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = VirtualTimer(callback)
        heapq.heappush(self._timers, (self.now_s + delay_s, next(self._numbers), timer))
        return timer

    def forget_timers(self) -> None:
        self._timers.clear()

    async def advance(self, seconds: float) -> None:
        """Let the time pass, and whatever it sets off come to rest."""
        end_s = self.now_s + seconds
        while self._timers and self._timers[0][0] <= end_s:
            self.now_s, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
                await settle()
        self.now_s = end_s
        await settle()


async def settle() -> None:
    """Let everything go on that waits for nothing but its turn."""
    for _ in range(100):
        await asyncio.sleep(0)


@dataclass
class World:
    """Everything that is durable, and the moment at which it all ends."""

    seed: int = 0
    clock: VirtualClock = field(default_factory=VirtualClock)
    state_log: list[StoredBatch] = field(default_factory=list)
    partitions: dict[TopicPartition, list[tuple[str, int, int, str]]] = field(default_factory=dict)
    """The partitions that exist; what each holds, as kind ("data", "commit" or "abort"), producer id, epoch, text."""
    next_producer_id: int = 0
    operations: int = 0
    crash_at: int | None = None
    crash_behind: bool = False
    dead: bool = False
    death: asyncio.Event | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        for topic, count in (("orders", 2), ("bills", 2), ("__consumer_offsets", OFFSETS_PARTITIONS)):
            for partition in range(count):
                self.partitions[topic, partition] = []

    async def durable(self, change: Callable[[], None]) -> None:
        """Make a change that survives. It takes a while, unless the world ends."""
        if self.dead:
            await self._silence()
        self.operations += 1
        strikes = self.operations == self.crash_at
        if strikes and not self.crash_behind:
            await self._end()
        change()
        if strikes:
            await self._end()
        for _ in range(self.random.randint(1, 4)):
            await asyncio.sleep(0)
        if self.dead:
            await self._silence()

    async def _end(self) -> None:
        self.dead = True
        assert self.death is not None, "only run_life can end"
        self.death.set()
        await self._silence()

    async def _silence(self) -> None:
        await asyncio.get_running_loop().create_future()

    def states_of(self, transactional_id: str) -> list[Transaction]:
        """Every state of the id that is in the log, oldest first."""
        return [
            decode_value(transactional_id, value)
            for batch in self.state_log
            for key, value in batch.records
            if decode_key(key) == transactional_id and value is not None
        ]

    def run_life(self, story: Callable[[Life], Awaitable[None]]) -> bool:
        """Start a coordinator on this world, load it and live the story. False if the world ended before its end."""

        async def main() -> bool:
            self.dead = False
            self.death = asyncio.Event()
            self.clock.forget_timers()
            life = Life(self)

            async def live() -> None:
                await life.coordinator.load()
                await story(life)
                await life.coordinator.close()

            living = asyncio.ensure_future(live())
            dying = asyncio.ensure_future(self.death.wait())
            await asyncio.wait({living, dying}, return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            if self.dead:
                living.cancel()
                return False
            living.result()
            return True

        return asyncio.run(main())


class StateTopic:
    """`__transaction_state` in memory."""

    partition_count = 5

    def __init__(self, world: World) -> None:
        self._world = world
        self.refuses: Exception | None = None

    async def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        if self.refuses is not None:
            raise self.refuses
        log = self._world.state_log
        batch = StoredBatch(partition, len(log), -1, False, None, tuple(records))
        await self._world.durable(lambda: log.append(batch))

    def replay(self) -> Iterator[StoredBatch]:
        return iter(list(self._world.state_log))


class Ledger:
    """The partitions in memory. Each judges its producers as a real one does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.refuses: dict[TopicPartition, Exception] = {}
        self.producers = {where: ProducerStates(f"{where[0]}-{where[1]}") for where in world.partitions}
        for where, entries in world.partitions.items():
            for offset, (kind, producer_id, epoch, _) in enumerate(entries):
                self._remember(where, offset, kind, producer_id, epoch)

    def _remember(self, where: TopicPartition, offset: int, kind: str, producer_id: int, epoch: int) -> None:
        if kind == "data":
            self.producers[where].record(producer_id, epoch, -1, 0, offset, START_MS, True)
        else:
            self.producers[where].end_transaction(
                producer_id, epoch, offset, coordinator_epoch=0, timestamp_ms=START_MS
            )

    def _append(self, where: TopicPartition, kind: str, producer_id: int, epoch: int, text: str = "") -> None:
        entries = self._world.partitions[where]
        self._remember(where, len(entries), kind, producer_id, epoch)
        entries.append((kind, producer_id, epoch, text))

    def exists(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self._world.partitions

    async def write_markers(self, partitions: Iterable[TopicPartition], marker: Marker) -> None:
        wanted = list(partitions)
        self._world.random.shuffle(wanted)
        kind = "commit" if marker.commit else "abort"
        for where in wanted:
            if where in self.refuses:
                raise self.refuses[where]
            if where in self._world.partitions:
                self.producers[where].check_marker(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch)
                await self._world.durable(
                    lambda where=where: self._append(where, kind, marker.producer_id, marker.producer_epoch)  # type: ignore[misc]
                )

    async def write_data(self, where: TopicPartition, producer_id: int, epoch: int, text: str) -> None:
        self.producers[where].check_epoch(producer_id, epoch, True)
        await self._world.durable(lambda: self._append(where, "data", producer_id, epoch, text))


class BlocksOfThree:
    """Producer ids in small blocks, so that they run out often."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.refuses: Exception | None = None

    async def next_block(self) -> range:
        if self.refuses is not None:
            raise self.refuses
        first = self._world.next_producer_id

        def reserve() -> None:
            self._world.next_producer_id = first + 3

        await self._world.durable(reserve)
        return range(first, first + 3)


class Life:
    """One run of the broker, from its start to its end."""

    def __init__(self, world: World, settings: TransactionSettings | None = None) -> None:
        self.world = world
        self.clock = world.clock
        self.topic = StateTopic(world)
        self.ledger = Ledger(world)
        self.producer_ids = BlocksOfThree(world)
        self.offsets_marked: list[tuple[int, bool, int]] = []
        self.coordinator = TransactionCoordinator(
            self.topic,
            self.ledger.write_markers,
            self.producer_ids,
            world.clock,
            offsets_partition_count=OFFSETS_PARTITIONS,
            on_offsets_marked=self._offsets_marked,
            settings=settings,
        )

    def _offsets_marked(self, producer_id: int, commit: bool, partition: int) -> None:
        self.offsets_marked.append((producer_id, commit, partition))

    async def init(self, transactional_id: str, timeout_ms: int = 60_000) -> ProducerIdentity:
        """Initialise as clients do: again for as long as the answer is to try again."""
        for _ in range(20):
            given = await self.coordinator.init_producer_id(transactional_id, timeout_ms)
            if given.error is ErrorCode.none:
                return identity_of(given)
            assert given.error is ErrorCode.concurrent_transactions, given.error
            await settle()
        raise AssertionError(f"{transactional_id} was never initialised")

    async def begin(self, transactional_id: str, *partitions: TopicPartition) -> ProducerIdentity:
        """A producer with a transaction open on the partitions, and a record in each."""
        me = await self.init(transactional_id)
        assert await self.coordinator.add_partitions(transactional_id, me, partitions) is ErrorCode.none
        for where in partitions:
            await self.ledger.write_data(where, me.producer_id, me.epoch, transactional_id)
        return me

    def state(self, transactional_id: str) -> TransactionState | None:
        described = self.coordinator.describe(transactional_id)
        return None if described is None else described.state

    def kinds(self, topic: str, partition: int) -> list[str]:
        return [kind for kind, *_ in self.world.partitions[topic, partition]]


def identity_of(given: Initialised) -> ProducerIdentity:
    return ProducerIdentity(given.producer_id, given.producer_epoch)


def live(
    story: Callable[[Life], Awaitable[Any]], world: World | None = None, settings: TransactionSettings | None = None
) -> Life:
    """Run a story in a loaded coordinator of a world without crashes. In the end memory must agree with the log."""
    life = Life(world or World(), settings)

    async def main() -> None:
        life.clock.forget_timers()
        await life.coordinator.load()
        await story(life)
        await life.coordinator.close()

    asyncio.run(main())
    for described in life.coordinator.descriptions():
        stored = life.world.states_of(described.transactional_id)[-1]
        remembered = (described.producer_id, described.producer_epoch, described.state, described.last_update_ms)
        assert (stored.producer_id, stored.producer_epoch, stored.state, stored.last_update_ms) == remembered
    return life
