"""InitProducerId: who a producer is, and whom it replaces."""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.settings import BrokerSettings
from penstock.broker.transactions.coordinator import Initialised
from penstock.broker.transactions.states import LAST_EPOCH, ProducerIdentity, TransactionState
from penstock.errors import ConfigError, StorageError
from tests.broker.transactions.doubles import Life, World, identity_of, live, settle

ORDERS = ("orders", 0)


async def init(life: Life, expected: ProducerIdentity | None = None, timeout_ms: int = 60_000) -> Initialised:
    return await life.coordinator.init_producer_id("t", timeout_ms, expected)


async def at_epoch(life: Life, epoch: int) -> ProducerIdentity:
    """A producer whose transactional id has come to this epoch."""
    me = await life.init("t")
    slot = life.coordinator.slots.get("t")
    assert slot is not None
    aged = slot.current.with_next_epoch(None, 60_000, life.clock.wall_ms())
    assert not isinstance(aged, ErrorCode)
    object.__setattr__(aged, "producer_epoch", epoch)
    life.coordinator.slots.replace(slot, aged)
    return ProducerIdentity(me.producer_id, epoch)


def test_an_idempotent_producer_gets_an_id_of_its_own_with_epoch_zero() -> None:
    async def story(life: Life) -> None:
        given = [await life.coordinator.init_producer_id(None, -1) for _ in range(7)]
        assert {each.error for each in given} == {ErrorCode.none}
        assert [each.producer_id for each in given] == list(range(7))
        assert {each.producer_epoch for each in given} == {0}

    live(story)


def test_ids_asked_for_at_the_same_time_differ_and_none_is_wasted() -> None:
    async def story(life: Life) -> None:
        given = await asyncio.gather(*(life.coordinator.init_producer_id(None, -1) for _ in range(20)))
        assert [each.producer_id for each in given] == list(range(20))

    live(story)


def test_a_producer_is_told_to_come_again_when_no_id_can_be_reserved() -> None:
    async def story(life: Life) -> None:
        life.producer_ids.refuses = StorageError("disk full")
        for transactional_id in (None, "t"):
            given = await life.coordinator.init_producer_id(transactional_id, 1000)
            assert given == Initialised(ErrorCode.coordinator_load_in_progress)
        assert life.coordinator.descriptions() == []
        life.producer_ids.refuses = None
        assert (await init(life)).error is ErrorCode.none

    live(story)


def test_each_initialisation_of_a_transactional_id_raises_its_epoch() -> None:
    async def story(life: Life) -> None:
        assert [await life.init("t") for _ in range(3)] == [ProducerIdentity(0, epoch) for epoch in range(3)]
        assert await life.init("u") == ProducerIdentity(1, 0)

    live(story)


@pytest.mark.parametrize(
    ("timeout_ms", "accepted"), [(-1, False), (0, False), (1, True), (900_000, True), (900_001, False)]
)
def test_the_timeout_must_be_within_what_is_allowed(timeout_ms: int, accepted: bool) -> None:
    async def story(life: Life) -> None:
        expected = ErrorCode.none if accepted else ErrorCode.invalid_transaction_timeout
        assert (await init(life, timeout_ms=timeout_ms)).error is expected

    live(story)


def test_an_empty_transactional_id_is_refused() -> None:
    async def story(life: Life) -> None:
        assert (await life.coordinator.init_producer_id("", 1000)).error is ErrorCode.invalid_request

    live(story)


def test_the_new_instance_takes_over_once_the_old_ones_transaction_is_aborted() -> None:
    async def story(life: Life) -> None:
        old = await life.begin("t", ORDERS, ("bills", 1))
        assert (await init(life)).error is ErrorCode.concurrent_transactions
        assert life.state("t") is TransactionState.COMPLETE_ABORT
        assert life.kinds("orders", 0) == life.kinds("bills", 1) == ["data", "abort"]
        assert life.world.partitions[ORDERS][-1][2] == old.epoch + 1, "the marker itself fences the old instance"
        assert await life.init("t") == ProducerIdentity(old.producer_id, old.epoch + 2)
        assert await life.coordinator.end("t", old, commit=True) is ErrorCode.producer_fenced
        assert await life.coordinator.add_partitions("t", old, [ORDERS]) is ErrorCode.producer_fenced

    live(story)


def test_two_instances_that_start_at_once_get_different_epochs() -> None:
    async def story(life: Life) -> None:
        first, second = await asyncio.gather(init(life), init(life))
        assert first.error is ErrorCode.none
        assert second.error is ErrorCode.concurrent_transactions
        assert identity_of(await init(life)) == ProducerIdentity(first.producer_id, 1)

    live(story)


def test_a_producer_that_names_itself_gets_the_next_epoch() -> None:
    async def story(life: Life) -> None:
        me = await life.init("t")
        assert identity_of(await init(life, me)) == ProducerIdentity(me.producer_id, 1)

    live(story)


def test_the_same_request_again_gets_the_same_answer() -> None:
    async def story(life: Life) -> None:
        me = await life.init("t")
        first = await init(life, me)
        assert await init(life, me) == first
        assert await init(life, me) == first

    live(story)


