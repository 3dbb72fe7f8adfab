"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.settings import BROKER_SETTINGS
from penstock.log.configs.topic_config import TOPIC_SETTINGS
from tests.broker.handlers.stand_in import NODE_ID, VERSIONS, StandIn, codes

DESCRIBE, ALTER, INCREMENTAL, LIST = 32, 33, 44, 74
TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
VISIBLE = {name for name, setting in TOPIC_SETTINGS.items() if not setting.hidden}
DYNAMIC = {name for name, setting in BROKER_SETTINGS.items() if setting.dynamic}


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
    assert set(rows) == {*BROKER_SETTINGS, "broker.id", "log.dirs"}
    assert (rows["num.partitions"].value, rows["num.partitions"].config_source) == ("3", 4)
    assert (rows["log.retention.ms"].value, rows["log.retention.hours"].value) == (None, "168")
    assert (rows["node.id"].value, rows["log.dirs"].value) == (str(NODE_ID), str(broker.data_folder))
    assert rows["advertised.listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert {row.name for row in result.configs if not row.read_only} == DYNAMIC
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
        (GROUP, "", "invalid_request"),
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


def alter_broker(broker: StandIn, *changes: tuple[str, int, str | None], name: str = "", **fields: Any) -> Any:
    change = {**topic_change(name, *changes), "resource_type": BROKER}
    (response,) = broker.ask(INCREMENTAL, resources=[change], **fields).responses
    return response


def described_broker(broker: StandIn, name: str) -> dict[str, tuple[str, int]]:
    """What is set while the broker runs: its value, and where it comes from."""
    (result,) = broker.ask(DESCRIBE, resources=[resource(BROKER, name)]).results
    return {row.name: (row.value, row.config_source) for row in result.configs if row.config_source in (2, 3)}


@pytest.mark.parametrize("name", ["", str(NODE_ID)])
@pytest.mark.parametrize("setting", ["num.partitions", "log.retention.hours", "node.id", "queued.max.requests"])
def test_a_setting_that_is_read_when_the_broker_starts_stays_as_it_is(broker: StandIn, setting: str, name: str) -> None:
    for api_key in (ALTER, INCREMENTAL):
        resources = [{"resource_type": BROKER, "resource_name": name, "configs": [{"name": setting, "value": "3"}]}]
        (response,) = broker.ask(api_key, resources=resources).responses
        assert response.error_code is ErrorCode.invalid_request
        assert f"{setting} cannot be changed while the broker runs" in response.error_message
        assert "penstock serve --config" in response.error_message


def test_settings_of_the_broker_change_while_it_runs_and_the_broker_counts_more_than_the_cluster(
    start: Callable[..., StandIn],
) -> None:
    broker = start({"log.retention.hours": "1", "max.connections": "5"})
    broker.create("a")
    broker.create("b", retention_ms="9")
    own = str(NODE_ID)

    def retention() -> list[int]:
        return [log.config.retention_ms for log in broker.topics.partitions()]

    assert retention() == [3_600_000, 9]
    assert alter_broker(broker, ("log.retention.ms", SET, "8"), ("max.connections", SET, "7")).error_code == 0
    assert retention() == [8, 9]
    assert broker.limits.max_connections == 7
    assert alter_broker(broker, ("log.retention.ms", SET, "6"), name=own).error_code == 0
    assert retention() == [6, 9]
    assert described_broker(broker, "") == {"log.retention.ms": ("8", 3), "max.connections": ("7", 3)}
    assert described_broker(broker, own) == {"log.retention.ms": ("6", 2), "max.connections": ("7", 3)}
    (result,) = broker.ask(DESCRIBE, resources=[resource(TOPIC, "a", "retention.ms")], include_synonyms=True).results
    assert [(each.name, each.value, each.source) for each in result.configs[0].synonyms] == [
        ("log.retention.ms", "6", 2),
        ("log.retention.ms", "8", 3),
        ("log.retention.hours", "1", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert alter_broker(broker, ("log.retention.ms", DELETE, None), name=own).error_code == 0
    assert retention() == [8, 9]
    reset = [{"resource_type": BROKER, "resource_name": "", "configs": []}]
    assert codes(broker.ask(ALTER, resources=reset).responses) == [ErrorCode.none]
    assert retention() == [3_600_000, 9]
    assert broker.limits.max_connections == 5


def test_settings_that_were_changed_while_the_broker_ran_are_there_after_a_restart(
    start: Callable[..., StandIn],
) -> None:
    broker = start({})
    broker.create("a")
    alter_broker(broker, ("log.retention.ms", SET, "8"), ("min.insync.replicas", SET, "2"))
    alter_broker(broker, ("log.cleanup.policy", APPEND, "compact"), name=str(NODE_ID))
    broker.close()
    again = start({}, folder=broker.data_folder)
    assert described_broker(again, str(NODE_ID)) == {
        "log.cleanup.policy": ("delete,compact", 2),
        "log.retention.ms": ("8", 3),
        "min.insync.replicas": ("2", 3),
    }


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("log.retention.ms", SET, "soon")], "invalid_request"),
        ([("message.max.bytes", SET, "-1")], "invalid_request"),
        ([("max.connections", SET, "0")], "invalid_request"),
        ([("no.such.setting", SET, "1")], "invalid_request"),
        ([("listeners", SET, "PLAINTEXT://127.0.0.1:1")], "invalid_request"),
        ([("max.connections.per.ip", SET, "5")], "invalid_request"),
        ([("log.retention.ms", SET, None)], "invalid_request"),
        ([("log.retention.ms", APPEND, "1")], "invalid_config"),
        ([("log.cleaner.min.compaction.lag.ms", SET, "9000")], "invalid_request"),
    ],
)
def test_a_bad_change_of_the_broker_is_refused_with_kafkas_code_and_changes_nothing(
    broker: StandIn, changes: list[tuple[str, int, str | None]], code: str
) -> None:
    broker.create("a", max_compaction_lag_ms="10")
    for name in ("", str(NODE_ID)):
        response = alter_broker(broker, ("num.io.threads", SET, "9"), *changes, name=name)
        assert response.error_code is ErrorCode[code]
        assert response.error_message
        assert described_broker(broker, name) == {}
    assert alter_broker(broker, ("log.retention.ms", SET, "1"), validate_only=True).error_code == 0
    assert described_broker(broker, "") == {}


