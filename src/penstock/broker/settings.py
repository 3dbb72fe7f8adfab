"""The broker's settings, by Kafka's names: `penstock serve --config num.partitions=3`.

They are read when the broker starts; those that Kafka allows to change on a running broker (`Setting.dynamic`) can be
changed here, too: see `dynamic_configs`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from penstock.broker.groups.settings import GroupSettings
from penstock.broker.limits import Limits
from penstock.broker.transactions.settings import TransactionSettings
from penstock.log.compacting.cleaning import DEDUPE_BUFFER_BYTES
from penstock.log.configs.described import ConfigRow, ConfigSource, Layers, Origin, documentation
from penstock.log.configs.no_effect import ONE_NODE, TIERING
from penstock.log.configs.setting import (
    INT_MAXIMUM,
    LONG_MAXIMUM,
    Kind,
    Setting,
    Value,
    find,
    setting_field,
    settings_of,
    table,
    whole_number,
)
from penstock.log.configs.topic_config import TOPIC_DEFAULTS, TopicConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The settings that the broker obeys, typed. Create it with `parse`, which checks the values."""

    auto_create_topics: bool = setting_field(
        "auto.create.topics.enable",
        Kind.BOOLEAN,
        True,
        "whether a topic that a client requests is created automatically",
    )
    default_partitions: int = whole_number("num.partitions", 1, "the default number of partitions of a topic")
    delete_topics: bool = setting_field(
        "delete.topic.enable", Kind.BOOLEAN, True, "whether clients may delete topics with their records"
    )
    max_request_partitions: int = whole_number(
        "max.request.partition.size.limit",
        2_000,
        "how many partitions one DescribeTopicPartitions answer holds; clients ask again for the rest",
    )
    offsets_topic_partitions: int = whole_number(
        "offsets.topic.num.partitions",
        1,
        "the partitions of __consumer_offsets, read when a data folder is new; Kafka, which spreads them, has 50",
    )
    transactions_topic_partitions: int = whole_number(
        "transaction.state.log.num.partitions",
        1,
        "the partitions of __transaction_state, read when a data folder is new; Kafka, which spreads them, has 50",
    )
    offsets_retention_check_interval_ms: int = whole_number(
        "offsets.retention.check.interval.ms",
        600_000,
        "how often to look for committed offsets older than offsets.retention.minutes",
        kind=Kind.LONG,
    )
    retention_check_interval_ms: int = whole_number(
        "log.retention.check.interval.ms",
        300_000,
        "how often to look for segments past their retention, and delete them",
        kind=Kind.LONG,
    )
    cleaner_dedupe_buffer_bytes: int = whole_number(
        "log.cleaner.dedupe.buffer.size",
        DEDUPE_BUFFER_BYTES,
        "the memory for the keys of one compaction; if they do not fit, a part is compacted at a time",
        kind=Kind.LONG,
        minimum=1024 * 1024,
        dynamic=True,
    )
    cleaner_backoff_ms: int = whole_number(
        "log.cleaner.backoff.ms",
        15_000,
        "how long compaction rests when no compacted topic has enough to clean",
        kind=Kind.LONG,
        dynamic=True,
    )
    producer_id_expiration_ms: int = whole_number(
        "producer.id.expiration.ms",
        86_400_000,
        "how long a silent idempotent producer is remembered; a retry after that counts as a new batch",
        dynamic=True,
    )
    node_id: int | None = whole_number(
        "node.id", None, "the id of this broker, by default 1; the data folder stores it when it is new", minimum=0
    )
    advertised_listeners: str | None = setting_field(
        "advertised.listeners",
        Kind.STRING,
        None,
        "the address that clients are told, as PLAINTEXT://HOST:PORT; penstock serve --advertise HOST:PORT is the same",
        matching=r"PLAINTEXT://[^,/]+:[0-9]{1,5}",
    )
    producer_id_expiration_check_interval_ms: int = whole_number(
        "producer.id.expiration.check.interval.ms", 600_000, "how often to look for silent producers, and forget them"
    )
    groups: GroupSettings = field(default_factory=GroupSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    limits: Limits = field(default_factory=Limits)
    overrides: Mapping[str, str] = field(default_factory=dict)
    """What was set, as it was written. It includes the topic defaults for the TopicStore."""

    @classmethod
    def parse(cls, overrides: Mapping[str, str]) -> BrokerSettings:
        """Parse the settings. Raises ConfigError that names what is unknown or not allowed."""
        values = {name: find(name, BROKER_SETTINGS, "broker").parse(text) for name, text in overrides.items()}
        TopicConfig.parse({}, overrides)
        return cls(
            groups=GroupSettings(**_taken(values, GroupSettings)),
            transactions=TransactionSettings(**_taken(values, TransactionSettings)),
            limits=Limits(**_taken(values, Limits)),
            overrides=MappingProxyType(dict(overrides)),
            **_taken(values, cls),
        )

    def updated(self, overrides: Mapping[str, str]) -> BrokerSettings:
        """These settings with other values of the dynamic ones."""
        parsed = BrokerSettings.parse(overrides)
        limits = replace(self.limits, **_dynamic(parsed.limits))
        return replace(self, limits=limits, overrides=parsed.overrides, **_dynamic(parsed))


def _taken(values: Mapping[str, Value], part: type[Any]) -> dict[str, Any]:
    return {field: values[each.name] for field, each in settings_of(part).items() if each.name in values}


def _dynamic(part: BrokerSettings | Limits) -> dict[str, Any]:
    return {field: getattr(part, field) for field, each in settings_of(type(part)).items() if each.dynamic}


_NO_THREADS: Final = "the broker does its work on one event loop, not with threads of this kind"
_NO_REPLICATION: Final = f"{ONE_NODE} and copies nothing to replicas"
_CLASSIC_GROUPS: Final = "groups use the classic protocol, in which clients assign the partitions"
_NO_EFFECT: Final = tuple(
    Setting(name, kind, default, effect, minimum=minimum, dynamic=True, no_effect_because=reason)
    for reason, rows in {
        _NO_THREADS: (
            ("background.threads", Kind.INT, 10, "the threads for background work", 1),
            ("log.cleaner.threads", Kind.INT, 1, "the threads that compact", 0),
            ("num.io.threads", Kind.INT, 8, "the threads that process requests", 1),
            ("num.network.threads", Kind.INT, 3, "the threads that read requests and write answers", 1),
            ("num.recovery.threads.per.data.dir", Kind.INT, 2, "the threads that open the log and close it", 1),
        ),
        "compaction reads and writes in its own steps, and is not held back": (
            ("log.cleaner.io.buffer.load.factor", Kind.DOUBLE, 0.9, "how full compaction's memory may become", None),
            ("log.cleaner.io.buffer.size", Kind.INT, 524_288, "the buffers of compaction", 0),
            ("log.cleaner.io.max.bytes.per.second", Kind.DOUBLE, sys.float_info.max, "the pace of compaction", None),
        ),
        _NO_REPLICATION: (
            ("follower.replication.throttled.rate", Kind.LONG, LONG_MAXIMUM, "the pace of throttled followers", 0),
            ("leader.replication.throttled.rate", Kind.LONG, LONG_MAXIMUM, "the pace of throttled leaders", 0),
            ("num.replica.fetchers", Kind.INT, 1, "the threads that copy from leaders", 1),
            (
                "replica.alter.log.dirs.io.max.bytes.per.second",
                Kind.LONG,
                LONG_MAXIMUM,
                "the pace of moving replicas between folders",
                0,
            ),
        ),
        TIERING: (
            ("follower.fetch.last.tiered.offset.enable", Kind.BOOLEAN, False, "where new followers begin", None),
            ("remote.fetch.max.wait.ms", Kind.INT, 500, "how long a Fetch waits for tiered records", 1),
            ("remote.list.offsets.request.timeout.ms", Kind.LONG, 30_000, "how long ListOffsets waits for them", 1),
            ("remote.log.index.file.cache.total.size.bytes", Kind.LONG, 1 << 30, "the space for their indexes", 1),
            ("remote.log.manager.copier.thread.pool.size", Kind.INT, 10, "the threads that copy segments away", 1),
            ("remote.log.manager.copy.max.bytes.per.second", Kind.LONG, LONG_MAXIMUM, "the pace of copying", 1),
            ("remote.log.manager.expiration.thread.pool.size", Kind.INT, 10, "the threads that delete them there", 1),
            ("remote.log.manager.fetch.max.bytes.per.second", Kind.LONG, LONG_MAXIMUM, "the pace of reading", 1),
            ("remote.log.manager.follower.thread.pool.size", Kind.INT, 2, "the threads of followers", 1),
            ("remote.log.reader.threads", Kind.INT, 10, "the threads that read tiered records", 1),
        ),
        _CLASSIC_GROUPS: (
            ("group.consumer.assignment.interval.ms", Kind.INT, 1_000, "the pace of assignments", 0),
            ("group.share.assignment.interval.ms", Kind.INT, 1_000, "the pace of assignments of share groups", 0),
            ("group.streams.assignment.interval.ms", Kind.INT, 1_000, "the pace of assignments of streams groups", 0),
        ),
        "the coordinators keep no such buffers": (
            ("group.coordinator.cached.buffer.max.bytes", Kind.INT, 1_048_588, "the largest buffer kept", 524_288),
            ("share.coordinator.cached.buffer.max.bytes", Kind.INT, 1_048_588, "the largest buffer kept", 524_288),
        ),
    }.items()
    for name, kind, default, effect, minimum in rows
)

_FIXED: Final = tuple(
    Setting(name, kind, default, effect, fixed_because=reason)
    for reason, rows in {
        "connections are limited in total only, by max.connections": (
            ("max.connection.creation.rate", Kind.INT, INT_MAXIMUM, "how many connections a second are accepted"),
            ("max.connections.per.ip", Kind.INT, INT_MAXIMUM, "how many connections one client address may have"),
        ),
        "without it a delayed batch could become part of a later transaction": (
            (
                "transaction.partition.verification.enable",
                Kind.BOOLEAN,
                True,
                "whether a transactional batch is refused unless its transaction is open and has the partition",
            ),
        ),
        "penstock's log is one node and keeps one copy; use Apache Kafka for replication": (
            ("default.replication.factor", Kind.INT, 1, "the replicas of a topic"),
            ("offsets.topic.replication.factor", Kind.INT, 1, "the replicas of __consumer_offsets"),
            ("transaction.state.log.replication.factor", Kind.INT, 1, "the replicas of __transaction_state"),
            ("transaction.state.log.min.isr", Kind.INT, 1, "how many replicas of __transaction_state must be in sync"),
        ),
    }.items()
    for name, kind, default, effect in rows
)

BROKER_SETTINGS: Final = table(
    (
        *settings_of(BrokerSettings).values(),
        *settings_of(GroupSettings).values(),
        *settings_of(TransactionSettings).values(),
        *settings_of(Limits).values(),
        *TOPIC_DEFAULTS.values(),
        *_NO_EFFECT,
        *_FIXED,
    )
)
"""Every setting of the broker, by name."""


def describe_broker(layers: Layers) -> list[ConfigRow]:
    """All broker settings, sorted by name. All layers were checked by `BrokerSettings.parse`."""
    return [_described(setting, layers, with_default=True) for setting in BROKER_SETTINGS.values()]


def describe_set(source: ConfigSource, overrides: Mapping[str, str]) -> list[ConfigRow]:
    return [_described(BROKER_SETTINGS[name], [(source, overrides)], with_default=False) for name in sorted(overrides)]


def _described(setting: Setting, layers: Layers, *, with_default: bool) -> ConfigRow:
    name = setting.name
    origins = [
        Origin(name, setting.format(setting.parse(layer[name])), source) for source, layer in layers if name in layer
    ]
    if with_default and setting.default is not None:
        origins.append(Origin(name, setting.format(setting.default), ConfigSource.DEFAULT))
    value = origins[0].value if origins else None
    return ConfigRow(name, value, setting.kind, documentation(setting), not setting.dynamic, tuple(origins))
