"""Handlers and consumers of a list of topics or of a pattern, whose topics come and go."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import penstock
from penstock import App, ConfigError, Consumer, Context, Position, Record, Topic, TopicPattern
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming import pattern_consumer
from penstock.dead_letters.opening import open_dead_letters
from penstock.errors import HandlerError
from penstock.model import CheckpointKey, DeadLetterFilter, NewRecord
from penstock.streams.aliases import switch
from penstock.streams.memory import MemoryStream
from penstock.testing import run_to_end
from tests.consuming.eventually import wait_until
from tests.consuming.queues_to_handle import running

ORDERS = re.compile(r"orders\..*")


@dataclass
class Order:
    cents: int


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_consumer, "REFRESH_S", 0.05)


def letters(streams: MemoryStream, topic: str) -> list[bytes | None]:
    return [each.record.value for each in open_dead_letters(topic, streams).browse(DeadLetterFilter())]


def test_one_handler_gets_the_records_of_a_list_with_a_checkpoint_for_each_topic(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Callable[..., None], consume: Callable[..., App]
) -> None:
    fill("a", [b"1", b"2"])
    fill("b", [b"3"])
    seen: list[tuple[str, bytes | None]] = []
    app = consume(lambda record: seen.append((record.topic, record.value)), ["a", Topic("b")])
    assert sorted(seen) == [("a", b"1"), ("a", b"2"), ("b", b"3")]
    assert [consumer.counts.succeeded for consumer in app.consumers] == [2, 1]
    assert {key.topic: checkpoint.start for key, checkpoint in store.checkpoints("group").items()} == {"a": 2, "b": 1}
    consume(lambda record: seen.append((record.topic, record.value)), ["a", "b"])
    assert len(seen) == 3


def test_a_list_of_topics_decodes_each_as_its_type(fill: Callable[..., None], consume: Callable[..., App]) -> None:
    fill("a", [b'{"cents": 1}'])
    fill("b", [b'{"cents": 2}'])
    seen: list[Order] = []
    consume(lambda order: seen.append(order), [Topic("a", Order), Topic("b", Order)])
    assert sorted(order.cents for order in seen) == [1, 2]


def test_a_pattern_takes_its_type_from_the_handler_or_from_topic_pattern(
    fill: Callable[..., None], consume: Callable[..., App]
) -> None:
    fill("orders.eu", [b'{"cents": 1}'])
    seen: list[Any] = []

    def annotated(order: Order) -> None:
        seen.append(order)

    consume(annotated, ORDERS, group="annotated")
    consume(lambda order: seen.append(order), TopicPattern(ORDERS, Order), group="declared")
    consume(lambda value: seen.append(value), ORDERS, group="plain")
    assert seen == [Order(1), Order(1), b'{"cents": 1}']


@pytest.mark.parametrize("options", [{}, {"order": "none", "shared": True}], ids=["partitions", "shared"])
def test_topics_that_appear_later_join_and_deleted_ones_leave_without_ending_the_app(
    streams: MemoryStream, fill: Callable[..., None], options: dict[str, Any]
) -> None:
    fill("orders.eu", [b"1"])
    app = App(streams, group="group")
    seen: list[bytes] = []
    app.handle(ORDERS, **options)(lambda value: seen.append(value))
    with running(app):
        wait_until(lambda: seen == [b"1"])
        fill("orders.us", [b"2", b"3"])
        fill("users", [b"never"])
        wait_until(lambda: seen == [b"1", b"2", b"3"])
        assert sorted(health.topic for health in app.health()) == ["orders.eu", "orders.us"]
        streams.delete_topic("orders.us")
        wait_until(lambda: [consumer.handler.topic.name for consumer in app.consumers] == ["orders.eu"])
        fill("orders.eu", [b"4"])
        wait_until(lambda: seen[3:] == [b"4"])


def test_a_topic_that_was_deleted_and_created_again_is_read_from_its_beginning(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Callable[..., None]
) -> None:
    app = App(streams, group="group", checkpoints=store)
    seen: list[bytes] = []
    app.handle(ORDERS)(lambda value: seen.append(value))
    with running(app):
        for round in range(3):
            fill("orders.eu", [b"a", b"b"])
            wait_until(lambda: seen == [b"a", b"b"] * (round + 1))  # noqa: B023
            wait_until(lambda: store.load(CheckpointKey("group", "orders.eu", 0)).start == 2)  # type: ignore[union-attr]
            streams.delete_topic("orders.eu")
            wait_until(lambda: not app.consumers)


def test_a_pattern_without_topics_waits_and_a_run_with_an_end_returns(
    streams: MemoryStream, fill: Callable[..., None]
) -> None:
    app = App(streams, group="group")
    seen: list[bytes] = []
    app.handle(ORDERS)(lambda value: seen.append(value))
    app.run(end="latest")
    assert seen == []
    with running(app):
        wait_until(lambda: app._consumers and not app.unready())
        fill("orders.eu", [b"1"])
        wait_until(lambda: seen == [b"1"])


def test_dead_letters_go_to_a_topic_for_each_topic_and_are_not_handled_themselves(
    streams: MemoryStream, fill: Callable[..., None]
) -> None:
    fill("orders.eu", [b"bad", b"good"])
    fill("orders.us", [b"bad"])
    app = App(streams, group="group")
    seen: list[bytes] = []

    @app.handle(re.compile(".*"), retry=1)
    def handle(value: bytes) -> None:
        seen.append(value)
        if value == b"bad":
            raise ValueError(value)

    result = run_to_end(app)
    assert sorted(letter.record.topic for letter in result.dead_letters) == ["orders.eu", "orders.us"]
    assert letters(streams, "orders.eu.dlq") == [b"bad"]
    assert letters(streams, "orders.us.dlq") == [b"bad"]
    run_to_end(app)
    assert sorted(seen) == [b"bad"] * 4 + [b"good"] * 2  # memory keeps progress for one run


def test_the_output_and_the_named_dead_letters_of_a_handler_do_not_match_its_pattern(
    streams: MemoryStream, fill: Callable[..., None], consume: Callable[..., App]
) -> None:
    fill("orders.eu", [b"1", b"bad"])
    seen: list[bytes] = []

    def handle(value: bytes) -> bytes:
        seen.append(value)
        if value == b"bad":
            raise penstock.Reject("no")
        return value

    for _ in range(3):
        consume(handle, re.compile(".*"), to="results", dead_letters="letters")
    assert seen == [b"1", b"bad"]


def test_a_topic_is_left_to_the_handler_that_names_it_or_whose_pattern_came_first(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Callable[..., None]
) -> None:
    for topic in ("orders.eu", "orders.us", "users"):
        fill(topic, [topic.encode()])
    app = App(streams, group="group", checkpoints=store)
    seen: dict[str, list[bytes]] = {"all": [], "orders": [], "eu": [], "other group": []}
    app.handle(ORDERS)(seen["orders"].append)
    app.handle(re.compile(".*"))(seen["all"].append)
    app.handle("orders.eu")(seen["eu"].append)
    app.handle(re.compile("users"), group="others")(seen["other group"].append)
    app.run(end="latest")
    assert seen == {"all": [b"users"], "orders": [b"orders.us"], "eu": [b"orders.eu"], "other group": [b"users"]}


def test_an_alias_does_not_match_beside_the_topic_it_leads_to(
    streams: MemoryStream, fill: Callable[..., None], consume: Callable[..., App]
) -> None:
    fill("spend", [b"old"])
    fill("spend.v2", [b"new"])
    switch(streams, "spend", "spend.v2")
    seen: list[bytes] = []
    consume(lambda value: seen.append(value), re.compile("spend.*"))
    assert seen == [b"new"]


def test_a_topic_that_becomes_an_alias_while_it_is_consumed_goes_on(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Callable[..., None]
) -> None:
    fill("spend", [b"1"])
    app = App(streams, group="group", checkpoints=store)
    seen: list[bytes] = []
    app.handle(re.compile("spend.*"))(seen.append)
    with running(app):
        wait_until(lambda: seen == [b"1"])
        fill("spend.v2", [b"2"])
        switch(streams, "spend", "spend.v2")
        wait_until(lambda: seen == [b"1", b"2"])
        fill("spend", [b"3"])
        wait_until(lambda: seen == [b"1", b"2", b"3"])


def test_two_members_share_the_partitions_of_a_pattern(fill: Callable[..., None], store: MemoryCheckpoints) -> None:
    streams = MemoryStream(partitions=4)
    apps, seen = [], []
    both = threading.Barrier(2, timeout=20)
    for member in range(2):
        app = App(streams, group="group", checkpoints=store)
        waited: list[int] = []

        def handle(record: Record, member: int = member, waited: list[int] = waited) -> None:
            if not waited:
                waited.append(member)
                both.wait()
            seen.append((member, record.topic, record.value))

        app.handle(ORDERS, session_timeout_s=2.0)(handle)
        apps.append(app)
    names = ["orders.eu", "orders.us"]
    with running(*apps):
        for name in names:
            streams.create_topic(name)
        wait_until(lambda: all(len(app.health()) == 2 for app in apps))
        wait_until(lambda: all(len(each.partitions) == 2 for app in apps for each in app.health()))
        for name in names:
            records = [NewRecord(name, str(number).encode(), partition=number % 4) for number in range(100)]
            streams.open_topic(name).append(records)
        wait_until(lambda: len(seen) == 200)
    assert len({(topic, value) for _, topic, value in seen}) == 200
    assert {(member, topic) for member, topic, _ in seen} == {(member, name) for member in range(2) for name in names}


def test_an_error_in_one_topic_ends_the_app(streams: MemoryStream, fill: Callable[..., None]) -> None:
    fill("orders.eu", [b"1"])
    fill("orders.us", [b"1"])
    app = App(streams, group="group")
    app.handle(ORDERS, dead_letters=False, retry=1)(lambda value: 1 / 0)
    with pytest.raises(penstock.PenstockError, match="orders"):
        app.run()


def test_a_task_goes_to_a_topic_that_matches(streams: MemoryStream, fill: Callable[..., None]) -> None:
    fill("incoming", [b"1"])
    app = App(streams, group="group")
    seen: list[Order] = []

    @app.handle("incoming")
    def fan_out(value: bytes, ctx: Context) -> None:
        ctx.emit("orders.eu", Order(7))

    @app.handle(ORDERS)
    def handle(order: Order) -> None:
        seen.append(order)

    with running(app):
        wait_until(lambda: seen == [Order(7)])


def test_the_asyncapi_document_shows_a_pattern_as_a_channel_without_an_address() -> None:
    app = App("memory:", group="group")

    @app.handle(ORDERS)
    def handle(order: Order) -> None: ...

    (channel,) = app.asyncapi()["channels"].values()
    assert channel["address"] is None
    assert r"orders\\..*" in channel["description"]


@pytest.mark.parametrize("topics", [["a", "b"], ORDERS])
@pytest.mark.parametrize(
    "options",
    [
        {"start": Position.at_pointer(3)},
        {"end": Position.at_pointer(3)},
        {"on_assigned": print},
        {"snapshot": lambda partition: None, "restore": lambda partition, state: None},
    ],
)
def test_options_that_mean_one_topic_are_refused_with_several(topics: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"topic"):
        App("memory:", group="group").handle(topics, **options)
    if "snapshot" not in options:
        with pytest.raises(ConfigError, match=r"topic"):
            Consumer("memory:", topics, group="group", **options)


def test_options_that_are_not_possible_are_refused_before_a_topic_matches(streams: MemoryStream) -> None:
    app = App(streams, group="group")
    app.handle(ORDERS, guarantee="exactly-once")(lambda value: None)
    with pytest.raises(penstock.PenstockError, match="exactly-once"):
        app.run()


def test_the_same_pattern_twice_in_a_group_is_refused() -> None:
    app = App("memory:", group="group")
    app.handle(ORDERS)(lambda value: None)
    with pytest.raises(HandlerError, match="both handle"):
        app.handle(ORDERS)(lambda value: None)


@pytest.mark.parametrize("topics", [["orders.eu", "orders.us"], ORDERS])
def test_a_consumer_polls_several_topics_and_marks_each_record(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Callable[..., None], topics: Any
) -> None:
    fill("orders.eu", 3000)
    fill("orders.us", [b"1", b"2"])
    with Consumer(streams, topics, group="group", checkpoints=store, retry=1) as consumer:
        wait_until(lambda: consumer.topics == ["orders.eu", "orders.us"])
        wait_until(lambda: all(consumer.health(topic).partitions for topic in consumer.topics))
        records: list[Record] = []
        while len(records) < 3002:
            records += consumer.poll(5.0, limit=100)
        assert max(number for number, record in enumerate(records) if record.topic == "orders.us") < 500
        for record in records:
            if record.value == b"2" and record.topic == "orders.us":
                consumer.failed(record, ValueError("no"))
            else:
                consumer.done(record)
        wait_until(lambda: letters(streams, "orders.us.dlq") == [b"2"])
        assert consumer.commit().result() == {("orders.eu", 0): 3000, ("orders.us", 0): 2}
        with pytest.raises(ConfigError, match="say of which topic"):
            consumer.seek(0, 0)
        consumer.seek(0, 2999, topic="orders.eu")
        again: list[Record] = []
        while not again:
            again = consumer.poll(5.0)
        assert [(record.topic, record.offset) for record in again] == [("orders.eu", 2999)]
    assert {key.topic: each.start for key, each in store.checkpoints("group").items()} == {
        "orders.eu": 2999,
        "orders.us": 2,
    }


def test_a_consumer_of_a_pattern_follows_its_topics(streams: MemoryStream, fill: Callable[..., None]) -> None:
    fill("orders.eu", [b'{"cents": 1}'])
    with Consumer(streams, TopicPattern(ORDERS, Order), group="group") as consumer:
        (first,) = poll_some(consumer)
        assert consumer.decode(first) == Order(1)
        fill("orders.us", [b'{"cents": 2}'])
        (second,) = poll_some(consumer)
        assert consumer.decode(second) == Order(2)
        streams.delete_topic("orders.us")
        wait_until(lambda: consumer.topics == ["orders.eu"])
        consumer.done(second)  # its topic is gone, and with it what could be saved
        consumer.done(first)
        with pytest.raises(ConfigError, match="not pending"):
            consumer.done(first)


def poll_some(consumer: Consumer) -> list[Record]:
    records: list[Record] = []
    wait_until(lambda: records.extend(consumer.poll(0.5)) or records)  # type: ignore[func-returns-value]
    return records


def test_iterating_over_several_topics_ends_when_all_are_at_their_end(
    streams: MemoryStream, fill: Callable[..., None]
) -> None:
    fill("orders.eu", 10)
    fill("orders.us", 5)
    for topics in (["orders.eu", "orders.us"], ORDERS):
        with Consumer(streams, topics, group=str(topics), end="latest") as consumer:
            assert len(list(consumer)) == 15
            assert consumer.has_ended
