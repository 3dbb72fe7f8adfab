"""The broker dies at every single change of its files in the course of a transaction, which happens whole or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode

from tests.clients import confluent, wire
from tests.clients.batches import batch
from tests.clients.waiting import eventually
from tests.crash.crash_points import Crasher, CrashingBroker, Promised, call, die_at_every_point

TOPICS: Final = ("orders", "payments")
GROUP: Final = "group"
NAME: Final = "transactional"
COMMITTED: Final = {"isolation.level": "read_committed"}
OFFSET: Final = 5


@pytest.fixture(scope="module")
def crasher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crasher]:
    with Crasher(tmp_path_factory.mktemp("transactions")) as starting:
        yield starting


@pytest.fixture(scope="module")
def template(crasher: Crasher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics, and a producer that has committed one transaction to both of them."""
    data = tmp_path_factory.mktemp("template") / "data"
    broker = crasher.start(data)
    assert broker.wait_until_listening()
    with broker.connect() as connection:
        for topic in TOPICS:
            new = {"name": topic, "num_partitions": 1, "replication_factor": 1}
            call(connection, "create_topics", 7, topics=[new], timeout=10_000)
        transaction = Transaction(connection)
        transaction.write(b"earlier")
        assert transaction.end(commit=True) is ErrorCode.none
    broker.kill()
    return data


class Transaction:
    """One, by hand: each step is one request."""

    def __init__(self, connection: wire.Connection) -> None:
        self._connection = connection
        given = eventually("nobody else uses the name", lambda: initialised(connection))
        assert given is not None
        self._producer = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
        self._sequence = 0

    def write(self, value: bytes) -> None:
        """The value to all topics."""
        fields = {f"v3_and_below_{name}": number for name, number in self._producer.items()}
        partitions = [{"name": topic, "partitions": [0]} for topic in TOPICS]
        answer = call(
            self._connection,
            "add_partitions_to_txn",
            3,
            v3_and_below_transactional_id=NAME,
            v3_and_below_topics=partitions,
            **fields,
        )
        codes = {part.partition_error_code for topic in answer.results_by_topic_v3_and_below for part in _parts(topic)}
        assert codes == {ErrorCode.none}
        producer_id, epoch = self._producer["producer_id"], self._producer["producer_epoch"]
        records = batch([value], producer_id=producer_id, epoch=epoch, sequence=self._sequence, transactional=True)
        self._sequence += 1
        data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]} for topic in TOPICS]
        stored = call(self._connection, "produce", 9, transactional_id=NAME, acks=-1, timeout=10_000, topic_data=data)
        assert {topic.partition_responses[0].error_code for topic in stored.responses} == {ErrorCode.none}

    def commit_offset(self, offset: int) -> None:
        member = {"transactional_id": NAME, "group_id": GROUP, **self._producer}
        assert call(self._connection, "add_offsets_to_txn", 3, **member).error_code is ErrorCode.none
        topics = [{"name": TOPICS[0], "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
        answer = call(self._connection, "txn_offset_commit", 3, **member, generation_id=-1, topics=topics)
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none

    def end(self, *, commit: bool) -> ErrorCode:
        fields = {"transactional_id": NAME, "committed": commit, **self._producer}
        code: ErrorCode = call(self._connection, "end_txn", 3, **fields).error_code
        return code


def _parts(topic: Any) -> Any:
    return topic.results_by_partition


def initialised(connection: wire.Connection) -> Any:
    """The producer's identity; None while the coordinator still ends what an earlier one has left open."""
    answer = call(connection, "init_producer_id", 4, transactional_id=NAME, transaction_timeout=60_000)
    if answer.error_code is ErrorCode.concurrent_transactions:
        return None
    assert answer.error_code is ErrorCode.none
    return answer


def visible(broker: CrashingBroker) -> list[list[bytes | None]]:
    return [confluent.values_of(confluent.read_to_end(broker, topic, settings=COMMITTED)) for topic in TOPICS]


def committed_offset(connection: wire.Connection) -> int:
    wanted = [{"name": TOPICS[0], "partition_indexes": [0]}]
    answer = call(connection, "offset_fetch", 7, group_id=GROUP, topics=wanted, require_stable=True)
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def check_whole_or_not_at_all(broker: CrashingBroker, promised: Promised, *, commits: bool) -> None:
    """The transaction under way, if it is still open, is ended by the producer's next instance."""
    with broker.connect() as connection:
        after = Transaction(connection)
        eventually("the offsets are decided", lambda: committed_offset(connection) in (-1, OFFSET))
        happened = committed_offset(connection) == OFFSET
        assert not happened or commits, "an aborted transaction was committed"
        assert happened or not commits or "ended" not in promised, "a committed transaction is gone"
        expected = [b"earlier", b"value", b"second value"] if happened else [b"earlier"]
        assert visible(broker) == [expected, expected]
        after.write(b"after")
        assert after.end(commit=True) is ErrorCode.none
        assert visible(broker) == [[*expected, b"after"]] * 2


def transact(broker: CrashingBroker, promised: Promised, *, commit: bool) -> None:
    with broker.connect() as connection:
        transaction = Transaction(connection)
        transaction.write(b"value")
        transaction.commit_offset(OFFSET)
        transaction.write(b"second value")
        assert transaction.end(commit=commit) is ErrorCode.none
        promised.add("ended")


def test_while_a_transaction_is_committed(crasher: Crasher, template: Path) -> None:
    def act(broker: CrashingBroker, promised: Promised) -> None:
        transact(broker, promised, commit=True)

    def check(broker: CrashingBroker, promised: Promised) -> None:
        check_whole_or_not_at_all(broker, promised, commits=True)

    assert die_at_every_point(crasher, template, act, check) >= 25


def test_while_a_transaction_is_aborted(crasher: Crasher, template: Path) -> None:
    def act(broker: CrashingBroker, promised: Promised) -> None:
        transact(broker, promised, commit=False)

    def check(broker: CrashingBroker, promised: Promised) -> None:
        check_whole_or_not_at_all(broker, promised, commits=False)

    assert die_at_every_point(crasher, template, act, check) >= 25
