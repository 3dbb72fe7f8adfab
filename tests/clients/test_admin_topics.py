"""Topics, their settings and the cluster, through the admin client of confluent-kafka."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.clients import confluent
from tests.clients.confluent import TIMEOUT_S, admin
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import Server


def refusal(server: Server, new: NewTopic) -> int:
    return confluent.error_of(admin(server).create_topics([new])[new.topic])


def settings_of(server: Server, topic: str) -> dict[str, Any]:
    """By name. The entries are untyped here: the declared type of their source is not what the client gives."""
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def ask() -> dict[str, Any]:
        try:
            entries: dict[str, Any] = admin(server).describe_configs([resource])[resource].result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return {}  # Apache Kafka says that a topic is created a moment before all of it knows the topic
            raise
        return entries

    return eventually(f"the settings of {topic} are told", ask)


def changed(topic: str, *changes: tuple[str, str | None, AlterConfigOpType]) -> ConfigResource:
    entries = [ConfigEntry(name, value, incremental_operation=change) for name, value, change in changes]
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)


def apply(server: Server, topic: str, *changes: tuple[str, str | None, AlterConfigOpType]) -> None:
    resource = changed(topic, *changes)
    admin(server).incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def test_a_new_topic_is_described_as_it_was_asked_for(server: Server) -> None:
    topic = confluent.create_topic(server, partitions=3)
    confluent.eventually_listed(server, topic)
    (described,) = admin(server).describe_topics(TopicCollection([topic])).values()
    description = described.result(TIMEOUT_S)
    assert (description.name, description.is_internal) == (topic, False)
    assert str(description.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
    assert [partition.id for partition in description.partitions] == [0, 1, 2]
    for partition in description.partitions:
        assert partition.leader.port == server.port
        assert [node.id for node in partition.replicas] == [partition.leader.id]
        assert [node.id for node in partition.isr] == [partition.leader.id]


def test_a_topic_without_a_number_of_partitions_gets_the_default(server: Server) -> None:
    name = fresh()
    admin(server).create_topics([NewTopic(name)])[name].result(TIMEOUT_S)
    confluent.eventually_listed(server, name)
    listed = admin(server).list_topics(name, timeout=TIMEOUT_S).topics[name]
    assert list(listed.partitions) == [0]
    assert len(listed.partitions[0].replicas) == 1


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic("no spaces please", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("x" * 250, 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic(".", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("a/b", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("never-partitions", 0, 1), KafkaError.INVALID_PARTITIONS),
        (NewTopic("never-replicas", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("never-none", 1, 0), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("never-1", 1, 1, config={"no.such.setting": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("never-2", 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
        (NewTopic("never-3", 1, 1, config={"segment.bytes": "-1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("never-4", 1, 1, config={"cleanup.policy": "burn"}), KafkaError.INVALID_CONFIG),
        (NewTopic("never-5", 1, 1, config={"min.cleanable.dirty.ratio": "1.5"}), KafkaError.INVALID_CONFIG),
        (NewTopic("never-6", 1, 1, config={"compression.type": "rar"}), KafkaError.INVALID_CONFIG),
    ],
    ids=lambda value: None if isinstance(value, int) else f"{value.topic[:16]} {value.config or ''}",
)
def test_a_topic_that_cannot_be_is_refused(server: Server, new: NewTopic, code: int) -> None:
    assert refusal(server, new) == code
    assert new.topic not in admin(server).list_topics(timeout=TIMEOUT_S).topics


def test_a_topic_that_exists_is_not_created_again(server: Server) -> None:
    topic = confluent.create_topic(server)
    assert refusal(server, NewTopic(topic, 1, 1)) == KafkaError.TOPIC_ALREADY_EXISTS


def test_names_that_would_collide_in_metrics_are_refused(server: Server) -> None:
    name = fresh()
    admin(server).create_topics([NewTopic(f"{name}.a_b", 1, 1)])[f"{name}.a_b"].result(TIMEOUT_S)
    assert refusal(server, NewTopic(f"{name}_a.b", 1, 1)) == KafkaError.TOPIC_EXCEPTION


def test_a_creation_that_is_only_validated_creates_nothing(server: Server) -> None:
    name = fresh()
    admin(server).create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(TIMEOUT_S)
    assert name not in admin(server).list_topics(timeout=TIMEOUT_S).topics


def test_a_deleted_topic_is_gone_and_can_be_made_again(server: Server) -> None:
    topic = confluent.create_topic(server)
    confluent.produce(server, topic, [b"old"])
    admin(server).delete_topics([topic])[topic].result(TIMEOUT_S)
    eventually("it is gone", lambda: topic not in admin(server).list_topics(timeout=TIMEOUT_S).topics)
    admin(server).create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)
    assert confluent.produce(server, topic, [b"new"]) == [0]
    assert confluent.values_of(confluent.read_to_end(server, topic)) == [b"new"]


def test_a_topic_that_does_not_exist_cannot_be_deleted(server: Server) -> None:
    name = fresh()
    assert confluent.error_of(admin(server).delete_topics([name])[name]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_partitions_can_be_added_but_never_taken_away(server: Server) -> None:
    topic, unknown = confluent.create_topic(server, partitions=2), fresh()
    confluent.grow_topic(server, topic, 4)

    def partitions() -> set[int]:
        return set(admin(server).list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)

    eventually("there are four", lambda: partitions() == {0, 1, 2, 3})
    assert confluent.produce(server, topic, [b"x"], partition=3) == [0]
    for count in (4, 1):
        asked = admin(server).create_partitions([NewPartitions(topic, count)])
        assert confluent.error_of(asked[topic]) == KafkaError.INVALID_PARTITIONS
    asked = admin(server).create_partitions([NewPartitions(unknown, 2)])
    assert confluent.error_of(asked[unknown]) == KafkaError.UNKNOWN_TOPIC_OR_PART


DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def test_the_defaults_of_a_topic_are_those_of_kafka(server: Server) -> None:
    entries = settings_of(server, confluent.create_topic(server))
    assert {name: entry.value for name, entry in entries.items() if name in DEFAULTS} == DEFAULTS
    # Since version 4.1 a cluster of Apache Kafka sets this one for itself.
    of_kafka = set(DEFAULTS) - {"min.insync.replicas"}
    assert {entries[name].source for name in of_kafka} == {ConfigSource.DEFAULT_CONFIG.value}
    assert all(entries[name].is_default for name in of_kafka)


def test_settings_of_a_topic_are_described_with_where_they_come_from(server: Server) -> None:
    topic = confluent.create_topic(server, settings={"retention.ms": "1000", "cleanup.policy": "compact,delete"})
    entries = settings_of(server, topic)
    topic_level = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    own = {name: entry.value for name, entry in entries.items() if entry.source == topic_level}
    assert own == {"retention.ms": "1000", "cleanup.policy": "compact,delete"}
    assert not entries["retention.ms"].is_default
    assert not entries["retention.ms"].is_read_only
    assert not entries["retention.ms"].is_sensitive


def test_settings_can_be_set_deleted_appended_and_subtracted(server: Server) -> None:
    topic = confluent.create_topic(server, settings={"retention.ms": "1000"})
    apply(
        server,
        topic,
        ("retention.ms", None, AlterConfigOpType.DELETE),
        ("segment.bytes", "2097152", AlterConfigOpType.SET),
        ("cleanup.policy", "compact", AlterConfigOpType.APPEND),
    )
    eventually("the change is seen", lambda: settings_of(server, topic)["segment.bytes"].value == "2097152")
    entries = settings_of(server, topic)
    assert entries["retention.ms"].value == "604800000"
    assert entries["cleanup.policy"].value == "delete,compact"
    apply(server, topic, ("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT))
    eventually("the policy is compact", lambda: settings_of(server, topic)["cleanup.policy"].value == "compact")


@pytest.mark.parametrize(
    ("name", "value", "change"),
    [
        ("retention.ms", "soon", AlterConfigOpType.SET),
        ("no.such.setting", "1", AlterConfigOpType.SET),
        ("retention.ms", "1", AlterConfigOpType.APPEND),
    ],
)
def test_a_change_of_settings_that_cannot_be_is_refused(
    server: Server, name: str, value: str, change: AlterConfigOpType
) -> None:
    topic = confluent.create_topic(server)
    resource = changed(topic, (name, value, change))
    asked = admin(server).incremental_alter_configs([resource])
    assert confluent.error_of(asked[resource]) == KafkaError.INVALID_CONFIG
    assert settings_of(server, topic)["retention.ms"].value == "604800000"


def test_settings_of_a_topic_that_does_not_exist_are_refused(server: Server) -> None:
    resource = ConfigResource(ResourceType.TOPIC, fresh())
    asked = admin(server).describe_configs([resource])
    assert confluent.error_of(asked[resource]) == KafkaError.UNKNOWN_TOPIC_OR_PART
    resource = changed(fresh(), ("retention.ms", "1", AlterConfigOpType.SET))
    asked = admin(server).incremental_alter_configs([resource])
    assert confluent.error_of(asked[resource]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_changed_limit_holds_for_the_next_record(server: Server) -> None:
    topic = confluent.create_topic(server)
    sender = confluent.producer(server)
    assert confluent.delivery_error(sender, topic, b"x" * 5000) is None
    apply(server, topic, ("max.message.bytes", "1000", AlterConfigOpType.SET))

    def is_refused() -> bool:
        error = confluent.delivery_error(sender, topic, b"x" * 5000)
        return error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE

    eventually("the record is refused", is_refused)


def test_the_cluster_is_one_broker_that_is_also_the_controller(server: Server) -> None:
    cluster = admin(server).describe_cluster().result(TIMEOUT_S)
    (node,) = cluster.nodes
    assert (node.host, node.port) == ("127.0.0.1", server.port)
    assert cluster.controller.id == node.id
    assert cluster.cluster_id == admin(server).list_topics(timeout=TIMEOUT_S).cluster_id
    assert cluster.cluster_id


def test_a_topic_that_is_asked_for_by_an_unknown_name_is_reported_as_such(server: Server) -> None:
    name = fresh()
    described = admin(server).describe_topics(TopicCollection([name]))[name]
    assert confluent.error_of(described) == KafkaError.UNKNOWN_TOPIC_OR_PART
