"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.settings import BROKER_SETTINGS
from penstock.log.config import TOPIC_SETTINGS
from tests.broker.handlers.stand_in import NODE_ID, VERSIONS, StandIn, codes

DESCRIBE, ALTER, INCREMENTAL, LIST = 32, 33, 44, 74
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
VISIBLE = {name for name, setting in TOPIC_SETTINGS.items() if not setting.hidden}


def resource(kind: int, name: str, *keys: str) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}


def topic_change(name: str, *changes: tuple[str, int, str | None]) -> dict[str, Any]:
    configs = [{"name": setting, "config_operation": op, "value": value} for setting, op, value in changes]
    return {"resource_type": TOPIC, "resource_name": name, "configs": configs}


def alter(broker: StandIn, *changes: tuple[str, int, str | None], name: str = "a", **fields: Any) -> Any:
    (response,) = broker.ask(INCREMENTAL, resources=[topic_change(name, *changes)], **fields).responses
    return response


def overrides(broker: StandIn, name: str = "a") -> dict[str, str]:
    topic = broker.topics.get(name)
    assert topic is not None
    return topic.overrides


@pytest.mark.parametrize("version", range(VERSIONS[DESCRIBE][0], VERSIONS[DESCRIBE][1] + 1))
def test_every_version_describes_a_topic(broker: StandIn, version: int) -> None:
    broker.create("a", retention_ms="1000")
    asked = {"resources": [resource(TOPIC, "a")], "include_synonyms": True, "include_documentation": True}
    (result,) = broker.ask(DESCRIBE, version, **asked).results
    assert (result.error_code, result.resource_name) == (ErrorCode.none, "a")
    rows = {config.name: config for config in result.configs}
    assert set(rows) == VISIBLE
    retention = rows["retention.ms"]
    assert (retention.value, retention.config_source, retention.is_sensitive) == ("1000", 1, False)
    synonyms = [(each.name, each.value, each.source) for each in retention.synonyms]
    assert synonyms == [("retention.ms", "1000", 1), ("log.retention.hours", "168", 5)]
    if version >= 3:
        assert retention.config_type == 5
        assert retention.documentation.startswith("The age beyond which segments are deleted")


def test_synonyms_and_documentation_come_when_they_are_asked_for(broker: StandIn) -> None:
    broker.create("a")
    (result,) = broker.ask(DESCRIBE, resources=[resource(TOPIC, "a", "retention.ms")]).results
    assert [(row.synonyms, row.documentation) for row in result.configs] == [((), None)]


def test_only_the_settings_that_are_asked_for_are_described(broker: StandIn) -> None:
    broker.create("a")
    (result,) = broker.ask(DESCRIBE, resources=[resource(TOPIC, "a", "retention.ms", "nope")]).results
    assert [row.name for row in result.configs] == ["retention.ms"]
    (everything,) = broker.ask(DESCRIBE, resources=[{**resource(TOPIC, "a"), "configuration_keys": []}]).results
    assert {row.name for row in everything.configs} == VISIBLE


def test_the_broker_describes_itself(start: Callable[..., StandIn]) -> None:
    broker = start({"num.partitions": "3"})
    asked = [resource(BROKER, str(NODE_ID)), resource(BROKER, "")]
    result, shared = broker.ask(DESCRIBE, resources=asked, include_synonyms=True).results
    rows = {row.name: row for row in result.configs}
    assert set(rows) == {*BROKER_SETTINGS, "broker.id", "log.dirs", "node.id"}
    assert (rows["num.partitions"].value, rows["num.partitions"].config_source) == ("3", 4)
    assert (rows["log.retention.ms"].value, rows["log.retention.hours"].value) == (None, "168")
    assert (rows["node.id"].value, rows["log.dirs"].value) == (str(NODE_ID), str(broker.data_folder))
    assert all(row.read_only for row in result.configs)
    assert (shared.error_code, shared.configs) == (ErrorCode.none, ())


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nope", "unknown_topic_or_partition"),
        (TOPIC, "no good", "invalid_topic_exception"),
        (TOPIC, "", "invalid_topic_exception"),
        (BROKER, "99", "invalid_request"),
        (BROKER, "x", "invalid_request"),
        (8, str(NODE_ID), "invalid_request"),
        (16, "subscription", "invalid_request"),
        (32, "group", "invalid_request"),
        (99, "x", "invalid_request"),
    ],
)
def test_what_has_no_settings_is_refused_with_the_reason(broker: StandIn, kind: int, name: str, code: str) -> None:
    change = {**topic_change(name, ("retention.ms", SET, "1")), "resource_type": kind}
    described = broker.ask(DESCRIBE, resources=[resource(kind, name)]).results
    altered = broker.ask(INCREMENTAL, resources=[change]).responses
    for answer in (*described, *altered):
        assert (answer.error_code, answer.resource_type, answer.resource_name) == (ErrorCode[code], kind, name)
        assert answer.error_message


