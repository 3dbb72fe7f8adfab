"""Power cuts at every durable operation, also during the recovery from the one before.

Whatever the moment: a transaction is committed in all of its partitions or in none, as its decision in the log says;
what a client was told stays true; nothing is left open; and no producer id is given twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count, product

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.contracts import internal_partition
from penstock.broker.transactions.states import ProducerIdentity, TopicPartition, TransactionState
from tests.broker.transactions.doubles import OFFSETS_PARTITIONS, Life, World, settle
from tests.sampling import sample

PARTITIONS = [("orders", 0), ("orders", 1), ("bills", 0), ("bills", 1)]
NAMES = ("a", "b", "c")


@dataclass
class Attempt:
    """One transaction as its client saw it."""

    name: str
    me: ProducerIdentity
    commit: bool
    told: ErrorCode | None = None
    """The answer to EndTxn; None if there was none."""


@dataclass
class Book:
    """What the clients remember, over all lives."""

    attempts: list[Attempt] = field(default_factory=list)
    owners: dict[int, str] = field(default_factory=dict)
    offsets_marked: set[tuple[int, bool, int]] = field(default_factory=set)
    numbers: count[int] = field(default_factory=count)

    def given(self, producer_id: int, owner: str) -> None:
        assert self.owners.setdefault(producer_id, owner) == owner, f"producer id {producer_id} was given twice"

    async def init(self, life: Life, name: str) -> ProducerIdentity:
        me = await life.init(name)
        self.given(me.producer_id, name)
        return me

    async def idempotent(self, life: Life) -> None:
        given = await life.coordinator.init_producer_id(None, -1)
        self.given(given.producer_id, f"idempotent {next(self.numbers)}")

    async def transact(
        self, life: Life, name: str, me: ProducerIdentity, partitions: list[TopicPartition], *, commit: bool
    ) -> None:
        """One transaction, with offsets, as far as the world lets it come."""
        attempt = Attempt(name, me, commit)
        self.attempts.append(attempt)
        if not await self.write(life, attempt, partitions):
            return
        assert await life.coordinator.add_offsets(name, me, name) in (ErrorCode.none, ErrorCode.producer_fenced)
        attempt.told = await life.coordinator.end(name, me, commit=commit)

    async def write(self, life: Life, attempt: Attempt, partitions: list[TopicPartition]) -> bool:
        me = attempt.me
        if await life.coordinator.add_partitions(attempt.name, me, partitions) is not ErrorCode.none:
            return False
        tag = str(self.attempts.index(attempt))
        for topic, partition in partitions:
            if life.coordinator.slots.is_ongoing(me.producer_id, me.epoch, topic, partition):
                await life.ledger.write_data((topic, partition), me.producer_id, me.epoch, tag)
        return True


Story = Callable[[Book, Life], Awaitable[None]]


async def one_producer(book: Book, life: Life) -> None:
    me = await book.init(life, "a")
    await book.transact(life, "a", me, PARTITIONS[:2], commit=True)
    await book.transact(life, "a", me, PARTITIONS[1:3], commit=False)
    await book.transact(life, "a", me, PARTITIONS[:1], commit=True)


async def several_at_once(book: Book, life: Life) -> None:
    """Producers side by side: one at work, one that is replaced amid its transaction, one that is abandoned."""
    chance = life.world.random

    async def busy() -> None:
        me = await book.init(life, "a")
        for _ in range(3):
            partitions = chance.sample(PARTITIONS, chance.randint(1, 3))
            await book.transact(life, "a", me, partitions, commit=chance.random() < 0.6)
            await book.idempotent(life)

    async def replaced() -> None:
        me = await book.init(life, "b")
        attempt = Attempt("b", me, commit=True)
        book.attempts.append(attempt)
        await book.write(life, attempt, PARTITIONS[:3])
        successor = asyncio.ensure_future(book.init(life, "b"))
        await asyncio.sleep(0)
        attempt.told = await life.coordinator.end("b", me, commit=True)
        await book.transact(life, "b", await successor, PARTITIONS[2:], commit=True)

    async def abandoned() -> None:
        attempt = Attempt("c", await book.init(life, "c"), commit=True)
        book.attempts.append(attempt)
        await book.write(life, attempt, PARTITIONS[1:])

    await asyncio.gather(busy(), replaced(), abandoned())
    await life.clock.advance(100)


async def recovery(book: Book, life: Life) -> None:
    """Every producer comes back, and works."""
    for name in NAMES:
        me = await book.init(life, name)
        await book.transact(life, name, me, PARTITIONS[:2], commit=True)
    await book.idempotent(life)
    await life.clock.advance(100)


def lived(world: World, book: Book, story: Story) -> bool:
    async def tell(life: Life) -> None:
        lives.append(life)
        await story(book, life)

    lives: list[Life] = []
    finished = world.run_life(tell)
    for life in lives:
        book.offsets_marked.update(life.offsets_marked)
    return finished


def check(world: World, book: Book) -> None:
    """Hold what is in the logs against what the clients were told."""
    ended: dict[tuple[str, ProducerIdentity], list[bool]] = {}
    for name in NAMES:
        for state in world.states_of(name):
            if state.state.preparing:
                commit = state.state is TransactionState.PREPARE_COMMIT
                ended.setdefault((name, ProducerIdentity(state.producer_id, state.producer_epoch)), []).append(commit)
    seen: dict[ProducerIdentity, int] = {}
    for number, attempt in enumerate(book.attempts):
        me, which = attempt.me, seen.get(attempt.me, 0)
        seen[me] = which + 1
        decisions = ended.get((attempt.name, me), [])
        fenced = ProducerIdentity(me.producer_id, me.epoch + 1)
        committed = decisions[which] if which < len(decisions) else None
        if committed is None and (attempt.name, fenced) in ended:
            committed = False
        if attempt.told is ErrorCode.none:
            assert committed is attempt.commit, f"transaction {number} was told {attempt.commit} and is {committed}"
        for where, kinds in outcomes(world, str(number)).items():
            expected = {"commit" if committed else "abort"}
            assert kinds == expected, f"transaction {number} is {kinds} in {where}, decided: {committed}"
        if committed and attempt.told is ErrorCode.none:
            partition = internal_partition(attempt.name, OFFSETS_PARTITIONS)
            assert (me.producer_id, True, partition) in book.offsets_marked


def outcomes(world: World, tag: str) -> dict[TopicPartition, set[str]]:
    """How the records of a transaction came out, in each partition that has any."""
    found: dict[TopicPartition, set[str]] = {}
    for where, entries in world.partitions.items():
        for position, (kind, producer_id, _, text) in enumerate(entries):
            if kind == "data" and text == tag:
                later = (each for each, owner, *_ in entries[position + 1 :] if owner == producer_id and each != "data")
                found.setdefault(where, set()).add(next(later, "open"))
    return found


async def nothing_is_open(book: Book, life: Life) -> None:
    await life.clock.advance(100)
    await settle()
    for described in life.coordinator.descriptions():
        assert described.state.idle, f"{described} was left behind"
    for where, producers in life.ledger.producers.items():
        assert producers.first_undecided_offset() is None, f"{where} has records that nobody decided about"


def finish(world: World, book: Book) -> None:
    world.crash_at = None
    assert lived(world, book, recovery)
    assert lived(world, book, nothing_is_open)
    check(world, book)


def crash_points(story: Story, seed: int) -> range:
    """All durable operations of the story, if nothing goes wrong."""
    world, book = World(seed), Book()
    assert lived(world, book, story)
    check(world, book)
    assert any(attempt.told is ErrorCode.none for attempt in book.attempts)
    return range(1, world.operations + 1)


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize(
    ("story", "seed"),
    [(one_producer, 0)] + [(several_at_once, seed) for seed in range(6)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_crash_at_any_operation_leaves_every_transaction_whole(story: Story, seed: int, behind: bool) -> None:
    crashed = 0
    points = sample(crash_points(story, seed), 12)
    for point in points:
        world, book = World(seed, crash_at=point, crash_behind=behind), Book()
        try:
            crashed += not lived(world, book, story)
            finish(world, book)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, crash at operation {point}, behind={behind}: {error}") from error
    assert crashed > len(points) // 2


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_a_crash_at_any_operation_of_the_recovery_from_a_crash_leaves_every_transaction_whole(behind: bool) -> None:
    crashed = 0
    cases = sample(product(crash_points(one_producer, 0), range(1, 9), (False, True)), 80)
    for point, second, second_behind in cases:
        world, book = World(0, crash_at=point, crash_behind=behind), Book()
        try:
            lived(world, book, one_producer)
            world.crash_at, world.crash_behind = world.operations + second, second_behind
            crashed += not lived(world, book, recovery)
            finish(world, book)
        except AssertionError as error:
            where = f"crash at operation {point} ({behind=}), then {second} later ({second_behind=})"
            raise AssertionError(f"{where}: {error}") from error
    assert crashed > len(cases) // 4


@pytest.mark.parametrize("seed", range(8))
def test_crash_after_crash_leaves_every_transaction_whole(seed: int) -> None:
    world, book = World(seed), Book()
    try:
        for _ in range(25):
            world.crash_at = world.operations + world.random.randint(1, 40)
            world.crash_behind = world.random.random() < 0.5
            lived(world, book, several_at_once)
        finish(world, book)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    assert len(book.attempts) > 25
