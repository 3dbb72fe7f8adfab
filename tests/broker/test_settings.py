"""The broker's settings: Kafka's names, one table, and what has no effect says so."""

from __future__ import annotations

import dataclasses

import pytest

from penstock.broker.groups.settings import GroupSettings
from penstock.broker.limits import Limits
from penstock.broker.settings import BROKER_SETTINGS, BrokerSettings, describe_broker
from penstock.broker.transactions.settings import TransactionSettings
from penstock.errors import ConfigError
from penstock.log.configs.described import ConfigSource
from penstock.log.configs.topic_config import TOPIC_DEFAULTS, TopicConfig


def test_nothing_set_is_the_default() -> None:
    assert BrokerSettings.parse({}) == BrokerSettings()


def test_each_part_gets_what_is_meant_for_it() -> None:
    settings = BrokerSettings.parse(
        {
            "auto.create.topics.enable": "false",
            "num.partitions": "3",
            "group.max.size": "7",
            "transaction.max.timeout.ms": "1000",
            "max.connections": "9",
            "log.retention.hours": "1",
        }
    )
    assert (settings.auto_create_topics, settings.default_partitions) == (False, 3)
    assert settings.groups == GroupSettings(max_size=7)
    assert settings.transactions == TransactionSettings(transaction_max_timeout_ms=1000)
    assert settings.limits == Limits(max_connections=9)
    assert TopicConfig.parse({}, settings.overrides).retention_ms == 3_600_000


@pytest.mark.parametrize("name", [name for name, setting in BROKER_SETTINGS.items() if setting.default is not None])
def test_every_default_may_be_written_out(name: str) -> None:
    setting = BROKER_SETTINGS[name]
    settings = BrokerSettings.parse({name: setting.format(setting.default)})
    assert dataclasses.replace(settings, overrides={}) == BrokerSettings()


@pytest.mark.parametrize("part", [GroupSettings, TransactionSettings, Limits])
def test_every_field_of_the_parts_can_be_set(part: type[GroupSettings | TransactionSettings | Limits]) -> None:
    unnamed = {"new_member_join_timeout_ms"}  # a constant in Kafka, which has no name for it
    changed = BrokerSettings.parse(
        {
            name: str(setting.default + 1)
            for name, setting in BROKER_SETTINGS.items()
            if type(setting.default) is int and name not in TOPIC_DEFAULTS and setting.obeyed
        }
    )
    (made,) = (value for value in (changed.groups, changed.transactions, changed.limits) if isinstance(value, part))
    same = {field.name for field in dataclasses.fields(part) if getattr(made, field.name) == field.default}
    assert same <= unnamed


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("num.partition", "3", "did you mean num.partitions"),
        ("num.partitions", "0", "num.partitions='0' is not allowed: use a whole number of at least 1"),
        ("default.replication.factor", "3", "one node and keeps one copy; use Apache Kafka for replication"),
        ("log.retention.ms", "soon", "log.retention.ms='soon' is not allowed"),
        ("offset.metadata.max.bytes", "100000", "use a whole number from 1 to 8191"),
        ("retention.ms", "1", "no broker setting is called 'retention.ms'; did you mean log.retention.ms"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        BrokerSettings.parse({name: text})
    assert message in str(refusal.value)


def test_defaults_of_topics_that_contradict_each_other_are_refused_before_the_broker_starts() -> None:
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms=9 is more than"):
        BrokerSettings.parse({"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"})


def test_a_row_shows_what_was_set_before_the_default() -> None:
    rows = {row.name: row for row in describe_broker([(ConfigSource.BROKER, {"num.partitions": "3"})])}
    assert rows["num.partitions"].value == "3"
    assert [tuple(origin) for origin in rows["num.partitions"].origins] == [
        ("num.partitions", "3", ConfigSource.BROKER),
        ("num.partitions", "1", ConfigSource.DEFAULT),
    ]
    assert (rows["log.retention.hours"].value, rows["log.retention.ms"].value) == ("168", None)
    assert {name for name, row in rows.items() if not row.read_only} == {
        name for name, setting in BROKER_SETTINGS.items() if setting.dynamic
    }