@pytest.mark.parametrize("version", range(VERSIONS[INCREMENTAL][0], VERSIONS[INCREMENTAL][1] + 1))
def test_every_version_sets_and_deletes_single_settings(broker: StandIn, version: int) -> None:
    broker.create("a", retention_bytes="5")
    resources = [topic_change("a", ("retention.ms", SET, "1000"), ("retention.bytes", DELETE, None))]
    assert codes(broker.ask(INCREMENTAL, version, resources=resources).responses) == [ErrorCode.none]
    topic = broker.topics.get("a")
    assert topic is not None
    assert topic.overrides == {"retention.ms": "1000"}
    assert topic.partitions[0].config.retention_ms == 1000


def test_lists_are_added_to_and_taken_from_where_they_stand(broker: StandIn) -> None:
    broker.create("a")
    assert alter(broker, ("cleanup.policy", APPEND, "compact")).error_code is ErrorCode.none
    assert overrides(broker) == {"cleanup.policy": "delete,compact"}
    alter(broker, ("cleanup.policy", APPEND, "compact , delete"))
    assert overrides(broker) == {"cleanup.policy": "delete,compact"}
    alter(broker, ("cleanup.policy", SUBTRACT, "delete"))
    assert overrides(broker) == {"cleanup.policy": "compact"}
    alter(broker, ("cleanup.policy", SUBTRACT, "compact,delete"))
    assert overrides(broker) == {"cleanup.policy": ""}


def test_a_list_that_the_broker_sets_is_what_a_topic_adds_to(start: Callable[..., StandIn]) -> None:
    broker = start({"log.cleanup.policy": "compact"})
    broker.create("a")
    alter(broker, ("cleanup.policy", APPEND, "delete"))
    assert overrides(broker) == {"cleanup.policy": "compact,delete"}


def test_deleting_what_is_not_set_changes_nothing(broker: StandIn) -> None:
    broker.create("a")
    version = broker.topics.version
    assert alter(broker, ("retention.ms", DELETE, None), ("nope", DELETE, None)).error_code is ErrorCode.none
    assert broker.topics.version == version


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("retention.ms", SET, "-7")], "invalid_config"),
        ([("retention.msec", SET, "7")], "invalid_config"),
        ([("retention.ms", SET, None)], "invalid_request"),
        ([("cleanup.policy", APPEND, None)], "invalid_request"),
        ([("cleanup.policy", APPEND, "keep")], "invalid_config"),
        ([("retention.ms", APPEND, "7")], "invalid_config"),
        ([("nope", SUBTRACT, "7")], "invalid_config"),
        ([("retention.ms", 9, "7")], "invalid_request"),
        ([("retention.ms", SET, "7"), ("retention.ms", DELETE, None)], "invalid_request"),
        ([("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")], "invalid_config"),
        ([("remote.storage.enable", SET, "true")], "invalid_config"),
        ([("segment.ms", SET, "7"), ("retention.ms", SET, "-7")], "invalid_config"),
    ],
)
def test_a_bad_change_is_refused_and_changes_nothing(
    broker: StandIn, changes: list[tuple[str, int, str | None]], code: str
) -> None:
    broker.create("a", retention_bytes="5")
    response = alter(broker, *changes)
    assert response.error_code is ErrorCode[code]
    assert response.error_message
    assert overrides(broker) == {"retention.bytes": "5"}


def test_validating_only_changes_nothing_but_refuses_the_same(broker: StandIn) -> None:
    broker.create("a")
    assert alter(broker, ("retention.ms", SET, "7"), validate_only=True).error_code is ErrorCode.none
    assert alter(broker, ("retention.ms", SET, "-7"), validate_only=True).error_code is ErrorCode.invalid_config
    assert overrides(broker) == {}


