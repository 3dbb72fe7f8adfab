"""What happens to transactions and transactional ids when nobody does anything."""

from __future__ import annotations

import asyncio

from kio.schema.errors import ErrorCode

from penstock.broker.transactions.settings import TransactionSettings
from penstock.broker.transactions.states import ProducerIdentity, TransactionState
from penstock.errors import StorageError
from tests.broker.transactions.doubles import Life, World, live

ORDERS = ("orders", 0)
DAY_S = 86_400
LOOKING_DAILY = TransactionSettings(transaction_abort_timed_out_transaction_cleanup_interval_ms=1000 * DAY_S)


def test_an_abandoned_transaction_is_aborted_after_its_timeout_and_its_producer_fenced() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        await life.clock.advance(60)
        assert life.state("t") is TransactionState.ONGOING
        await life.clock.advance(10)
        assert life.state("t") is TransactionState.COMPLETE_ABORT
        assert life.world.partitions[ORDERS][-1] == ("abort", me.producer_id, me.epoch + 1, "")
        assert await life.coordinator.end("t", me, commit=True) is ErrorCode.producer_fenced
        assert await life.init("t") == ProducerIdentity(me.producer_id, me.epoch + 2)

    live(story)


def test_the_timeout_counts_from_the_first_partition_not_from_the_last_step() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        await life.clock.advance(55)
        assert await life.coordinator.add_partitions("t", me, [("bills", 0)]) is ErrorCode.none
        await life.clock.advance(15)
        assert life.state("t") is TransactionState.COMPLETE_ABORT

    live(story)


def test_a_transaction_that_was_ended_in_time_is_left_alone() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        await life.coordinator.end("t", me, commit=True)
        await life.clock.advance(1000)
        assert life.kinds(*ORDERS) == ["data", "commit"]
        assert await life.coordinator.add_partitions("t", me, [ORDERS]) is ErrorCode.none

    live(story)


def test_a_transaction_keeps_its_timeout_through_a_restart() -> None:
    world = World()

    async def before(life: Life) -> None:
        await life.begin("t", ORDERS)
        await life.clock.advance(50)

    async def after(life: Life) -> None:
        assert life.state("t") is TransactionState.ONGOING
        await life.clock.advance(9)
        assert life.state("t") is TransactionState.ONGOING
        await life.clock.advance(11)
        assert life.state("t") is TransactionState.COMPLETE_ABORT

    live(before, world)
    live(after, world)


def test_a_transaction_that_is_just_being_committed_does_not_time_out() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        life.clock.now_s += 1000
        ending = asyncio.ensure_future(life.coordinator.end("t", me, commit=True))
        await asyncio.sleep(0)
        await life.coordinator.abort_timed_out()
        assert await ending is ErrorCode.none
        assert life.kinds(*ORDERS) == ["data", "commit"]

    for seed in range(5):
        live(story, World(seed=seed))


def test_a_timeout_that_cannot_be_stored_is_stored_later() -> None:
    async def story(life: Life) -> None:
        await life.begin("t", ORDERS)
        life.topic.refuses = StorageError("disk full")
        await life.clock.advance(100)
        assert life.state("t") is TransactionState.ONGOING
        life.topic.refuses = None
        await life.clock.advance(10)
        assert life.state("t") is TransactionState.COMPLETE_ABORT

    live(story)


def test_a_transactional_id_is_forgotten_a_week_after_its_last_use() -> None:
    world = World()

    async def story(life: Life) -> None:
        me = await life.begin("used", ORDERS)
        await life.coordinator.end("used", me, commit=True)
        await life.init("empty")
        await life.clock.advance(6 * DAY_S)
        await life.init("fresh")
        await life.clock.advance(DAY_S + 3600)
        assert [each.transactional_id for each in life.coordinator.descriptions()] == ["fresh"]
        assert not life.coordinator.slots.is_ongoing(me.producer_id, me.epoch, *ORDERS)
        assert await life.coordinator.add_partitions("used", me, [ORDERS]) is ErrorCode.invalid_producer_id_mapping

    async def after(life: Life) -> None:
        assert [each.transactional_id for each in life.coordinator.descriptions()] == ["fresh"]
        assert (await life.init("used")).epoch == 0

    live(story, world, LOOKING_DAILY)
    live(after, world)


def test_an_open_transaction_keeps_its_id_from_being_forgotten() -> None:
    settings = TransactionSettings(
        transactional_id_expiration_ms=1000, transaction_remove_expired_transaction_cleanup_interval_ms=1000
    )

    async def story(life: Life) -> None:
        await life.begin("t", ORDERS)
        await life.clock.advance(30)
        assert life.state("t") is TransactionState.ONGOING

    live(story, settings=settings)


def test_an_id_that_is_being_forgotten_is_neither_shown_nor_used() -> None:
    async def story(life: Life) -> None:
        await life.init("t")
        life.clock.now_s += 8 * DAY_S
        removing = asyncio.ensure_future(life.coordinator.remove_expired())
        await asyncio.sleep(0)
        assert life.coordinator.describe("t") is None
        assert life.coordinator.descriptions() == []
        assert (await life.coordinator.init_producer_id("t", 1000)).error is ErrorCode.concurrent_transactions
        await removing
        assert (await life.init("t")).epoch == 0

    live(story)


def test_ids_that_could_not_be_forgotten_stay() -> None:
    async def story(life: Life) -> None:
        await life.init("t")
        life.topic.refuses = StorageError("disk full")
        await life.clock.advance(8 * DAY_S)
        life.topic.refuses = None
        assert (await life.init("t")).epoch == 1

    live(story, settings=LOOKING_DAILY)


def test_thousands_of_ids_are_forgotten_in_batches() -> None:
    world = World()

    async def story(life: Life) -> None:
        await asyncio.gather(*(life.init(f"t{number}") for number in range(3000)))
        before = world.operations
        life.clock.now_s += 8 * DAY_S
        await life.coordinator.remove_expired()
        assert life.coordinator.descriptions() == []
        assert world.operations - before < 10

    live(story, world)


def test_transactions_can_be_listed_by_state_producer_and_age() -> None:
    async def story(life: Life) -> None:
        old = await life.begin("old", ORDERS)
        await life.clock.advance(20)
        new = await life.begin("new", ORDERS)
        done = await life.begin("done", ORDERS)
        await life.coordinator.end("done", done, commit=True)

        def names(**wanted: object) -> list[str]:
            found = life.coordinator.descriptions(**wanted)  # type: ignore[arg-type]
            return [each.transactional_id for each in found]

        assert names() == ["old", "new", "done"]
        assert names(states=[TransactionState.ONGOING]) == ["old", "new"]
        assert names(states=[TransactionState.ONGOING], producer_ids=[new.producer_id, done.producer_id]) == ["new"]
        assert names(longer_than_ms=10_000) == ["old"]
        assert names(longer_than_ms=20_000) == []
        described = life.coordinator.describe("old")
        assert described is not None
        assert (described.producer_id, described.producer_epoch) == (old.producer_id, old.epoch)
        assert (described.timeout_ms, described.partitions) == (60_000, frozenset({ORDERS}))

    live(story)
