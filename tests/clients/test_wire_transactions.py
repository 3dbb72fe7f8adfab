"""Transactions, step by step: which step is refused with which code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.clients import confluent, wire
from tests.clients.batches import batch
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.clients.wire import Connection
from tests.servers import Server


@pytest.fixture
def topic(server: Server, connection: Connection) -> str:
    name = confluent.create_topic(server)
    wire.wait_for_leader(connection, name)
    return name


@dataclass(frozen=True, slots=True)
class Owner:
    """A transactional producer as the coordinator knows it."""

    transactional_id: str
    producer_id: int
    epoch: int

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }


def init(connection: Connection, transactional_id: str | None, timeout_ms: int = 60_000, **more: Any) -> Any:
    return connection.call(
        "init_producer_id", 4, transactional_id=transactional_id, transaction_timeout=timeout_ms, **more
    )


def new_owner(connection: Connection, transactional_id: str | None = None) -> Owner:
    name = transactional_id or fresh("txn")

    def answered() -> Any:
        answer = init(connection, name)
        # While the transaction before is being ended, the coordinator asks to be asked again.
        return None if answer.error_code is ErrorCode.concurrent_transactions else answer

    answer = eventually("the producer has an id", answered)
    assert answer.error_code is ErrorCode.none
    return Owner(name, answer.producer_id, answer.producer_epoch)


def add(connection: Connection, owner: Owner, *topics: str, version: int = 3) -> dict[str, ErrorCode]:
    fields = {f"v3_and_below_{name}": value for name, value in owner.fields.items()}
    asked = [{"name": topic, "partitions": [0]} for topic in topics]
    answer = connection.call("add_partitions_to_txn", version, **fields, v3_and_below_topics=asked)
    return {row.name: row.results_by_partition[0].partition_error_code for row in answer.results_by_topic_v3_and_below}


def end(connection: Connection, owner: Owner, commit: bool, version: int = 3) -> ErrorCode:
    """The answer to the request to end, asked again for as long as the coordinator is still busy with the last one."""
    answers: list[ErrorCode] = []

    def is_answered() -> bool:
        answers.append(connection.call("end_txn", version, **owner.fields, committed=commit).error_code)
        return answers[-1] is not ErrorCode.concurrent_transactions

    eventually("the end is answered", is_answered)
    return answers[-1]


def produce(connection: Connection, owner: Owner, topic: str, sequence: int = 0) -> ErrorCode:
    records = batch([b"x"], producer_id=owner.producer_id, epoch=owner.epoch, sequence=sequence, transactional=True)
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    answer = connection.call(
        "produce", 9, transactional_id=owner.transactional_id, acks=-1, timeout=5000, topic_data=data
    )
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code


def state_of(connection: Connection, owner: Owner) -> str:
    answer = connection.call("list_transactions", 1, producer_id_filters=[owner.producer_id])
    (row,) = answer.transaction_states
    assert row.transactional_id == owner.transactional_id
    state: str = row.transaction_state
    return state


def test_a_transaction_walks_through_its_states(connection: Connection, topic: str) -> None:
    owner = new_owner(connection)
    assert state_of(connection, owner) == "Empty"
    assert add(connection, owner, topic) == {topic: ErrorCode.none}
    assert state_of(connection, owner) == "Ongoing"
    assert produce(connection, owner, topic) is ErrorCode.none
    assert end(connection, owner, commit=True) is ErrorCode.none
    eventually("it is complete", lambda: state_of(connection, owner) == "CompleteCommit")


def test_each_start_of_a_producer_raises_its_epoch(connection: Connection) -> None:
    name = fresh("txn")
    first, second = new_owner(connection, name), new_owner(connection, name)
    assert first.epoch == 0
    assert second.producer_id == first.producer_id
    assert second.epoch == first.epoch + 1


def test_every_step_of_an_older_epoch_is_fenced(connection: Connection, topic: str) -> None:
    name = fresh("txn")
    old, new = new_owner(connection, name), new_owner(connection, name)
    assert add(connection, old, topic) == {topic: ErrorCode.producer_fenced}
    assert end(connection, old, commit=True) is ErrorCode.producer_fenced
    offsets = connection.call("add_offsets_to_txn", 3, **old.fields, group_id=fresh("group"))
    assert offsets.error_code is ErrorCode.producer_fenced
    restarted = init(connection, name, producer_id=old.producer_id, producer_epoch=old.epoch)
    assert restarted.error_code is ErrorCode.producer_fenced
    assert add(connection, new, topic) == {topic: ErrorCode.none}


def test_clients_too_old_to_know_fencing_are_told_of_a_wrong_epoch(connection: Connection, topic: str) -> None:
    name = fresh("txn")
    old = new_owner(connection, name)
    new_owner(connection, name)
    assert add(connection, old, topic, version=1) == {topic: ErrorCode.invalid_producer_epoch}
    assert end(connection, old, commit=True, version=1) is ErrorCode.invalid_producer_epoch


def test_an_id_that_belongs_to_somebody_else_is_refused(connection: Connection, topic: str) -> None:
    owner = new_owner(connection)
    wrong = Owner(owner.transactional_id, owner.producer_id + 1000, owner.epoch)
    assert add(connection, wrong, topic) == {topic: ErrorCode.invalid_producer_id_mapping}
    assert end(connection, wrong, commit=True) is ErrorCode.invalid_producer_id_mapping
    unknown = Owner(fresh("txn"), owner.producer_id, 0)
    assert add(connection, unknown, topic) == {topic: ErrorCode.invalid_producer_id_mapping}


def test_a_transaction_that_was_not_begun_cannot_be_ended(connection: Connection) -> None:
    owner = new_owner(connection)
    assert end(connection, owner, commit=True) is ErrorCode.invalid_txn_state
    assert end(connection, owner, commit=False) is ErrorCode.invalid_txn_state


def test_an_end_may_be_repeated_but_not_reversed(connection: Connection, topic: str) -> None:
    owner = new_owner(connection)
    add(connection, owner, topic)
    assert end(connection, owner, commit=True) is ErrorCode.none
    eventually("it is complete", lambda: state_of(connection, owner) == "CompleteCommit")
    assert end(connection, owner, commit=True) is ErrorCode.none
    assert end(connection, owner, commit=False) is ErrorCode.invalid_txn_state


def test_partitions_are_added_all_or_none(connection: Connection, topic: str) -> None:
    owner, unknown = new_owner(connection), fresh()
    assert add(connection, owner, topic, unknown) == {
        topic: ErrorCode.operation_not_attempted,
        unknown: ErrorCode.unknown_topic_or_partition,
    }
    assert state_of(connection, owner) == "Empty"


def test_a_transaction_is_described_while_it_is_open(connection: Connection, topic: str) -> None:
    owner = new_owner(connection)
    add(connection, owner, topic)
    assert produce(connection, owner, topic) is ErrorCode.none
    answer = connection.call("describe_transactions", 0, transactional_ids=[owner.transactional_id])
    (described,) = answer.transaction_states
    assert (described.error_code, described.transaction_state) == (ErrorCode.none, "Ongoing")
    assert (described.producer_id, described.producer_epoch) == (owner.producer_id, owner.epoch)
    assert [(row.topic, tuple(row.partitions)) for row in described.topics] == [(topic, (0,))]
    topics = [{"name": topic, "partition_indexes": [0]}]
    (part,) = connection.call("describe_producers", 0, topics=topics).topics[0].partitions
    (writer,) = part.active_producers
    assert (writer.producer_id, writer.producer_epoch, writer.last_sequence) == (owner.producer_id, owner.epoch, 0)
    assert writer.current_txn_start_offset == 0


def test_a_transaction_that_nobody_knows_is_told_apart(connection: Connection) -> None:
    answer = connection.call("describe_transactions", 0, transactional_ids=["nobody"])
    assert answer.transaction_states[0].error_code is ErrorCode.transactional_id_not_found


@pytest.mark.parametrize(
    ("name", "timeout_ms", "code"),
    [
        ("", 1000, ErrorCode.invalid_request),
        ("any", 900_001, ErrorCode.invalid_transaction_timeout),
        ("any", 0, ErrorCode.invalid_transaction_timeout),
    ],
)
def test_a_producer_that_asks_for_the_impossible_is_refused(
    connection: Connection, name: str, timeout_ms: int, code: ErrorCode
) -> None:
    assert init(connection, name and fresh(name), timeout_ms).error_code is code


def test_every_producer_without_transactions_gets_an_id_of_its_own(connection: Connection) -> None:
    answers = [init(connection, None, 0) for _ in range(5)]
    assert {answer.producer_epoch for answer in answers} == {0}
    assert len({answer.producer_id for answer in answers}) == 5


def test_offsets_in_an_open_transaction_are_not_stable(connection: Connection, topic: str) -> None:
    owner, group = new_owner(connection), fresh("group")
    assert connection.call("add_offsets_to_txn", 3, **owner.fields, group_id=group).error_code is ErrorCode.none
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 7}]}]
    answer = connection.call("txn_offset_commit", 3, **owner.fields, group_id=group, generation_id=-1, topics=topics)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.none

    def fetched(require_stable: bool) -> tuple[int, ErrorCode]:
        asked = [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}]
        found = connection.call("offset_fetch", 8, groups=asked, require_stable=require_stable)
        part = found.groups[0].topics[0].partitions[0]
        return part.committed_offset, part.error_code

    assert fetched(require_stable=True) == (-1, ErrorCode.unstable_offset_commit)
    assert fetched(require_stable=False) == (-1, ErrorCode.none)
    assert end(connection, owner, commit=True) is ErrorCode.none
    eventually("the offset is committed", lambda: fetched(require_stable=True) == (7, ErrorCode.none))


def test_offsets_for_a_group_that_was_not_added_are_refused(connection: Connection, topic: str) -> None:
    owner, group = new_owner(connection), fresh("group")
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 7}]}]
    answer = connection.call("txn_offset_commit", 3, **owner.fields, group_id=group, generation_id=-1, topics=topics)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.invalid_txn_state
