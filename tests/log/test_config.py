"""Topic settings: Kafka's names and defaults, checked values, and errors that say what to do."""

from __future__ import annotations

import dataclasses

import pytest

from penstock.errors import ConfigError
from penstock.log.configs.described import ConfigSource, describe_topic, documentation
from penstock.log.configs.setting import Kind, settings_of
from penstock.log.configs.topic_config import TOPIC_DEFAULTS, TOPIC_SETTINGS, TopicConfig

KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""Of Apache Kafka 4.3."""


OTHER_VALUES = {Kind.BOOLEAN: "true", Kind.LIST: "0:1", Kind.INT: "5", Kind.LONG: "5"}


def described(overrides: dict[str, str], broker_defaults: dict[str, str] | None = None) -> dict[str, str | None]:
    return {row.name: row.value for row in describe_topic(overrides, [(ConfigSource.BROKER, broker_defaults or {})])}


def test_every_default_is_that_of_kafka() -> None:
    assert described({}) == KAFKA_DEFAULTS


def test_the_attributes_are_the_settings_that_are_obeyed() -> None:
    settable = {setting.attribute for setting in TOPIC_SETTINGS.values() if setting.obeyed and not setting.hidden}
    assert {field.name for field in dataclasses.fields(TopicConfig)} == settable
    for attribute, setting in settings_of(TopicConfig).items():
        assert attribute == setting.attribute
        value = getattr(TopicConfig(), attribute)
        assert value == (frozenset(setting.default) if isinstance(setting.default, tuple) else setting.default)


def test_nothing_set_is_the_default() -> None:
    assert TopicConfig.parse({}) == TopicConfig()


def test_every_default_may_be_written_out() -> None:
    values = {name: value for name, value in described({}).items() if value is not None}
    assert TopicConfig.parse(values) == TopicConfig()


def test_values_are_typed() -> None:
    config = TopicConfig.parse(
        {"retention.ms": " 60000 ", "min.cleanable.dirty.ratio": "1e-1", "message.timestamp.type": "LogAppendTime"}
    )
    assert config.retention_ms == 60_000
    assert config.min_cleanable_dirty_ratio == 0.1
    assert config.message_timestamp_type == "LogAppendTime"


@pytest.mark.parametrize(
    ("text", "compacts", "deletes"),
    [
        ("delete", False, True),
        ("compact", True, False),
        ("compact, delete", True, True),
        ("delete,delete", False, True),
        ("", False, False),
    ],
)
def test_the_cleanup_policy_is_a_set_that_may_be_empty(text: str, compacts: bool, deletes: bool) -> None:
    config = TopicConfig.parse({"cleanup.policy": text})
    assert (config.compacts, config.deletes) == (compacts, deletes)


@pytest.mark.parametrize(
    ("name", "text", "use"),
    [
        ("retention.ms", "-2", "a whole number of at least -1"),
        ("retention.ms", "soon", "a whole number"),
        ("retention.ms", "", "a whole number"),
        ("retention.ms", "1_000", "a whole number"),
        ("retention.ms", "٣", "a whole number"),
        ("retention.ms", "9223372036854775808", "a whole number"),
        ("retention.bytes", "-9223372036854775809", "a whole number"),
        ("segment.bytes", "2147483648", "at least 1048576"),
        ("segment.bytes", "1048575", "at least 1048576"),
        ("max.message.bytes", "-1", "at least 0"),
        ("min.cleanable.dirty.ratio", "1.01", "from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "from 0 to 1"),
        ("min.cleanable.dirty.ratio", "inf", "from 0 to 1"),
        ("cleanup.policy", "keep", "any of compact, delete"),
        ("cleanup.policy", "compact,,delete", "any of compact, delete"),
        ("compression.type", "none", "one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("message.timestamp.type", "createtime", "one of CreateTime, LogAppendTime"),
        ("preallocate", "maybe", "true or false"),
        ("remote.storage.enable", "maybe", "'false' only"),
        ("file.delete.delay.ms", "-1", "at least 0"),
        ("leader.replication.throttled.replicas", "0", "a text that matches"),
        ("follower.replication.throttled.replicas", "*,0:1", "a text that matches"),
        ("compression.lz4.level", "18", "from 1 to 17"),
        ("compression.gzip.level", "0", "from 1 to 9, or -1"),
        ("min.insync.replicas", "0", "at least 1"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_those_that_are(name: str, text: str, use: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        TopicConfig.parse({name: text})
    assert str(refusal.value).startswith(f"{name}={text!r} is not allowed: use ")
    assert use in str(refusal.value)


def test_a_number_of_a_million_digits_is_refused_without_being_read() -> None:
    with pytest.raises(ConfigError, match="a whole number"):
        TopicConfig.parse({"retention.ms": "9" * 1_000_000})


def test_an_unknown_setting_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(ConfigError, match=r"no topic setting is called 'retention.msec'; did you mean retention.ms or"):
        TopicConfig.parse({"retention.msec": "1"})


def test_an_unknown_setting_that_is_near_to_nothing_is_refused_with_all_names() -> None:
    with pytest.raises(ConfigError) as refusal:
        TopicConfig.parse({"zzz": "1"})
    assert all(setting.name in str(refusal.value) for setting in settings_of(TopicConfig).values())
    assert "preallocate" not in str(refusal.value)


@pytest.mark.parametrize("name", [name for name, setting in TOPIC_SETTINGS.items() if setting.fixed_because])
def test_a_fixed_setting_takes_its_one_value_and_says_why_it_takes_no_other(name: str) -> None:
    setting = TOPIC_SETTINGS[name]
    assert TopicConfig.parse({name: setting.format(setting.default)}) == TopicConfig()
    with pytest.raises(ConfigError) as refusal:
        TopicConfig.parse({name: OTHER_VALUES[setting.kind]})
    assert setting.fixed_because in str(refusal.value)
    assert "Omit it" in str(refusal.value)


@pytest.mark.parametrize("name", [name for name, setting in TOPIC_SETTINGS.items() if setting.no_effect_because])
def test_a_setting_without_effect_is_accepted_shown_and_says_so(name: str) -> None:
    """Tools that copy topics between clusters send them all."""
    setting = TOPIC_SETTINGS[name]
    other = OTHER_VALUES[setting.kind]
    assert TopicConfig.parse({name: other}) == TopicConfig()
    (row,) = [row for row in describe_topic({name: other}) if row.name == name]
    assert (row.value, row.source, row.read_only) == (other, ConfigSource.TOPIC, False)
    assert f"It has no effect on penstock: {setting.no_effect_because}." in row.documentation
    for synonym in setting.synonyms:
        assert TopicConfig.parse({}, {synonym.name: other}) == TopicConfig()
        assert described({}, {synonym.name: other})[name] == other


def test_lags_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms=100 is more than max\.compaction\.lag\.ms=10"):
        TopicConfig.parse({"min.compaction.lag.ms": "100"}, {"log.cleaner.max.compaction.lag.ms": "10"})


def test_small_segments_for_tests_have_a_name_of_their_own_as_in_kafka() -> None:
    assert TopicConfig.parse({"internal.segment.bytes": "500"}).segment_bytes == 500
    assert "internal.segment.bytes" not in described({"internal.segment.bytes": "500"})


@pytest.mark.parametrize(
    ("broker_defaults", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"num.partitions": "3"}, 604_800_000),
    ],
)
def test_what_a_topic_does_not_set_comes_from_the_broker(broker_defaults: dict[str, str], retention_ms: int) -> None:
    assert TopicConfig.parse({}, broker_defaults).retention_ms == retention_ms
    assert TopicConfig.parse({"retention.ms": "1"}, broker_defaults).retention_ms == 1
    assert described({}, broker_defaults)["retention.ms"] == str(retention_ms)


def test_a_bad_default_of_the_broker_is_refused_under_the_brokers_name() -> None:
    with pytest.raises(ConfigError, match=r"log\.retention\.hours='two' is not allowed"):
        TopicConfig.parse({}, {"log.retention.hours": "two"})
    with pytest.raises(ConfigError, match=r"log\.preallocate='perhaps' is not allowed"):
        TopicConfig.parse({}, {"log.preallocate": "perhaps"})


def test_a_row_says_where_its_value_comes_from_and_what_it_would_be_otherwise() -> None:
    layers = [
        (ConfigSource.DYNAMIC_BROKER, {"log.retention.ms": "7"}),
        (ConfigSource.DYNAMIC_DEFAULT, {"log.retention.ms": "8"}),
        (ConfigSource.BROKER, {"log.retention.minutes": "1"}),
    ]
    (row,) = (row for row in describe_topic({"retention.ms": "5"}, layers) if row.name == "retention.ms")
    assert (row.value, row.source) == ("5", ConfigSource.TOPIC)
    assert [tuple(origin) for origin in row.origins] == [
        ("retention.ms", "5", ConfigSource.TOPIC),
        ("log.retention.ms", "7", ConfigSource.DYNAMIC_BROKER),
        ("log.retention.ms", "8", ConfigSource.DYNAMIC_DEFAULT),
        ("log.retention.minutes", "1", ConfigSource.BROKER),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    ]
    (row,) = (row for row in describe_topic({}, layers) if row.name == "retention.ms")
    assert (row.value, row.source) == ("7", ConfigSource.DYNAMIC_BROKER)
    (row,) = (row for row in describe_topic({}, layers[2:]) if row.name == "retention.ms")
    assert (row.value, row.source) == ("60000", ConfigSource.BROKER)
    (row,) = (row for row in describe_topic({}) if row.name == "remote.storage.enable")
    assert (row.value, row.source, row.origins) == ("false", ConfigSource.DEFAULT, ())


def test_a_list_is_described_in_the_order_in_which_it_was_written() -> None:
    assert described({"cleanup.policy": "delete , compact"})["cleanup.policy"] == "delete,compact"


def test_every_setting_is_documented() -> None:
    for setting in (*TOPIC_SETTINGS.values(), *TOPIC_DEFAULTS.values()):
        text = documentation(setting)
        assert text[0].isupper(), setting.name
        assert text.endswith("."), setting.name
        assert "Use " in text, setting.name
