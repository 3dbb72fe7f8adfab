"""Settings that provisioning tools send, and what else they ask of a broker: we answer as Apache Kafka does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.settings import BROKER_SETTINGS
from penstock.log.configs.topic_config import TOPIC_SETTINGS
from tests.clients import wire
from tests.clients.batches import batch
from tests.clients.java_programs import JavaPrograms
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.clients.wire import Connection
from tests.servers import Penstock, Server

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE = 0, 1
NONE, INVALID_CONFIG, INVALID_REQUEST = ErrorCode.none, ErrorCode.invalid_config, ErrorCode.invalid_request

# By name: the values that are taken, and those that are refused.
TOPIC_VALUES: Final[dict[str, tuple[list[str], list[str]]]] = {
    "cleanup.policy": (["", "compact", "compact,delete", " delete , compact ", "compact,compact"], ["none", "delete,"]),
    "compression.gzip.level": (["-1", "1", "9"], ["0", "10", "-2", "x"]),
    "compression.lz4.level": (["1", "17"], ["0", "18"]),
    "compression.type": (["uncompressed", "zstd", "producer"], ["none", "ZSTD"]),
    "compression.zstd.level": (["-131072", "22"], ["-131073", "23"]),
    "file.delete.delay.ms": (["0", "60000"], ["-1", "1.5"]),
    "follower.replication.throttled.replicas": (["", "*", "0:1", "0:1,1:2"], ["x", "0", "0:1:2", "*,0:1", "-1:1"]),
    "leader.replication.throttled.replicas": (["", "*", "0:1"], ["none", "0:a"]),
    "local.retention.bytes": (["-2", "-1", "0", "1000"], ["-3"]),
    "local.retention.ms": (["-2", "-1", "0", "99999999999"], ["-3", "soon"]),
    "max.message.bytes": (["0", "2147483647"], ["-1", "2147483648"]),
    "min.insync.replicas": (["1", "5"], ["0", "two"]),
    "preallocate": (["true", "TRUE", " false "], ["maybe", "1"]),
    "remote.log.copy.disable": (["true", "false"], ["x"]),
    "remote.log.delete.on.disable": (["true", "false"], ["x"]),
    "remote.storage.enable": (["false"], ["true", "x"]),
    "retention.ms": (["-1", " 60000 "], ["-2", "", "1_000"]),
    "segment.bytes": (["1048576"], ["1048575"]),
    "unclean.leader.election.enable": (["true", "false"], ["1"]),
    "message.format.version": ([], ["3.0"]),
    "no.such.setting": ([], ["1"]),
}


def described(connection: Connection, kind: int, name: str, *keys: str) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}
    (result,) = connection.call("describe_configs", 4, resources=[resource], include_synonyms=True).results
    assert result.error_code is NONE, result.error_message
    return {config.name: config for config in result.configs}


def altered(connection: Connection, kind: int, name: str, *changes: tuple[str, int, str | None]) -> ErrorCode:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    (response,) = connection.call("incremental_alter_configs", 1, resources=[resource]).responses
    code: ErrorCode = response.error_code
    return code


@pytest.mark.parametrize("name", TOPIC_VALUES)
def test_a_topics_setting_takes_the_values_that_kafka_takes(connection: Connection, name: str) -> None:
    def code_of(value: str) -> ErrorCode:
        new = {"name": fresh(), "num_partitions": 1, "replication_factor": 1}
        topics = [{**new, "configs": [{"name": name, "value": value}]}]
        (created,) = connection.call("create_topics", 7, topics=topics, timeout=10_000, validate_only=True).topics
        code: ErrorCode = created.error_code
        return code

    taken, refused = TOPIC_VALUES[name]
    assert {value: code_of(value) for value in taken} == dict.fromkeys(taken, NONE)
    assert {value: code_of(value) for value in refused} == dict.fromkeys(refused, INVALID_CONFIG)


def test_every_setting_of_a_topic_has_kafkas_default_and_can_be_copied(server: Server) -> None:
    """As tools that mirror topics do: read all settings of one topic and give them to another."""
    with Connection(server) as connection:
        original, copy = fresh(), fresh()
        odd = {"min.insync.replicas": "2", "file.delete.delay.ms": "5", "preallocate": "true"}
        for name in (original, copy):
            configs = [{"name": key, "value": value} for key, value in odd.items()] if name == original else []
            if name == copy:
                rows = eventually("the topic is there", lambda: described_or_nothing(connection, original))
                assert set(rows) == {name for name, setting in TOPIC_SETTINGS.items() if not setting.hidden}
                plain = {key: row.value for key, row in rows.items() if key not in odd}
                assert plain == {key: default_of(key) for key in plain}
                configs = [{"name": key, "value": row.value} for key, row in rows.items()]
            new = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}
            (created,) = connection.call("create_topics", 7, topics=[new], timeout=10_000).topics
            assert created.error_code is NONE, created.error_message
        rows = eventually("the copy is there", lambda: described_or_nothing(connection, copy))
        assert {key: rows[key].value for key in odd} == odd


def described_or_nothing(connection: Connection, topic: str) -> dict[str, Any]:
    """Apache Kafka says that a topic is created a moment before all of it knows the topic."""
    resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}
    (result,) = connection.call("describe_configs", 4, resources=[resource]).results
    return {config.name: config for config in result.configs}


def default_of(name: str) -> str:
    return TOPIC_SETTINGS[name].format(TOPIC_SETTINGS[name].default)


def test_more_replicas_may_be_asked_for_than_there_are_and_acks_all_is_answered(connection: Connection) -> None:
    topic = fresh()
    configs = [{"name": "min.insync.replicas", "value": "2"}]
    new = {"name": topic, "num_partitions": 1, "replication_factor": 1, "configs": configs}
    connection.call("create_topics", 7, topics=[new], timeout=10_000)
    wire.wait_for_leader(connection, topic)
    part = {"index": 0, "records": batch([b"x"])}
    topics = [{"name": topic, "partition_data": [part]}]
    answer = connection.call("produce", 9, acks=-1, timeout=10_000, topic_data=topics)
    assert answer.responses[0].partition_responses[0].error_code is NONE


def test_what_may_change_while_a_broker_runs_is_what_kafka_lets_change(penstock: Server, apache_kafka: Server) -> None:
    with Connection(penstock) as ours, Connection(apache_kafka) as theirs:
        known, kafkas = described(ours, BROKER, "1"), described(theirs, BROKER, "1")
    both = set(known) & set(kafkas)
    assert set(known) - both == {
        "follower.replication.throttled.rate",  # dynamic in Kafka, and shown there once they are set
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "producer.id.expiration.check.interval.ms",  # hidden in Kafka
        "log.open.files.max",  # our own, as are the next three
        "max.request.entries",
        "other.request.max.bytes",
        "socket.send.buffer.max.bytes",
    }
    differ = {name for name in both if known[name].read_only != kafkas[name].read_only}
    assert differ == {name for name, setting in BROKER_SETTINGS.items() if name in differ and setting.fixed_because}


@pytest.fixture
def clean(server: Server) -> Iterator[Connection]:
    """A connection; whatever is set on the broker meanwhile is deleted afterwards."""
    with Connection(server) as connection:
        yield connection
        for name in ("", "1"):
            delete = [(key, DELETE, None) for key in ("log.message.timestamp.after.max.ms", "num.io.threads")]
            assert altered(connection, BROKER, name, *delete) is NONE


def test_the_brokers_settings_change_while_it_runs_and_tell_where_they_come_from(clean: Connection) -> None:
    name = "log.message.timestamp.after.max.ms"
    assert altered(clean, BROKER, "", (name, SET, "3600001"), ("num.io.threads", SET, "9")) is NONE
    assert altered(clean, BROKER, "1", (name, SET, "3600002")) is NONE

    def origins(kind: int, resource: str, key: str) -> list[tuple[str, str, int]]:
        row = described(clean, kind, resource, key)[key]
        return [(each.name, each.value, each.source) for each in row.synonyms]

    eventually("the change is told", lambda: len(origins(BROKER, "1", name)) == 3)
    assert origins(BROKER, "1", name) == [(name, "3600002", 2), (name, "3600001", 3), (name, "3600000", 5)]
    assert origins(BROKER, "", name) == [(name, "3600001", 3)]
    assert set(described(clean, BROKER, "")) >= {name, "num.io.threads"}
    topic = fresh()
    clean.call("create_topics", 7, topics=[{"name": topic, "num_partitions": 1, "replication_factor": 1}], timeout=9999)
    eventually("the topic is there", lambda: described_or_nothing(clean, topic))
    assert origins(TOPIC, topic, "message.timestamp.after.max.ms") == origins(BROKER, "1", name)


@pytest.mark.parametrize("broker", ["", "1"])
@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("log.retention.hours", "1", INVALID_REQUEST),
        ("num.partitions", "3", INVALID_REQUEST),
        ("node.id", "3", INVALID_REQUEST),
        ("log.retention.ms", "soon", INVALID_REQUEST),
        ("log.retention.ms", None, INVALID_REQUEST),
        ("message.max.bytes", "-1", INVALID_REQUEST),
        ("max.connections", "0", INVALID_REQUEST),
        ("ssl.keystore.location", "/x", INVALID_REQUEST),
    ],
)
def test_a_setting_that_cannot_change_is_refused_with_kafkas_code(
    connection: Connection, broker: str, name: str, value: str | None, code: ErrorCode
) -> None:
    assert altered(connection, BROKER, broker, (name, SET, value)) is code


@pytest.mark.parametrize("broker", ["2", "x"])
def test_another_broker_is_not_changed_here(connection: Connection, broker: str) -> None:
    assert altered(connection, BROKER, broker, ("log.retention.ms", SET, "3600000")) is INVALID_REQUEST


def test_a_group_has_kafkas_settings(connection: Connection) -> None:
    rows = described(connection, GROUP, fresh("group"))
    assert {name: row.value for name, row in rows.items() if name.startswith("consumer.")} == {
        "consumer.assignment.interval.ms": "1000",
        "consumer.heartbeat.interval.ms": "5000",
        "consumer.session.timeout.ms": "45000",
    }
    assert len(rows) == 17
    assert altered(connection, GROUP, fresh("group"), ("no.such.setting", SET, "1")) is INVALID_CONFIG
    assert altered(connection, GROUP, "", ("consumer.session.timeout.ms", SET, "50000")) is INVALID_REQUEST


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_feature_that_is_not_known_cannot_be_updated(connection: Connection, version: int) -> None:
    update = {"feature": "no.such.feature", "max_version_level": 1}
    answer = connection.call("update_features", version, feature_updates=[update], timeout=10_000)
    assert answer.error_code is ErrorCode.invalid_update_version
    assert connection.call("update_features", version, feature_updates=[], timeout=10_000).error_code is NONE


def init_producer(connection: Connection, transactional_id: str) -> Any:
    fields = {"transactional_id": transactional_id, "transaction_timeout": 10_000}
    answer = connection.call("init_producer_id", 4, producer_id=-1, producer_epoch=-1, **fields)
    assert answer.error_code is NONE
    return answer


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_that_nothing_was_added_to_cannot_be_ended(
    connection: Connection, version: int, committed: bool
) -> None:
    transactional_id = fresh("txn")
    given = init_producer(connection, transactional_id)
    fields = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch, "committed": committed}
    answer = connection.call("end_txn", version, transactional_id=transactional_id, **fields)
    assert answer.error_code is ErrorCode.invalid_txn_state
    assert init_producer(connection, transactional_id).producer_epoch == given.producer_epoch + 1


def test_transactions_are_listed_by_a_pattern_for_the_whole_id(connection: Connection) -> None:
    mine = fresh("txn")
    for transactional_id in (f"{mine}-a", f"{mine}-b"):
        init_producer(connection, transactional_id)

    def listed(pattern: str | None) -> list[str]:
        answer = connection.call("list_transactions", 2, duration_filter=-1, transactional_id_pattern=pattern)
        assert answer.error_code is NONE
        return sorted(each.transactional_id for each in answer.transaction_states if mine in each.transactional_id)

    assert listed(f"{mine}-[ac]") == [f"{mine}-a"]
    assert listed(f"(?i){mine.upper()}.*") == [f"{mine}-a", f"{mine}-b"]
    assert listed(mine) == []
    assert listed("(a+)+$") == []
    assert listed("") == listed(None) == [f"{mine}-a", f"{mine}-b"]
    answer = connection.call("list_transactions", 2, duration_filter=-1, transactional_id_pattern="a[")
    assert answer.error_code is ErrorCode.invalid_regular_expression


def test_a_pattern_that_would_take_long_is_refused(penstock: Penstock) -> None:
    answer = wire.call(penstock, "list_transactions", 2, duration_filter=-1, transactional_id_pattern="x*" * 5000)
    assert answer.error_code is ErrorCode.invalid_regular_expression


@pytest.mark.xdist_group("java")
def test_kafkas_own_tools_get_their_way_or_are_told_why_not(penstock: Penstock, java_programs: JavaPrograms) -> None:
    topic = fresh()
    configs, topics = "kafka.admin.ConfigCommand", "org.apache.kafka.tools.TopicCommand"
    sent = ("min.insync.replicas=2", "file.delete.delay.ms=1000", "unclean.leader.election.enable=true")
    create = ("--create", "--topic", topic, *(word for each in sent for word in ("--config", each)))
    assert f"Created topic {topic}." in java_programs.tool(penstock, topics, *create)
    cluster = ("--entity-type", "brokers", "--entity-default")
    change = ("--alter", "--add-config", "log.message.timestamp.after.max.ms=3600003,num.io.threads=12")
    assert "Completed updating default config" in java_programs.tool(penstock, configs, *cluster, *change)
    told = java_programs.tool(penstock, configs, *cluster, "--describe")
    assert "log.message.timestamp.after.max.ms=3600003" in told
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:num.io.threads=12" in told
    forget = ("--alter", "--delete-config", "log.message.timestamp.after.max.ms,num.io.threads")
    assert "Completed updating default config" in java_programs.tool(penstock, configs, *cluster, *forget)
    told = java_programs.tool(penstock, configs, *cluster, "--alter", "--add-config", "num.partitions=3")
    assert "InvalidRequestException: num.partitions cannot be changed while the broker runs" in told
    feature = ("upgrade", "--feature", "transaction.version=2")
    assert "this broker has no features" in java_programs.tool(
        penstock, "org.apache.kafka.tools.FeatureCommand", *feature
    )
    pattern = ("list", "--transactional-id-pattern", "no-such.*")
    assert "TransactionalId" in java_programs.tool(penstock, "org.apache.kafka.tools.TransactionsCommand", *pattern)
    assert "SecurityDisabledException" in java_programs.tool(penstock, "org.apache.kafka.tools.AclCommand", "--list")
