"""The requests about transactions as they come over the wire, in every version that is offered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from penstock.broker.contracts import internal_partition
from penstock.broker.handlers.transactions import APIS
from penstock.broker.request import Request, finished
from penstock.broker.transactions.states import ProducerIdentity, TransactionState
from penstock.broker.wire.encoder import encoder
from penstock.errors import StorageError
from tests.broker.handlers import entities
from tests.broker.transactions.doubles import OFFSETS_PARTITIONS, START_MS, Life, World, live

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

VERSIONS = {22: range(6), 24: range(4), 25: range(5), 26: range(5), 27: range(1, 2), 65: range(1), 66: range(2)}
ORDERS = ("orders", 0)

Ask = Callable[[int, int, Mapping[str, Any]], Awaitable[Any]]


def asking(life: Life) -> Ask:
    """Sends requests through bytes to the handlers, and their answers through bytes back."""
    broker = cast("Broker", SimpleNamespace(transactions=life.coordinator, topics=life.ledger))

    async def ask(api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
        body = entities.request_entity(api_key, version, fields)
        answer = await finished(APIS[api_key][0](broker, Request(api_key, version, 1, "test", "127.0.0.1", body)))
        written = bytearray()
        encoder(load_response_schema(api_key, version))(written, answer)
        return entities.read_response(api_key, version, bytes(written))

    return ask


def run(story: Callable[[Life, Ask], Awaitable[None]]) -> None:
    live(lambda life: story(life, asking(life)))


def add(me: ProducerIdentity, *topics: tuple[str, list[int]]) -> dict[str, Any]:
    return {
        "v3_and_below_transactional_id": "t",
        "v3_and_below_producer_id": me.producer_id,
        "v3_and_below_producer_epoch": me.epoch,
        "v3_and_below_topics": [{"name": name, "partitions": partitions} for name, partitions in topics],
    }


def codes_of_added(answer: Any) -> dict[tuple[str, int], ErrorCode]:
    return {
        (topic.name, result.partition_index): result.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    }


def of(me: ProducerIdentity, **more: Any) -> dict[str, Any]:
    return {"transactional_id": "t", "producer_id": me.producer_id, "producer_epoch": me.epoch, **more}


def init_fields(transactional_id: str | None, timeout_ms: int = 60_000, **more: Any) -> dict[str, Any]:
    return {"transactional_id": transactional_id, "transaction_timeout": timedelta(milliseconds=timeout_ms), **more}


@pytest.mark.parametrize("version", VERSIONS[22])
def test_producers_are_initialised(version: int) -> None:
    async def story(life: Life, ask: Ask) -> None:
        idempotent = await ask(22, version, init_fields(None, -1))
        assert (idempotent.error_code, idempotent.producer_id, idempotent.producer_epoch) == (ErrorCode.none, 0, 0)
        transactional = await ask(22, version, init_fields("t"))
        assert (transactional.error_code, transactional.producer_id) == (ErrorCode.none, 1)
        refused = await ask(22, version, init_fields("t", 900_001))
        assert refused.error_code is ErrorCode.invalid_transaction_timeout
        assert (refused.producer_id, refused.producer_epoch) == (-1, -1)

    run(story)


@pytest.mark.parametrize(
    ("version", "expected"), [(3, ErrorCode.invalid_producer_epoch), (4, ErrorCode.producer_fenced)]
)
def test_an_outdated_producer_is_fenced_in_the_words_of_its_version(version: int, expected: ErrorCode) -> None:
    async def story(life: Life, ask: Ask) -> None:
        me = await life.init("t")
        bumped = await ask(22, version, init_fields("t", producer_id=me.producer_id, producer_epoch=me.epoch))
        assert bumped.producer_epoch == 1
        await life.init("t")
        fenced = await ask(22, version, init_fields("t", producer_id=me.producer_id, producer_epoch=me.epoch))
        assert fenced.error_code is expected

    run(story)


def test_half_an_identity_is_refused() -> None:
    async def story(life: Life, ask: Ask) -> None:
        for half in ({"producer_id": 5, "producer_epoch": -1}, {"producer_id": -1, "producer_epoch": 5}):
            assert (await ask(22, 5, init_fields("t", **half))).error_code is ErrorCode.invalid_request

    run(story)


@pytest.mark.parametrize("version", VERSIONS[24])
def test_partitions_are_added_all_together(version: int) -> None:
    async def story(life: Life, ask: Ask) -> None:
        me = await life.init("t")
        added = await ask(24, version, add(me, ("orders", [0, 1]), ("bills", [1])))
        assert codes_of_added(added) == dict.fromkeys([*[("orders", n) for n in (0, 1)], ("bills", 1)], ErrorCode.none)
        assert life.coordinator.slots.is_ongoing(me.producer_id, me.epoch, "bills", 1)

    run(story)


@pytest.mark.parametrize("version", VERSIONS[24])
def test_one_partition_that_does_not_exist_keeps_all_others_out(version: int) -> None:
    async def story(life: Life, ask: Ask) -> None:
        me = await life.init("t")
        answer = await ask(24, version, add(me, ("orders", [0, 9]), ("nothing", [0]), ("__consumer_offsets", [0])))
        assert codes_of_added(answer) == {
            ("orders", 0): ErrorCode.operation_not_attempted,
            ("orders", 9): ErrorCode.unknown_topic_or_partition,
            ("nothing", 0): ErrorCode.unknown_topic_or_partition,
            ("__consumer_offsets", 0): ErrorCode.topic_authorization_failed,
        }
        assert life.state("t") is TransactionState.EMPTY

    run(story)


@pytest.mark.parametrize("version", VERSIONS[24])
def test_a_fenced_producer_adds_nothing(version: int) -> None:
    async def story(life: Life, ask: Ask) -> None:
        me = await life.init("t")
        await life.init("t")
        code = ErrorCode.invalid_producer_epoch if version < 2 else ErrorCode.producer_fenced
        assert codes_of_added(await ask(24, version, add(me, ("orders", [0])))) == {ORDERS: code}
        assert (await ask(25, version, of(me, group_id="g"))).error_code is code
        assert (await ask(26, version, of(me, committed=True))).error_code is code

    run(story)


@pytest.mark.parametrize("version", VERSIONS[26])
@pytest.mark.parametrize("committed", [True, False])
def test_offsets_are_added_and_the_transaction_ended(version: int, committed: bool) -> None:
    async def story(life: Life, ask: Ask) -> None:
        me = await life.begin("t", ORDERS)
        assert (await ask(25, version, of(me, group_id="g"))).error_code is ErrorCode.none
        assert (await ask(26, version, of(me, committed=committed))).error_code is ErrorCode.none
        kind = "commit" if committed else "abort"
        assert life.kinds(*ORDERS)[-1] == kind
        assert life.kinds("__consumer_offsets", internal_partition("g", OFFSETS_PARTITIONS)) == [kind]

    run(story)


def test_an_operator_can_end_a_transaction_by_force() -> None:
    async def story(life: Life, ask: Ask) -> None:
        me = await life.begin("t", ORDERS)
        life.ledger.refuses["bills", 0] = StorageError("disk full")
        marker = {
            "producer_id": me.producer_id,
            "producer_epoch": me.epoch,
            "transaction_result": False,
            "coordinator_epoch": 0,
            "topics": [
                {"name": "orders", "partition_indexes": [0, 9]},
                {"name": "bills", "partition_indexes": [0]},
            ],
        }
        older = {**marker, "producer_epoch": me.epoch - 1, "topics": marker["topics"][:1]}  # type: ignore[index]
        answer = await ask(27, 1, {"markers": [marker, older]})
        codes = [
            {
                (topic.name, result.partition_index): result.error_code
                for topic in marked.topics
                for result in topic.partitions
            }
            for marked in answer.markers
        ]
        assert codes == [
            {
                ORDERS: ErrorCode.none,
                ("orders", 9): ErrorCode.unknown_topic_or_partition,
                ("bills", 0): ErrorCode.kafka_storage_error,
            },
            {ORDERS: ErrorCode.invalid_producer_epoch, ("orders", 9): ErrorCode.unknown_topic_or_partition},
        ]
        assert life.kinds(*ORDERS) == ["data", "abort"]

    run(story)


def test_transactions_are_described() -> None:
    async def story(life: Life, ask: Ask) -> None:
        me = await life.begin("t", ("orders", 1), ORDERS, ("bills", 0))
        answer = await ask(65, 0, {"transactional_ids": ["t", "unknown", ""]})
        known, unknown, empty = answer.transaction_states
        assert known.error_code is ErrorCode.none
        assert (known.producer_id, known.producer_epoch, known.transaction_state) == (me.producer_id, 0, "Ongoing")
        assert known.transaction_timeout.total_seconds() == 60
        assert round(known.transaction_start_time.timestamp() * 1000) == START_MS
        assert [(topic.topic, topic.partitions) for topic in known.topics] == [("bills", (0,)), ("orders", (0, 1))]
        assert unknown.error_code is ErrorCode.transactional_id_not_found
        assert empty.error_code is ErrorCode.invalid_request

    run(story)


@pytest.mark.parametrize("version", VERSIONS[66])
def test_transactions_are_listed(version: int) -> None:
    async def story(life: Life, ask: Ask) -> None:
        me = await life.begin("t", ORDERS)
        await life.init("u")

        async def listed(**filters: Any) -> list[str]:
            answer = await ask(66, version, {"duration_filter": -1, **filters})
            assert answer.error_code is ErrorCode.none
            return [each.transactional_id for each in answer.transaction_states]

        assert await listed() == ["t", "u"]
        assert await listed(state_filters=["Ongoing"]) == ["t"]
        assert await listed(state_filters=["PrepareEpochFence"]) == []
        assert await listed(producer_id_filters=[me.producer_id + 1]) == ["u"]
        assert await listed(state_filters=["Nonsense"]) == []
        answer = await ask(66, version, {"state_filters": ["Nonsense", "Empty"]})
        assert answer.unknown_state_filters == ("Nonsense",)
        assert [(each.transactional_id, each.transaction_state) for each in answer.transaction_states] == [
            ("u", "Empty")
        ]

    run(story)


def test_nothing_is_known_before_the_state_is_loaded() -> None:
    async def main() -> None:
        ask = asking(Life(World()))
        assert (await ask(66, 1, {})).error_code is ErrorCode.coordinator_load_in_progress
        described = await ask(65, 0, {"transactional_ids": ["t"]})
        assert described.transaction_states[0].error_code is ErrorCode.coordinator_load_in_progress

    asyncio.run(main())


def test_every_state_has_the_name_that_tools_know() -> None:
    assert [state.label for state in TransactionState] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
