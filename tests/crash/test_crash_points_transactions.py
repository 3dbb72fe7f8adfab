"""The broker dies at every single change of its files in the course of a transaction, which happens whole or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from kio.schema.errors import ErrorCode

from tests.clients import confluent, wire
from tests.clients.waiting import eventually
from tests.crash.crash_points import Crasher, CrashingBroker, Promised, call, die_at_every_point
from tests.crash.transacting import Transaction

TOPICS: Final = ("orders", "payments")
GROUP: Final = "group"
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
        transaction = Transaction(connection, TOPICS)
        transaction.write(b"earlier")
        assert transaction.end(commit=True) is ErrorCode.none
    broker.kill()
    return data


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
        after = Transaction(connection, TOPICS)
        eventually("the offsets are decided", lambda: committed_offset(connection) in (-1, OFFSET))
        happened = committed_offset(connection) == OFFSET
        assert not happened or commits, "an aborted transaction was committed"
        assert happened or not commits or "ended" not in promised, "a committed transaction is gone"
        expected = [b"earlier", b"value", b"second value"] if happened else [b"earlier"]
        after.write(b"after")
        assert after.end(commit=True) is ErrorCode.none
        assert visible(broker) == [[*expected, b"after"]] * 2


def transact(broker: CrashingBroker, promised: Promised, *, commit: bool) -> None:
    with broker.connect() as connection:
        transaction = Transaction(connection, TOPICS)
        transaction.write(b"value")
        transaction.commit_offset(GROUP, OFFSET)
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