def test_a_group_shows_kafkas_settings_and_refuses_to_change_them(broker: StandIn) -> None:
    (result,) = broker.ask(DESCRIBE, resources=[resource(GROUP, "g")], include_documentation=True).results
    rows = {row.name: row for row in result.configs}
    assert (result.error_code, len(rows)) == (ErrorCode.none, 17)
    session = rows["consumer.session.timeout.ms"]
    assert (session.value, session.config_source, session.read_only) == ("45000", 5, True)
    assert "each consumer brings its own session.timeout.ms" in session.documentation
    for name, said in (("consumer.session.timeout.ms", "cannot be set"), ("nonsense", "no group setting is called")):
        change = {**topic_change("g", (name, SET, "50000")), "resource_type": GROUP}
        (response,) = broker.ask(INCREMENTAL, resources=[change]).responses
        assert response.error_code is ErrorCode.invalid_config
        assert said in response.error_message


def test_the_brokers_own_topics_stay_compacted_and_writable_but_can_be_tuned(broker: StandIn) -> None:
    name = "__consumer_offsets"
    broker.create(name, cleanup_policy="compact")
    assert alter(broker, ("segment.bytes", SET, "2000000"), name=name).error_code is ErrorCode.none
    for change in (
        ("cleanup.policy", SET, "delete"),
        ("cleanup.policy", APPEND, "delete"),
        ("cleanup.policy", DELETE, None),
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