def test_a_producer_that_names_an_outdated_self_is_fenced() -> None:
    async def story(life: Life) -> None:
        me = await life.init("t")
        await life.init("t")
        assert (await init(life, me)).error is ErrorCode.producer_fenced
        assert (await init(life, ProducerIdentity(77, 0))).error is ErrorCode.producer_fenced

    live(story)


def test_an_outdated_producer_cannot_abort_the_transaction_of_its_successor() -> None:
    async def story(life: Life) -> None:
        old = await life.init("t")
        await life.begin("t", ORDERS)
        assert (await init(life, old)).error is ErrorCode.producer_fenced
        assert life.state("t") is TransactionState.ONGOING

    live(story)


def test_a_producer_whose_id_was_forgotten_may_start_again() -> None:
    async def story(life: Life) -> None:
        assert (await init(life, ProducerIdentity(500, 3))) == Initialised(ErrorCode.none, 0, 0)

    live(story)


def test_a_new_producer_id_is_given_when_the_epochs_run_out() -> None:
    async def story(life: Life) -> None:
        me = await at_epoch(life, LAST_EPOCH)
        given = await init(life)
        assert given.producer_epoch == 0
        assert given.producer_id != me.producer_id
        assert await life.coordinator.end("t", me, commit=True) is ErrorCode.invalid_producer_id_mapping
        assert (await init(life, me)).error is ErrorCode.producer_fenced, "another instance took over"
        assert await life.coordinator.add_partitions("t", identity_of(given), [ORDERS]) is ErrorCode.none
        assert life.coordinator.slots.is_ongoing(given.producer_id, 0, *ORDERS)
        assert not life.coordinator.slots.is_ongoing(me.producer_id, 0, *ORDERS)

    live(story)


def test_the_answer_with_the_new_producer_id_can_be_asked_for_again() -> None:
    async def story(life: Life) -> None:
        me = await at_epoch(life, LAST_EPOCH)
        given = await init(life, me)
        assert given.producer_id != me.producer_id
        assert await init(life, me) == given

    live(story)


def test_the_answer_with_the_last_epoch_can_be_asked_for_again() -> None:
    async def story(life: Life) -> None:
        me = await at_epoch(life, LAST_EPOCH - 1)
        given = await init(life, me)
        assert given == Initialised(ErrorCode.none, me.producer_id, LAST_EPOCH)
        assert await init(life, me) == given

    live(story)


def test_a_producer_with_the_last_epoch_can_still_be_fenced() -> None:
    async def story(life: Life) -> None:
        me = await at_epoch(life, LAST_EPOCH)
        assert await life.coordinator.add_partitions("t", me, [ORDERS]) is ErrorCode.none
        assert (await init(life)).error is ErrorCode.concurrent_transactions
        assert life.world.partitions[ORDERS] == [("abort", me.producer_id, LAST_EPOCH + 1, "")]
        given = await life.init("t")
        assert given.epoch == 0
        assert given.producer_id != me.producer_id

    live(story)


def test_an_id_whose_first_state_could_not_be_stored_does_not_exist() -> None:
    async def story(life: Life) -> None:
        life.topic.refuses = StorageError("disk full")
        assert (await init(life)).error is ErrorCode.not_coordinator
        assert life.coordinator.describe("t") is None
        assert list(life.coordinator.slots) == [], "ids that nobody has must not pile up"
        life.topic.refuses = None
        assert (await life.init("t")).epoch == 0

    live(story)


def test_an_epoch_that_could_not_be_stored_was_never_given() -> None:
    async def story(life: Life) -> None:
        me = await life.init("t")
        life.topic.refuses = StorageError("disk full")
        assert (await init(life)).error is ErrorCode.not_coordinator
        life.topic.refuses = None
        assert await life.coordinator.add_partitions("t", me, [ORDERS]) is ErrorCode.none

    live(story)


def test_identities_survive_a_restart() -> None:
    world = World()

    async def before(life: Life) -> None:
        await life.init("t")
        await life.init("t")

    async def after(life: Life) -> None:
        assert await life.init("t") == ProducerIdentity(0, 2)

    live(before, world)
    live(after, world)


def test_nothing_is_answered_before_loading_and_after_closing() -> None:
    life = Life(World())
    me = ProducerIdentity(0, 0)

    async def main() -> None:
        for expected in (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available):
            assert (await init(life)).error is expected
            assert await life.coordinator.add_partitions("t", me, [ORDERS]) is expected
            assert await life.coordinator.end("t", me, commit=True) is expected
            assert life.coordinator.verify("t", me, "orders", 0) is expected
            if expected is ErrorCode.coordinator_load_in_progress:
                await life.coordinator.load()
                await life.coordinator.close()

    asyncio.run(main())


def test_a_client_that_leaves_while_it_is_initialised_leaves_a_whole_state() -> None:
    async def story(life: Life) -> None:
        for turns in range(12):
            asking = asyncio.ensure_future(init(life))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            await settle()
            stored = life.world.states_of("t")
            described = life.coordinator.describe("t")
            assert (described.producer_epoch if described else -1) == (stored[-1].producer_epoch if stored else -1)

    for seed in range(5):
        live(story, World(seed))


@pytest.mark.parametrize("value", ["0", "-5"])
def test_settings_out_of_range_are_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigError, match=r"transaction\.max\.timeout\.ms"):
        BrokerSettings.parse({"transaction.max.timeout.ms": value})
