"""AddPartitions, AddOffsets and EndTxn: what is in a transaction, and how it ends."""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.contracts import Marker, internal_partition
from penstock.broker.transactions.states import ProducerIdentity, TransactionState
from penstock.errors import StorageError
from tests.broker.transactions.doubles import OFFSETS_PARTITIONS, Life, World, live, settle

ORDERS = ("orders", 0)
BILLS = ("bills", 1)


def marker_of(life: Life, topic: str, partition: int) -> tuple[str, int, int, str]:
    return life.world.partitions[topic, partition][-1]


@pytest.mark.parametrize("commit", [True, False])
def test_every_partition_of_the_transaction_gets_the_marker(commit: bool) -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS, BILLS)
        assert await life.coordinator.end("t", me, commit=commit) is ErrorCode.none
        kind = "commit" if commit else "abort"
        assert marker_of(life, *ORDERS) == marker_of(life, *BILLS) == (kind, me.producer_id, me.epoch, "")
        assert life.kinds("orders", 1) == []
        assert life.state("t") is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
        stored = [each.state for each in life.world.states_of("t")]
        preparing = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        assert stored == [TransactionState.EMPTY, TransactionState.ONGOING, preparing, life.state("t")]

    live(story)


def test_the_next_transaction_begins_without_the_partitions_of_the_last() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        await life.coordinator.end("t", me, commit=True)
        await life.clock.advance(5)
        assert await life.coordinator.add_partitions("t", me, [BILLS]) is ErrorCode.none
        described = life.coordinator.describe("t")
        assert described is not None
        assert described.partitions == {BILLS}
        assert described.start_ms == life.clock.wall_ms()

    live(story)


def test_adding_a_partition_twice_writes_nothing() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS, BILLS)
        before = life.world.operations
        assert await life.coordinator.add_partitions("t", me, [BILLS]) is ErrorCode.none
        assert life.world.operations == before

    live(story)


def test_the_transaction_begins_with_its_first_partition_and_not_with_later_ones() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        began_ms = life.clock.wall_ms()
        await life.clock.advance(3)
        await life.coordinator.add_partitions("t", me, [BILLS])
        described = life.coordinator.describe("t")
        assert described is not None
        assert (described.start_ms, described.last_update_ms) == (began_ms, began_ms + 3000)

    live(story)


def test_offsets_are_part_of_the_transaction_by_their_partition() -> None:
    async def story(life: Life) -> None:
        me = await life.init("t")
        assert await life.coordinator.add_offsets("t", me, "billing") is ErrorCode.none
        partition = internal_partition("billing", OFFSETS_PARTITIONS)
        assert life.coordinator.slots.is_ongoing(me.producer_id, me.epoch, "__consumer_offsets", partition)
        assert await life.coordinator.end("t", me, commit=True) is ErrorCode.none
        assert life.kinds("__consumer_offsets", partition) == ["commit"]
        assert life.offsets_marked == [(me.producer_id, True, partition)]

    live(story)


@pytest.mark.parametrize("commit", [True, False])
def test_ending_again_the_same_way_succeeds_and_the_other_way_does_not(commit: bool) -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        await life.coordinator.end("t", me, commit=commit)
        before = life.world.operations
        assert await life.coordinator.end("t", me, commit=commit) is ErrorCode.none
        assert await life.coordinator.end("t", me, commit=not commit) is ErrorCode.invalid_txn_state
        assert life.world.operations == before

    live(story)


def test_a_transaction_that_never_began_cannot_be_ended() -> None:
    async def story(life: Life) -> None:
        me = await life.init("t")
        assert await life.coordinator.end("t", me, commit=True) is ErrorCode.invalid_txn_state
        assert await life.coordinator.end("t", me, commit=False) is ErrorCode.invalid_txn_state

    live(story)


@pytest.mark.parametrize(
    ("transactional_id", "identity", "expected"),
    [
        ("t", ProducerIdentity(99, 0), ErrorCode.invalid_producer_id_mapping),
        ("unknown", ProducerIdentity(0, 0), ErrorCode.invalid_producer_id_mapping),
        ("t", ProducerIdentity(0, 1), ErrorCode.producer_fenced),
        ("", ProducerIdentity(0, 0), ErrorCode.invalid_request),
        (None, ProducerIdentity(0, 0), ErrorCode.invalid_request),
    ],
)
def test_only_the_newest_instance_of_the_producer_may_take_part(
    transactional_id: str | None, identity: ProducerIdentity, expected: ErrorCode
) -> None:
    async def story(life: Life) -> None:
        await life.begin("t", ORDERS)
        coordinator = life.coordinator
        assert await coordinator.add_partitions(transactional_id, identity, [BILLS]) is expected
        assert await coordinator.add_offsets(transactional_id, identity, "g") is expected
        assert await coordinator.end(transactional_id, identity, commit=True) is expected
        assert coordinator.verify(transactional_id, identity, *ORDERS) is expected

    live(story)


