"""Our own library and command, as a client like the others: against our broker and against Apache Kafka."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Final

import pytest

import penstock
from penstock.errors import InvalidTopicError, OffsetOutOfRangeError, TopicExistsError, UnknownTopicError
from tests.cli.forked import ForkedCommand
from tests.cli.running import Command
from tests.clients.names import fresh
from tests.servers import Server

TIMEOUT_S: Final = 30.0
MORNING: Final = datetime.datetime(2024, 11, 15, 8, 0, tzinfo=datetime.UTC)


@pytest.fixture
def stream(server: Server) -> Iterator[penstock.Connection]:
    with penstock.connect(f"kafka://{server.bootstrap}") as connection:
        yield connection


@pytest.fixture
def run(server: Server) -> Command:
    return ForkedCommand(f"kafka://{server.bootstrap}")


def test_records_come_back_whole_from_every_position(stream: penstock.Connection) -> None:
    topic = fresh()
    stream.create_topic(topic, partitions=2, config={"retention.ms": "-1"})
    for number in range(6):
        when = MORNING + datetime.timedelta(hours=number)
        stream.send(topic, str(number), key="k", headers={"h": "v"}, timestamp=when, partition=number % 2)
    stream.flush(TIMEOUT_S)
    records = list(stream.read(topic))
    assert sorted(record.value or b"" for record in records) == [b"%d" % number for number in range(6)]
    assert {record.headers for record in records} == {(("h", b"v"),)}
    later = [record.value for record in stream.read(topic, MORNING + datetime.timedelta(hours=4))]
    assert sorted(value or b"" for value in later) == [b"4", b"5"]
    assert [record.value for record in stream.read(topic, {1: 1})] == [b"3", b"5"]
    with pytest.raises(OffsetOutOfRangeError, match="has not been written yet"):
        stream.read(topic, {1: 9})
    with pytest.raises(TopicExistsError):
        stream.create_topic(topic)


def test_what_is_refused_says_why(stream: penstock.Connection) -> None:
    topic = fresh()
    stream.create_topic(topic)
    with pytest.raises(penstock.DeliveryError, match=r"raise max\.message\.bytes"):
        stream.send(topic, b"x" * 2_000_000).result(TIMEOUT_S)
    with pytest.raises(UnknownTopicError):
        stream.read(fresh())
    with pytest.raises(InvalidTopicError):
        stream.create_topic("not a topic")
    with pytest.raises(penstock.ConfigError):
        stream.create_topic(fresh(), config={"no.such.setting": "1"})


def test_topics_are_looked_after_from_the_command_line(run: Command) -> None:
    topic = fresh()
    run.well("topics", "create", topic, "--partitions", "2", "--config", "retention.ms=1000000")
    run.well("produce", topic, given="one\ntwo\nthree\n")
    described = run.well("topics", "describe", topic, "--json").json
    assert sum(partition["records"] for partition in described["partitions"]) == 3
    assert sum(partition["size_bytes"] for partition in described["partitions"]) > 50
    assert described["config"]["retention.ms"] == "1000000"
    run.well("topics", "alter", topic, "--partitions", "3", "--reset", "retention.ms")
    described = run.well("topics", "describe", topic, "--json").json
    assert len(described["partitions"]) == 3
    assert "retention.ms" not in described["config"]
    assert topic in {each["topic"] for each in run.well("topics", "--json").json}
    run.well("topics", "delete", topic, "--yes")
    assert topic not in {each["topic"] for each in run.well("topics", "--json").json}


def test_groups_are_looked_after_from_the_command_line(run: Command) -> None:
    topic, group = fresh(), fresh("group")
    run.well("topics", "create", topic)
    run.well("produce", topic, given="0\n1\n2\n3\n")
    assert run.well("consume", topic, "--group", group, "--limit", "3", "--format", "raw").out.split() == [
        "0",
        "1",
        "2",
    ]
    (progress,) = run.well("groups", "describe", group, "--json").json["partitions"]
    assert (progress["committed"], progress["end"], progress["lag"]) == (3, 4, 1)
    run.well("groups", "reset", group, "--to", "-2", "--execute")
    assert run.well("consume", topic, "--group", group, "--format", "raw").out.split() == ["1", "2", "3"]
    assert group in {each["group"] for each in run.well("groups", "--json").json}
    run.well("groups", "delete", group, "--yes")
    missing = run("groups", "describe", group)
    assert (missing.code, "there is no" in missing.err) == (1, True)
