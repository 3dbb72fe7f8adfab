"""Reading a list of topics or a pattern: in turns, to the end of all, and on with topics that come later."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import ConfigError, Position
from penstock.errors import ConnectionClosedError, InvalidTopicError, UnknownTopicError
from penstock.streams import merged_reader
from tests.clients.names import fresh
from tests.servers import Penstock

TIMEOUT_S = 30.0


@pytest.fixture(params=["kafka:", "memory:"])
def stream(request: pytest.FixtureRequest) -> Iterator[penstock.Connection]:
    if request.param == "memory:":
        url = f"memory:{fresh()}"
    else:
        server: Penstock = request.getfixturevalue("server")
        url = f"kafka://{server.bootstrap}"
    with penstock.connect(url) as connection:
        yield connection


@pytest.fixture
def prefix() -> str:
    """What the names of this test's topics begin with: the broker is shared."""
    return fresh()


def send(stream: penstock.Connection, topic: str, *values: str) -> None:
    for value in values:
        stream.send(topic, value)
    stream.flush(TIMEOUT_S)


def values(records: list[penstock.Record]) -> dict[str, list[str]]:
    """The values by topic."""
    found: dict[str, list[str]] = {}
    for record in records:
        found.setdefault(record.topic, []).append((record.value or b"").decode())
    return found


def test_a_list_is_read_to_the_end_of_all_its_topics(stream: penstock.Connection, prefix: str) -> None:
    names = [f"{prefix}.{letter}" for letter in "abc"]
    for name in names:
        stream.create_topic(name)
    send(stream, names[0], "1", "2", "3")
    send(stream, names[2], "4")
    reader = stream.read(names)
    send(stream, names[1], "too late")
    assert values(list(reader)) == {names[0]: ["1", "2", "3"], names[2]: ["4"]}


def test_a_pattern_is_read_to_the_end_of_the_topics_that_match(stream: penstock.Connection, prefix: str) -> None:
    for name in ("orders.eu", "orders.us", "orders.us.dlq", "users"):
        send(stream, f"{prefix}.{name}", name)
    found = values(list(stream.read(re.compile(rf"{prefix}\.orders\..*"))))
    assert found == {f"{prefix}.orders.eu": ["orders.eu"], f"{prefix}.orders.us": ["orders.us"]}
    assert list(stream.read(re.compile(f"{prefix}.none"))) == []


def test_a_large_topic_does_not_hold_up_a_small_one() -> None:
    with penstock.connect("memory:") as stream:
        send(stream, "large", *map(str, range(5_000)))
        send(stream, "small", "small")
        records = list(stream.read(["large", "small"]))
    assert len(records) == 5_001
    assert [record.topic for record in records].index("small") <= 100
    assert values(records)["large"] == list(map(str, range(5_000)))


def test_the_limit_counts_over_all_topics(stream: penstock.Connection, prefix: str) -> None:
    send(stream, f"{prefix}.a", *map(str, range(300)))
    send(stream, f"{prefix}.b", *map(str, range(300)))
    assert len(list(stream.read(re.compile(rf"{prefix}\..*"), limit=450))) == 450
    assert list(stream.read([f"{prefix}.a", f"{prefix}.b"], limit=0)) == []


def test_following_a_pattern_picks_up_new_topics_and_drops_deleted_ones(
    stream: penstock.Connection, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_reader, "REFRESH_S", 0.1)
    send(stream, f"{prefix}.a", "1")
    with stream.read(re.compile(rf"{prefix}\..*"), "latest", follow=True, timeout_s=TIMEOUT_S) as reader:
        send(stream, f"{prefix}.b", "2", "3")
        assert [next(reader).value for _ in range(2)] == [b"2", b"3"]
        stream.delete_topic(f"{prefix}.b")
        send(stream, f"{prefix}.a", "4")
        assert next(reader).value == b"4"
        send(stream, f"{prefix}.c", "5")
        record = next(reader)
        assert (record.topic, record.value) == (f"{prefix}.c", b"5")


def test_following_a_pattern_without_topics_waits_and_ends_after_the_timeout(
    stream: penstock.Connection, prefix: str
) -> None:
    assert list(stream.read(re.compile(prefix), follow=True, timeout_s=0.3)) == []


def test_several_topics_are_read_with_async_for(stream: penstock.Connection, prefix: str) -> None:
    send(stream, f"{prefix}.a", "1")
    send(stream, f"{prefix}.b", "2")

    async def read() -> list[penstock.Record]:
        return [record async for record in stream.read([f"{prefix}.a", f"{prefix}.b"])]

    assert values(asyncio.run(read())) == {f"{prefix}.a": ["1"], f"{prefix}.b": ["2"]}


def test_closing_ends_a_reader_that_follows_and_fails_one_that_was_not_at_its_end(
    stream: penstock.Connection, prefix: str
) -> None:
    names = [f"{prefix}.a", f"{prefix}.b"]
    for name in names:
        send(stream, name, *map(str, range(2_000)))
    follower = stream.read(names, "latest", follow=True)
    closing = threading.Timer(0.2, follower.close)
    closing.start()
    assert list(follower) == []
    closing.join()
    partial = stream.read(names)
    next(partial)
    partial.close()
    with pytest.raises(ConnectionClosedError, match="before its end"):
        list(partial)


def test_a_topic_of_a_list_that_does_not_exist_is_an_error(stream: penstock.Connection, prefix: str) -> None:
    send(stream, f"{prefix}.a", "1")
    with pytest.raises(UnknownTopicError, match=f"{prefix}.b"):
        stream.read([f"{prefix}.a", f"{prefix}.b"])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"start": {0: 1}}, "one topic only"),
        ({"start": Position.at_pointer(3)}, "one topic only"),
        ({"partitions": [0]}, "needs one topic"),
    ],
)
@pytest.mark.parametrize("topics", [["a", "b"], re.compile("a")])
def test_offsets_and_partitions_need_one_topic(topics: Any, asked: dict[str, Any], said: str) -> None:
    with penstock.connect("memory:") as stream, pytest.raises(ConfigError, match=said):
        stream.read(topics, **asked)


@pytest.mark.parametrize("topics", [[penstock.Topic("a"), "b"], penstock.TopicPattern(re.compile("a"))])
def test_reading_gives_bytes_so_types_are_refused(topics: Any) -> None:
    with penstock.connect("memory:") as stream, pytest.raises(InvalidTopicError, match="Values are bytes"):
        stream.read(topics)
