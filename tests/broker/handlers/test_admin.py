"""CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.handlers.admin import MAX_PARTITIONS_PER_REQUEST
from tests.broker.handlers.stand_in import NODE_ID, VERSIONS, StandIn, codes

CREATE, DELETE, ADD = 19, 20, 37


def topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, **more}


def assigned(*broker_ids: list[int]) -> list[dict[str, Any]]:
    return [{"partition_index": number, "broker_ids": ids} for number, ids in enumerate(broker_ids)]


def configs(**values: str | None) -> list[dict[str, Any]]:
    return [{"name": name.replace("_", "."), "value": value} for name, value in values.items()]


def refusal(broker: StandIn, wanted: dict[str, Any]) -> tuple[ErrorCode, str]:
    (result,) = broker.ask(CREATE, topics=[wanted]).topics
    assert result.error_message
    assert broker.topics.get(wanted["name"]) is None
    return result.error_code, result.error_message


@pytest.mark.parametrize("version", range(VERSIONS[CREATE][0], VERSIONS[CREATE][1] + 1))
def test_every_version_creates_topics(broker: StandIn, version: int) -> None:
    wanted = topic("orders", 3, configs=configs(retention_ms="1000"))
    (result,) = broker.ask(CREATE, version, topics=[wanted]).topics
    assert (result.name, result.error_code, result.error_message) == ("orders", ErrorCode.none, None)
    made = broker.topics.get("orders")
    assert made is not None
    assert (len(made.partitions), made.config.retention_ms, made.overrides) == (3, 1000, {"retention.ms": "1000"})
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        shown = {config.name: (config.value, config.config_source) for config in result.configs}
        assert shown["retention.ms"] == ("1000", 1)
        assert shown["segment.bytes"] == ("1073741824", 5)
    if version >= 7:
        assert result.topic_id == made.id


def test_what_is_left_to_the_broker_comes_from_its_settings(start: Callable[..., StandIn]) -> None:
    broker = start({"num.partitions": "4", "log.retention.hours": "1"})
    (result,) = broker.ask(CREATE, topics=[topic("a", -1, -1)]).topics
    assert result.num_partitions == 4
    shown = {config.name: (config.value, config.config_source) for config in result.configs}
    assert shown["retention.ms"] == ("3600000", 4)


def test_validating_only_makes_nothing_but_refuses_the_same(broker: StandIn) -> None:
    good, bad = topic("a", 2), topic("b", configs=configs(retention_ms="-7"))
    results = broker.ask(CREATE, topics=[good, bad], validate_only=True).topics
    assert codes(results) == [ErrorCode.none, ErrorCode.invalid_config]
    assert (results[0].num_partitions, results[0].topic_id) == (2, None)
    assert broker.topics.names() == []


def test_an_existing_topic_is_not_made_again(broker: StandIn) -> None:
    broker.create("a", 2)
    (result,) = broker.ask(CREATE, topics=[topic("a", 5)]).topics
    assert result.error_code is ErrorCode.topic_already_exists
    assert len(broker.topics.get("a").partitions) == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["", ".", "..", "no good", "ä", "x" * 250])
def test_a_bad_name_is_refused(broker: StandIn, name: str) -> None:
    code, message = refusal(broker, topic(name))
    assert code is ErrorCode.invalid_topic_exception
    assert "letters, digits, dots, underscores and dashes" in message


def test_names_that_differ_only_in_dots_and_underscores_collide(broker: StandIn) -> None:
    broker.create("a.b_c")
    code, message = refusal(broker, topic("a_b.c"))
    assert code is ErrorCode.invalid_topic_exception
    assert "'a.b_c'" in message
    assert codes(broker.ask(CREATE, topics=[topic("a-b.c"), topic("a.b_cc")]).topics) == [ErrorCode.none] * 2


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__cluster_metadata"])
def test_the_brokers_own_topics_are_not_for_clients_to_make(broker: StandIn, name: str) -> None:
    assert refusal(broker, topic(name))[0] is ErrorCode.invalid_request


@pytest.mark.parametrize("count", [0, -2, -(2**31)])
def test_there_is_no_topic_without_partitions(broker: StandIn, count: int) -> None:
    code, message = refusal(broker, topic("a", count))
    assert code is ErrorCode.invalid_partitions
    assert "at least 1, or -1" in message


@pytest.mark.parametrize("count", [0, -2, 2, 3])
def test_there_is_one_replica(broker: StandIn, count: int) -> None:
    code, message = refusal(broker, topic("a", 1, count))
    assert code is ErrorCode.invalid_replication_factor
    assert "Use 1, or -1" in message


def test_a_topic_named_twice_is_not_made_and_answered_once(broker: StandIn) -> None:
    results = broker.ask(CREATE, topics=[topic("a", 1), topic("b"), topic("a", 2)]).topics
    assert {result.name: result.error_code for result in results} == {
        "a": ErrorCode.invalid_request,
        "b": ErrorCode.none,
    }
    assert len(results) == 2
    assert broker.topics.names() == ["b"]


def test_a_request_for_far_too_many_partitions_is_refused_as_a_whole(broker: StandIn) -> None:
    half = MAX_PARTITIONS_PER_REQUEST // 2
    results = broker.ask(CREATE, topics=[topic("a", half), topic("b", half), topic("c", 1)]).topics
    assert codes(results) == [ErrorCode.policy_violation] * 3
    assert codes(broker.ask(CREATE, topics=[topic("d", 2**31 - 1)]).topics) == [ErrorCode.policy_violation]
    assert broker.topics.names() == []


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"retention.ms": "-7"}, "retention.ms='-7' is not allowed"),
        ({"retention.msec": "7"}, "did you mean retention.ms"),
        ({"retention.ms": None}, "retention.ms is null"),
        ({"remote.storage.enable": "true"}, "use Apache Kafka for tiered storage"),
    ],
)
def test_bad_settings_are_refused_with_what_to_do(broker: StandIn, values: dict[str, str | None], text: str) -> None:
    wanted = topic("a", configs=[{"name": name, "value": value} for name, value in values.items()])
    code, message = refusal(broker, wanted)
    assert code is ErrorCode.invalid_config
    assert text in message


def test_partitions_may_be_assigned_to_the_only_broker(broker: StandIn) -> None:
    wanted = topic("a", -1, -1, assignments=assigned([NODE_ID], [NODE_ID]))
    (result,) = broker.ask(CREATE, topics=[wanted]).topics
    assert (result.error_code, result.num_partitions) == (ErrorCode.none, 2)


@pytest.mark.parametrize(
    ("assignments", "text"),
    [
        (assigned([NODE_ID + 1]), f"do not exist: {NODE_ID + 1}"),
        (assigned([NODE_ID, 8, 9]), "do not exist: 8, 9"),
        (assigned([]), "names no broker"),
        (assigned([NODE_ID, NODE_ID]), "twice"),
        ([{"partition_index": 1, "broker_ids": [NODE_ID]}], "from 0 without a gap"),
        (assigned([NODE_ID]) * 2, "each once"),
    ],
)
def test_any_other_assignment_is_refused(broker: StandIn, assignments: list[dict[str, Any]], text: str) -> None:
    code, message = refusal(broker, topic("a", -1, -1, assignments=assignments))
    assert code is ErrorCode.invalid_replica_assignment
    assert text in message


@pytest.mark.parametrize(("partitions", "replicas"), [(1, -1), (-1, 1)])
def test_an_assignment_and_numbers_exclude_each_other(broker: StandIn, partitions: int, replicas: int) -> None:
    wanted = topic("a", partitions, replicas, assignments=assigned([NODE_ID]))
    assert refusal(broker, wanted)[0] is ErrorCode.invalid_request


@pytest.mark.parametrize("version", range(VERSIONS[DELETE][0], VERSIONS[DELETE][1] + 1))
def test_every_version_deletes_topics_and_what_groups_know_of_them(broker: StandIn, version: int) -> None:
    broker.create("a")
    broker.create("b")
    by_name = {"topics": [{"name": "a"}]} if version >= 6 else {"topic_names": ["a"]}
    (result,) = broker.ask(DELETE, version, **by_name).responses
    assert (result.name, result.error_code) == ("a", ErrorCode.none)
    assert broker.topics.names() == ["b"]
    assert broker.groups.forgotten == ["a"]


def test_topics_can_be_deleted_by_id(broker: StandIn) -> None:
    broker.create("a")
    topic_id = broker.topics.id_of("a")
    (result,) = broker.ask(DELETE, topics=[{"name": None, "topic_id": topic_id}]).responses
    assert (result.name, result.topic_id, result.error_code) == ("a", topic_id, ErrorCode.none)
    assert broker.topics.names() == []


def test_what_cannot_be_deleted_is_refused_and_the_rest_is_deleted(broker: StandIn) -> None:
    for name in ("a", "b", "c"):
        broker.create(name)
    broker.create("__consumer_offsets", cleanup_policy="compact")
    a, b, c = (broker.topics.id_of(name) for name in ("a", "b", "c"))
    asked: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"name": "a"}, ErrorCode.none),
        ({"name": "nope"}, ErrorCode.unknown_topic_or_partition),
        ({"name": "no good"}, ErrorCode.unknown_topic_or_partition),
        ({"name": None, "topic_id": uuid.UUID(int=99)}, ErrorCode.unknown_topic_id),
        ({"name": "c", "topic_id": c}, ErrorCode.invalid_request),
        ({"name": None}, ErrorCode.invalid_request),
        ({"name": "b"}, ErrorCode.invalid_request),
        ({"name": None, "topic_id": b}, ErrorCode.invalid_request),
        ({"name": "__consumer_offsets"}, ErrorCode.invalid_request),
    ]
    responses = broker.ask(DELETE, topics=[each for each, _ in asked]).responses
    assert codes(responses) == [code for _, code in asked]
    assert all(response.error_message for response in responses[1:])
    assert broker.topics.names() == ["b", "c", "__consumer_offsets"]
    assert a is not None


def test_a_topic_named_twice_is_not_deleted(broker: StandIn) -> None:
    broker.create("a")
    assert codes(broker.ask(DELETE, 5, topic_names=["a", "a"]).responses) == [ErrorCode.invalid_request]
    assert broker.topics.names() == ["a"]


@pytest.mark.parametrize(("version", "code"), [(2, "invalid_request"), (3, "topic_deletion_disabled")])
def test_deletion_can_be_switched_off(start: Callable[..., StandIn], version: int, code: str) -> None:
    broker = start({"delete.topic.enable": "false"})
    broker.create("a")
    assert codes(broker.ask(DELETE, version, topic_names=["a"]).responses) == [ErrorCode[code]]
    assert broker.topics.names() == ["a"]


@pytest.mark.parametrize("version", range(VERSIONS[ADD][0], VERSIONS[ADD][1] + 1))
def test_every_version_adds_partitions(broker: StandIn, version: int) -> None:
    broker.create("a", 2)
    new = [{"broker_ids": [NODE_ID]}]
    wanted = [{"name": "a", "count": 3, "assignments": new if version % 2 else None}]
    assert codes(broker.ask(ADD, version, topics=wanted, validate_only=True).results) == [ErrorCode.none]
    assert not broker.topics.exists("a", 2)
    assert codes(broker.ask(ADD, version, topics=wanted).results) == [ErrorCode.none]
    assert broker.topics.exists("a", 2)


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("a", 2, None, "invalid_partitions"),
        ("a", 1, None, "invalid_partitions"),
        ("a", -1, None, "invalid_partitions"),
        ("nope", 3, None, "unknown_topic_or_partition"),
        ("a", 4, [[NODE_ID]], "invalid_replica_assignment"),
        ("a", 3, [], "invalid_replica_assignment"),
        ("a", 3, [[NODE_ID + 1]], "invalid_replica_assignment"),
        ("a", MAX_PARTITIONS_PER_REQUEST + 3, None, "policy_violation"),
        ("__consumer_offsets", 3, None, "invalid_request"),
    ],
)
def test_partitions_that_cannot_be_added_are_refused(
    broker: StandIn, name: str, count: int, assignments: list[list[int]] | None, code: str
) -> None:
    broker.create("a", 2)
    broker.create("__consumer_offsets", cleanup_policy="compact")
    rows = None if assignments is None else [{"broker_ids": ids} for ids in assignments]
    (result,) = broker.ask(ADD, topics=[{"name": name, "count": count, "assignments": rows}]).results
    assert result.error_code is ErrorCode[code]
    assert result.error_message
    assert not broker.topics.exists("a", 2)


def test_partitions_of_a_topic_named_twice_are_not_added(broker: StandIn) -> None:
    broker.create("a")
    wanted = [{"name": "a", "count": count, "assignments": None} for count in (2, 3)]
    assert codes(broker.ask(ADD, topics=wanted).results) == [ErrorCode.invalid_request]
    assert not broker.topics.exists("a", 1)