def test_what_comes_while_a_step_is_being_written_is_told_to_come_again() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        coordinator = life.coordinator
        ending = asyncio.ensure_future(coordinator.end("t", me, commit=True))
        await asyncio.sleep(0)
        while life.state("t") is not TransactionState.COMPLETE_COMMIT:
            answers = [
                await coordinator.end("t", me, commit=True),
                await coordinator.end("t", me, commit=False),
                await coordinator.add_partitions("t", me, [ORDERS]),
                (await coordinator.init_producer_id("t", 1000)).error,
            ]
            assert set(answers) == {ErrorCode.concurrent_transactions}
            await asyncio.sleep(0)
        assert await ending is ErrorCode.none

    for seed in range(5):
        live(story, World(seed=seed))


def test_a_decision_that_cannot_be_stored_leaves_the_transaction_open() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        life.topic.refuses = StorageError("disk full")
        assert await life.coordinator.end("t", me, commit=True) is ErrorCode.not_coordinator
        assert life.state("t") is TransactionState.ONGOING
        assert life.kinds(*ORDERS) == ["data"]
        life.topic.refuses = None
        assert await life.coordinator.end("t", me, commit=False) is ErrorCode.none
        assert life.kinds(*ORDERS) == ["data", "abort"]

    live(story)


def test_a_partition_that_cannot_be_marked_holds_up_neither_the_answer_nor_the_others() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS, BILLS)
        life.ledger.refuses[BILLS] = StorageError("disk full")
        assert await life.coordinator.end("t", me, commit=True) is ErrorCode.none
        assert life.kinds(*ORDERS)[-1] == "commit"
        assert life.kinds(*BILLS) == ["data"]
        described = life.coordinator.describe("t")
        assert described is not None
        assert (described.state, described.partitions) == (TransactionState.PREPARE_COMMIT, frozenset({BILLS}))
        assert await life.coordinator.add_partitions("t", me, [ORDERS]) is ErrorCode.concurrent_transactions

        await life.clock.advance(30)
        assert life.state("t") is TransactionState.PREPARE_COMMIT
        del life.ledger.refuses[BILLS]
        await life.clock.advance(10)
        assert life.kinds(*BILLS) == ["data", "commit"]
        assert life.kinds(*ORDERS).count("commit") <= 2, "what is marked is not marked again and again"
        assert life.state("t") is TransactionState.COMPLETE_COMMIT

    live(story)


def test_a_completion_that_cannot_be_stored_is_stored_later() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        append = life.topic.append

        async def append_until_decided(partition: int, records: list[tuple[bytes, bytes | None]]) -> None:
            await append(partition, records)
            life.topic.refuses = StorageError("disk full")

        life.topic.append = append_until_decided  # type: ignore[method-assign, assignment]
        assert await life.coordinator.end("t", me, commit=True) is ErrorCode.none
        assert life.state("t") is TransactionState.PREPARE_COMMIT
        life.topic.append = append  # type: ignore[method-assign]
        life.topic.refuses = None
        await life.clock.advance(1)
        assert life.state("t") is TransactionState.COMPLETE_COMMIT
        assert life.kinds(*ORDERS) == ["data", "commit"]

    live(story)


def test_a_partition_whose_transaction_was_ended_by_force_is_passed_over() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS, BILLS)
        forced = Marker(me.producer_id, me.epoch + 5, False, 0)
        assert await life.coordinator.write_markers([ORDERS], forced) == {}
        assert await life.coordinator.end("t", me, commit=True) is ErrorCode.none
        assert life.state("t") is TransactionState.COMPLETE_COMMIT
        assert life.kinds(*ORDERS) == ["data", "abort"]
        assert life.kinds(*BILLS)[-1] == "commit"

    live(story)


def test_a_partition_that_was_deleted_meanwhile_is_passed_over() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS, BILLS)
        del life.world.partitions[ORDERS]
        assert await life.coordinator.end("t", me, commit=True) is ErrorCode.none
        assert life.state("t") is TransactionState.COMPLETE_COMMIT

    live(story)