def test_a_topic_named_twice_is_not_changed_and_the_others_are(broker: StandIn) -> None:
    for name in ("a", "b"):
        broker.create(name)
    change = ("retention.ms", SET, "7")
    resources = [topic_change("a", change), topic_change("b", change), topic_change("a", change)]
    responses = broker.ask(INCREMENTAL, resources=resources).responses
    assert codes(responses) == [ErrorCode.invalid_request, ErrorCode.none, ErrorCode.invalid_request]
    assert (overrides(broker, "a"), overrides(broker, "b")) == ({}, {"retention.ms": "7"})


@pytest.mark.parametrize("version", range(VERSIONS[ALTER][0], VERSIONS[ALTER][1] + 1))
def test_altering_as_a_whole_resets_what_is_not_named(broker: StandIn, version: int) -> None:
    broker.create("a", retention_bytes="5")
    configs = [{"name": "retention.ms", "value": "7"}]
    resources = [{"resource_type": TOPIC, "resource_name": "a", "configs": configs}]
    assert codes(broker.ask(ALTER, version, resources=resources, validate_only=True).responses) == [ErrorCode.none]
    assert overrides(broker) == {"retention.bytes": "5"}
    assert codes(broker.ask(ALTER, version, resources=resources).responses) == [ErrorCode.none]
    assert overrides(broker) == {"retention.ms": "7"}


def test_altering_as_a_whole_refuses_null_and_settings_named_twice(broker: StandIn) -> None:
    broker.create("a", retention_bytes="5")
    for configs in (
        [{"name": "retention.ms", "value": None}],
        [{"name": "retention.ms", "value": "1"}, {"name": "retention.ms", "value": "2"}],
    ):
        resources = [{"resource_type": TOPIC, "resource_name": "a", "configs": configs}]
        assert codes(broker.ask(ALTER, resources=resources).responses) == [ErrorCode.invalid_request]
    assert overrides(broker) == {"retention.bytes": "5"}


def test_the_brokers_settings_stay_as_they_were_at_its_start(broker: StandIn) -> None:
    for api_key in (ALTER, INCREMENTAL):
        configs = [{"name": "num.partitions", "value": "3"}]
        resources = [{"resource_type": BROKER, "resource_name": str(NODE_ID), "configs": configs}]
        (response,) = broker.ask(api_key, resources=resources).responses
        assert response.error_code is ErrorCode.invalid_request
        assert "penstock serve --config" in response.error_message


def test_the_brokers_own_topics_stay_compacted_and_writable_but_can_be_tuned(broker: StandIn) -> None:
    name = "__consumer_offsets"
    broker.create(name, cleanup_policy="compact")
    assert alter(broker, ("segment.bytes", SET, "2000000"), name=name).error_code is ErrorCode.none
    for change in (
        ("cleanup.policy", SET, "delete"),
        ("cleanup.policy", APPEND, "delete"),
        ("cleanup.policy", DELETE, None),
        ("min.insync.replicas", SET, "2"),
    ):
        response = alter(broker, change, name=name)
        assert response.error_code is ErrorCode.invalid_config
        assert name in response.error_message
    reset = [{"resource_type": TOPIC, "resource_name": name, "configs": []}]
    assert codes(broker.ask(ALTER, resources=reset).responses) == [ErrorCode.invalid_config]
    assert overrides(broker, name) == {"cleanup.policy": "compact", "segment.bytes": "2000000"}


def test_what_has_settings_is_listed(broker: StandIn) -> None:
    broker.create("a")
    assert broker.ask(LIST, 0).config_resources == ()

    def listed(*kinds: int) -> list[tuple[int, str]]:
        answer = broker.ask(LIST, resource_types=kinds)
        assert answer.error_code is ErrorCode.none
        return [(row.resource_type, row.resource_name) for row in answer.config_resources]

    assert listed() == [(BROKER, str(NODE_ID)), (TOPIC, "a")]
    assert listed(TOPIC) == [(TOPIC, "a")]
    assert listed(8, 16, 32) == []
    assert broker.ask(LIST, resource_types=[99]).error_code is ErrorCode.unsupported_version
