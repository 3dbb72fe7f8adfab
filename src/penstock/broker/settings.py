"""The settings of the broker, by Kafka's names: `penstock serve --config num.partitions=3`.

They are of four sorts: the fields of BrokerSettings, the limits and the settings of the coordinators, the defaults of
topics (`log.retention.ms`, see TOPIC_DEFAULTS), and those that are fixed because there is one node.
BROKER_SETTINGS has them all. They are read when the broker starts and do not change while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

from penstock.broker.groups.settings import GroupSettings
from penstock.broker.limits import Limits
from penstock.broker.transactions.settings import TransactionSettings
from penstock.log.cleaning import DEDUPE_BUFFER_BYTES
from penstock.log.config import TOPIC_DEFAULTS, TopicConfig
from penstock.log.described import ConfigRow, Origin, Source, documentation
from penstock.log.settings import Kind, Setting, Value, find, obeyed, settings_of, table


def _setting(name: str, kind: Kind, default: Value, effect: str, **more: Any) -> Any:
    return obeyed(Setting(name, kind, default, effect, **more))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What the broker obeys, typed. Build it with `parse`, which checks what a user wrote."""

    auto_create_topics: bool = _setting(
        "auto.create.topics.enable",
        Kind.BOOLEAN,
        True,
        "whether a topic that a client asks for is created if it may be",
    )
    default_partitions: int = _setting(
        "num.partitions", Kind.INT, 1, "the partitions of a topic whose creator does not say how many", minimum=1
    )
    delete_topics: bool = _setting(
        "delete.topic.enable", Kind.BOOLEAN, True, "whether clients may delete topics, and with them their records"
    )
    max_request_partitions: int = _setting(
        "max.request.partition.size.limit",
        Kind.INT,
        2_000,
        "how many partitions one DescribeTopicPartitions answer holds; clients ask again for the rest",
        minimum=1,
    )
    offsets_topic_partitions: int = _setting(
        "offsets.topic.num.partitions",
        Kind.INT,
        1,
        "the partitions of __consumer_offsets, read when a data folder is new; Kafka, which spreads them, has 50",
        minimum=1,
    )
    transactions_topic_partitions: int = _setting(
        "transaction.state.log.num.partitions",
        Kind.INT,
        1,
        "the partitions of __transaction_state, read when a data folder is new; Kafka, which spreads them, has 50",
        minimum=1,
    )
    offsets_retention_check_interval_ms: int = _setting(
        "offsets.retention.check.interval.ms",
        Kind.LONG,
        600_000,
        "how often committed offsets that have outlived offsets.retention.minutes are looked for",
        minimum=1,
    )
    retention_check_interval_ms: int = _setting(
        "log.retention.check.interval.ms",
        Kind.LONG,
        300_000,
        "how often segments that have outlived their retention are looked for and deleted",
        minimum=1,
    )
    cleaner_dedupe_buffer_bytes: int = _setting(
        "log.cleaner.dedupe.buffer.size",
        Kind.LONG,
        DEDUPE_BUFFER_BYTES,
        "the memory for the keys of one compaction; where they do not fit, a part is compacted at a time",
        minimum=1024 * 1024,
    )
    cleaner_backoff_ms: int = _setting(
        "log.cleaner.backoff.ms",
        Kind.LONG,
        15_000,
        "how long compaction rests when no compacted topic has enough to clean",
        minimum=1,
    )
    producer_id_expiration_ms: int = _setting(
        "producer.id.expiration.ms",
        Kind.INT,
        86_400_000,
        "how long an idempotent producer that has gone silent is remembered; a retry after that is taken for new",
        minimum=1,
    )
    producer_id_expiration_check_interval_ms: int = _setting(
        "producer.id.expiration.check.interval.ms",
        Kind.INT,
        600_000,
        "how often producers that have gone silent are looked for and forgotten",
        minimum=1,
    )
    groups: GroupSettings = field(default_factory=GroupSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    limits: Limits = field(default_factory=Limits)
    overrides: Mapping[str, str] = field(default_factory=dict)
    """What was set, as it was written. The topics' defaults among it are what a TopicStore takes."""

    @classmethod
    def parse(cls, overrides: Mapping[str, str]) -> BrokerSettings:
        """The settings from their texts; ConfigError names what is unknown or not allowed."""
        values = {name: find(name, BROKER_SETTINGS, "broker").parse(text) for name, text in overrides.items()}
        TopicConfig.parse({}, overrides)
        return cls(
            groups=GroupSettings(**_taken(values, _GROUPS)),
            transactions=TransactionSettings(**_taken(values, _TRANSACTIONS)),
            limits=Limits(**_taken(values, _LIMITS)),
            overrides=MappingProxyType(dict(overrides)),
            **_taken(values, settings_of(cls)),
        )


def _taken(values: Mapping[str, Value], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Those of the values that are for the given fields."""
    return {attribute: values[setting.name] for attribute, setting in settings.items() if setting.name in values}


def _of(kind: type[Any], *rows: tuple[str, str, int, str]) -> dict[str, Setting]:
    """The settings behind the fields of another class, which knows the defaults: name, field, minimum, effect."""
    defaults: dict[str, Any] = {each.name: each.default for each in fields(kind)}
    return {
        attribute: Setting(name, Kind.INT, defaults[attribute], effect, minimum=minimum)
        for name, attribute, minimum, effect in rows
    }


_GROUPS: Final = _of(
    GroupSettings,
    (
        "group.min.session.timeout.ms",
        "min_session_timeout_ms",
        1,
        "the shortest session timeout that a consumer may ask for",
    ),
    (
        "group.max.session.timeout.ms",
        "max_session_timeout_ms",
        1,
        "the longest session timeout that a consumer may ask for",
    ),
    (
        "group.initial.rebalance.delay.ms",
        "initial_rebalance_delay_ms",
        0,
        "how long the first rebalance of an empty group waits for further members",
    ),
    ("group.max.size", "max_size", 1, "how many members a group may have"),
    (
        "offset.metadata.max.bytes",
        "offset_metadata_max_length",
        1,
        "the longest text that may be committed with an offset",
    ),
    (
        "offsets.retention.minutes",
        "offsets_retention_minutes",
        1,
        "how long committed offsets are kept once nobody uses them",
    ),
)
_TRANSACTIONS: Final = _of(
    TransactionSettings,
    (
        "transaction.max.timeout.ms",
        "transaction_max_timeout_ms",
        1,
        "the longest transaction timeout that a producer may ask for",
    ),
    (
        "transactional.id.expiration.ms",
        "transactional_id_expiration_ms",
        1,
        "how long a transactional id without an open transaction is remembered after its last use",
    ),
    (
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction_abort_timed_out_transaction_cleanup_interval_ms",
        1,
        "how often transactions that outlived their timeout are looked for and aborted",
    ),
    (
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "transaction_remove_expired_transaction_cleanup_interval_ms",
        1,
        "how often transactional ids that have expired are looked for and removed",
    ),
)

_LIMITS: Final = _of(
    Limits,
    ("socket.request.max.bytes", "max_request_bytes", 1, "the longest request that is taken"),
    ("max.connections", "max_connections", 1, "how many clients may be connected at one time"),
    ("connections.max.idle.ms", "idle_ms", 1, "how long a connection may complete no request before it is closed"),
    ("queued.max.requests", "queued_requests", 1, "how many answers one connection may wait for"),
    (
        "socket.send.buffer.max.bytes",
        "unsent_bytes",
        1,
        "how much is kept for a client that does not read its answers, before nothing more is read from it",
    ),
    ("fetch.max.bytes", "fetch_bytes", 1024, "the most records that one Fetch answer holds"),
    ("max.incremental.fetch.session.cache.slots", "fetch_sessions", 0, "how many fetch sessions are remembered"),
    ("log.open.files.max", "open_files", 1, "how many segment files are kept open"),
)

_ONE_COPY: Final = "penstock's log is one node and keeps one copy; use Apache Kafka for replication"
_FIXED: Final = (
    Setting("default.replication.factor", Kind.INT, 1, "the replicas of a topic", fixed_because=_ONE_COPY),
    Setting(
        "offsets.topic.replication.factor", Kind.INT, 1, "the replicas of __consumer_offsets", fixed_because=_ONE_COPY
    ),
    Setting(
        "transaction.state.log.replication.factor",
        Kind.INT,
        1,
        "the replicas of __transaction_state",
        fixed_because=_ONE_COPY,
    ),
    Setting(
        "transaction.state.log.min.isr",
        Kind.INT,
        1,
        "how many replicas of __transaction_state must be in sync",
        fixed_because=_ONE_COPY,
    ),
)

BROKER_SETTINGS: Final = table(
    (
        *settings_of(BrokerSettings).values(),
        *_GROUPS.values(),
        *_TRANSACTIONS.values(),
        *_LIMITS.values(),
        *TOPIC_DEFAULTS.values(),
        *_FIXED,
    )
)
"""Every setting of the broker, by name."""


def describe_broker(overrides: Mapping[str, str]) -> list[ConfigRow]:
    """All settings of the broker in the order of their names. `overrides` have been through `BrokerSettings.parse`."""
    rows = []
    for name, setting in BROKER_SETTINGS.items():
        origins = []
        if name in overrides:
            origins.append(Origin(name, setting.format(setting.parse(overrides[name])), Source.BROKER))
        if setting.default is not None:
            origins.append(Origin(name, setting.format(setting.default), Source.DEFAULT))
        value = origins[0].value if origins else None
        rows.append(ConfigRow(name, value, setting.kind, documentation(setting), True, tuple(origins)))
    return rows