def test_a_group_coordinator_that_fails_is_told_again() -> None:
    async def story(life: Life) -> None:
        me = await life.init("t")
        await life.coordinator.add_offsets("t", me, "g")
        told = life.offsets_marked
        life.offsets_marked = None  # type: ignore[assignment]
        assert await life.coordinator.end("t", me, commit=True) is ErrorCode.none
        assert life.state("t") is TransactionState.PREPARE_COMMIT
        life.offsets_marked = told
        await life.clock.advance(1)
        assert told == [(me.producer_id, True, internal_partition("g", OFFSETS_PARTITIONS))]
        assert life.state("t") is TransactionState.COMPLETE_COMMIT

    live(story)


def test_a_client_that_leaves_in_the_middle_of_its_commit_leaves_it_committed() -> None:
    for turns in range(1, 25):

        async def story(life: Life, turns: int = turns) -> None:
            me = await life.begin("t", ORDERS, BILLS)
            ending = asyncio.ensure_future(life.coordinator.end("t", me, commit=True))
            for _ in range(turns):
                await asyncio.sleep(0)
            ending.cancel()
            await asyncio.wait([ending])
            await settle()
            assert life.state("t") is TransactionState.COMPLETE_COMMIT
            assert life.kinds(*ORDERS) == life.kinds(*BILLS) == ["data", "commit"]

        live(story, World(seed=turns))


def test_closing_waits_for_a_commit_that_is_under_way() -> None:
    world = World(seed=1)
    answers: list[asyncio.Future[ErrorCode]] = []

    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        answers.append(asyncio.ensure_future(life.coordinator.end("t", me, commit=True)))
        await asyncio.sleep(0)

    life = live(story, world)
    assert life.state("t") is TransactionState.COMPLETE_COMMIT
    assert world.states_of("t")[-1].state is TransactionState.COMPLETE_COMMIT


def test_closing_does_not_wait_for_a_partition_that_never_recovers() -> None:
    world = World()

    async def before(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        life.ledger.refuses[ORDERS] = StorageError("broken")
        assert await life.coordinator.end("t", me, commit=True) is ErrorCode.none

    async def after(life: Life) -> None:
        assert life.kinds(*ORDERS) == ["data", "commit"]
        assert life.state("t") is TransactionState.COMPLETE_COMMIT

    live(before, world)
    live(after, world)


def test_a_partition_may_be_written_to_only_within_the_transaction_it_was_added_to() -> None:
    async def story(life: Life) -> None:
        coordinator = life.coordinator
        me = await life.init("t")
        assert not coordinator.slots.is_ongoing(me.producer_id, me.epoch, *ORDERS)
        await coordinator.add_partitions("t", me, [ORDERS])
        assert coordinator.slots.is_ongoing(me.producer_id, me.epoch, *ORDERS)
        assert coordinator.verify("t", me, *ORDERS) is ErrorCode.none
        assert not coordinator.slots.is_ongoing(me.producer_id, me.epoch, *BILLS)
        assert coordinator.verify("t", me, *BILLS) is ErrorCode.transaction_abortable
        assert not coordinator.slots.is_ongoing(me.producer_id, me.epoch + 1, *ORDERS)
        assert not coordinator.slots.is_ongoing(me.producer_id + 1, me.epoch, *ORDERS)
        await coordinator.end("t", me, commit=True)
        assert not coordinator.slots.is_ongoing(me.producer_id, me.epoch, *ORDERS)
        assert coordinator.verify("t", me, *ORDERS) is ErrorCode.transaction_abortable

    live(story)


def test_nothing_may_be_written_once_the_end_is_decided() -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        life.ledger.refuses[ORDERS] = StorageError("disk full")
        await life.coordinator.end("t", me, commit=True)
        assert not life.coordinator.slots.is_ongoing(me.producer_id, me.epoch, *ORDERS)
        assert life.coordinator.verify("t", me, *ORDERS) is ErrorCode.concurrent_transactions
        assert life.coordinator.verify_produce("t", me, *ORDERS, 12) is ErrorCode.not_enough_replicas

    live(story)


@pytest.mark.parametrize(
    ("version", "expected"), [(10, ErrorCode.invalid_txn_state), (11, ErrorCode.transaction_abortable)]
)
def test_producers_are_refused_in_the_codes_they_know(version: int, expected: ErrorCode) -> None:
    async def story(life: Life) -> None:
        me = await life.begin("t", ORDERS)
        older = ProducerIdentity(me.producer_id, me.epoch - 1)
        coordinator = life.coordinator
        assert coordinator.verify_produce("t", me, *ORDERS, version) is ErrorCode.none
        assert coordinator.verify_produce("t", me, *BILLS, version) is expected
        assert coordinator.verify_produce("t", older, *ORDERS, version) is ErrorCode.invalid_producer_epoch

    live(story)
