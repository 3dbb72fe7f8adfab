"""The settings of a topic, by Kafka's names, with Kafka's defaults.

`TopicConfig` is the table: each attribute carries its Setting, and parsing, describing and the docs derive from that.
What a topic does not set itself comes from the broker's own settings (`log.retention.ms` for `retention.ms`), and what
neither sets is Kafka's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.log.fixed import FIXED_SETTINGS
from penstock.log.settings import LONG_MAXIMUM, Kind, Setting, Synonym, Value, find, obeyed, settings_of, table

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
_MIB: Final = 1024 * 1024


def _setting(name: str, kind: Kind, default: Value, effect: str, broker_name: str = "", **more: Any) -> Any:
    """A field of TopicConfig. `broker_name` is for those that the broker knows by one name only."""
    synonyms = more.pop("synonyms", (Synonym(broker_name),) if broker_name else ())
    return obeyed(Setting(name, kind, default, effect, synonyms=synonyms, **more))


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings that the log obeys, typed. Build it with `parse`, which checks what a user wrote."""

    cleanup_policy: frozenset[str] = _setting(
        "cleanup.policy",
        Kind.LIST,
        ("delete",),
        "what happens to old records: deleted by age and size, compacted to the last one of each key, both, or nothing",
        "log.cleanup.policy",
        choices=("compact", "delete"),
    )
    compression_type: str = _setting(
        "compression.type",
        Kind.STRING,
        "producer",
        "the codec that batches are stored with; 'producer' keeps what the producer chose",
        "compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    delete_retention_ms: int = _setting(
        "delete.retention.ms",
        Kind.LONG,
        _DAY_MS,
        "how long the marker of a deleted key stays readable in a compacted topic",
        "log.cleaner.delete.retention.ms",
        minimum=0,
    )
    flush_messages: int = _setting(
        "flush.messages",
        Kind.LONG,
        LONG_MAXIMUM,
        "after how many records a partition is forced to disk whatever acks its producers ask for",
        "log.flush.interval.messages",
        minimum=1,
    )
    flush_ms: int = _setting(
        "flush.ms",
        Kind.LONG,
        LONG_MAXIMUM,
        "how long a record may stay unforced to disk whatever acks its producer asked for",
        minimum=0,
        synonyms=(Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    )
    index_interval_bytes: int = _setting(
        "index.interval.bytes",
        Kind.INT,
        4096,
        "how many bytes of batches lie between two entries of the index: fewer find faster, and cost space",
        "log.index.interval.bytes",
        minimum=0,
    )
    max_compaction_lag_ms: int = _setting(
        "max.compaction.lag.ms",
        Kind.LONG,
        LONG_MAXIMUM,
        "the longest that a record of a compacted topic stays uncompacted",
        "log.cleaner.max.compaction.lag.ms",
        minimum=1,
    )
    max_message_bytes: int = _setting(
        "max.message.bytes",
        Kind.INT,
        _MIB + 12,
        "the largest batch of records that is taken, after compression",
        "message.max.bytes",
        minimum=0,
    )
    message_timestamp_after_max_ms: int = _setting(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        _HOUR_MS,
        "how far a producer's timestamp may lie after the broker's clock",
        "log.message.timestamp.after.max.ms",
        minimum=0,
    )
    message_timestamp_before_max_ms: int = _setting(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        LONG_MAXIMUM,
        "how far a producer's timestamp may lie before the broker's clock",
        "log.message.timestamp.before.max.ms",
        minimum=0,
    )
    message_timestamp_type: str = _setting(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "whose clock a record's timestamp comes from, the producer's or the broker's",
        "log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    )
    min_cleanable_dirty_ratio: float = _setting(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        0.5,
        "the share of a compacted log that must be uncompacted before it is worth compacting: less wastes less space",
        "log.cleaner.min.cleanable.ratio",
        minimum=0,
        maximum=1,
    )
    min_compaction_lag_ms: int = _setting(
        "min.compaction.lag.ms",
        Kind.LONG,
        0,
        "how long every record of a compacted topic stays readable before it may be compacted away",
        "log.cleaner.min.compaction.lag.ms",
        minimum=0,
    )
    min_insync_replicas: int = _setting(
        "min.insync.replicas",
        Kind.INT,
        1,
        "how many replicas must have a record for acks=all; there is one here, so more than 1 refuses acks=all",
        "min.insync.replicas",
        minimum=1,
    )
    retention_bytes: int = _setting(
        "retention.bytes",
        Kind.LONG,
        -1,
        "the size of a partition beyond which its oldest segments are deleted; -1 for no limit",
        "log.retention.bytes",
    )
    retention_ms: int = _setting(
        "retention.ms",
        Kind.LONG,
        7 * _DAY_MS,
        "the age beyond which segments are deleted; -1 for no limit",
        minimum=-1,
        synonyms=(
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", _MINUTE_MS),
            Synonym("log.retention.hours", _HOUR_MS),
        ),
    )
    segment_bytes: int = _setting(
        "segment.bytes",
        Kind.INT,
        1024 * _MIB,
        "the size at which a new segment file is begun; retention and compaction work on whole, closed segments",
        "log.segment.bytes",
        minimum=_MIB,
    )
    segment_index_bytes: int = _setting(
        "segment.index.bytes",
        Kind.INT,
        10 * _MIB,
        "the size of the index at which a new segment is begun",
        "log.index.size.max.bytes",
        minimum=4,
    )
    segment_jitter_ms: int = _setting(
        "segment.jitter.ms",
        Kind.LONG,
        0,
        "how much earlier than segment.ms a segment may be closed, by chance, so that not all close at once",
        minimum=0,
        synonyms=(Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS)),
    )
    segment_ms: int = _setting(
        "segment.ms",
        Kind.LONG,
        7 * _DAY_MS,
        "the age at which a segment is closed even if it is not full, so that its records can be deleted or compacted",
        minimum=1,
        synonyms=(Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS)),
    )

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @classmethod
    def parse(
        cls, overrides: Mapping[str, str], broker_defaults: Mapping[str, str] = MappingProxyType({})
    ) -> TopicConfig:
        """The settings of a topic from its own and the broker's, as texts; ConfigError names what is not allowed.

        Names in `broker_defaults` that say nothing about topics are the broker's own affair and passed over.
        """
        values: dict[str, Any] = {}
        for name, text in overrides.items():
            setting = find(name, TOPIC_SETTINGS, "topic")
            values[setting.attribute] = setting.parse(text)
        for setting in TOPIC_SETTINGS.values() if broker_defaults else ():
            if setting.attribute in values:
                continue
            for synonym in setting.synonyms:
                if synonym.name in broker_defaults:
                    broker_setting = TOPIC_DEFAULTS[synonym.name]
                    values[setting.attribute] = synonym.in_ms(broker_setting.parse(broker_defaults[synonym.name]))
                    break
        small = values.get(_SMALL_SEGMENTS.attribute)
        if small is not None:
            values["segment_bytes"] = small
        if "cleanup_policy" in values:
            values["cleanup_policy"] = frozenset(values["cleanup_policy"])
        # A fixed setting has the only value it can have, so nothing needs to look at it.
        config = cls(**{name: value for name, value in values.items() if name in _ATTRIBUTES}) if values else _DEFAULTS
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise ConfigError(
                f"min.compaction.lag.ms={config.min_compaction_lag_ms} is more than "
                f"max.compaction.lag.ms={config.max_compaction_lag_ms}; a record would have to be compacted before it "
                "may be. Raise the second or lower the first."
            )
        return config


_SMALL_SEGMENTS: Final = Setting(
    "internal.segment.bytes",
    Kind.INT,
    None,
    "the size at which a new segment file is begun, below what segment.bytes allows, which it overrides: for tests",
    minimum=1,
    hidden=True,
)

TOPIC_SETTINGS: Final = table((*settings_of(TopicConfig).values(), *FIXED_SETTINGS, _SMALL_SEGMENTS))
"""Every topic setting of Kafka 4.x, those that can be set and those that are fixed."""

_ATTRIBUTES: Final = frozenset(settings_of(TopicConfig))
_DEFAULTS: Final = TopicConfig()


def _broker_setting(setting: Setting, synonym: Synonym) -> Setting:
    """What the broker's table says about the default of a topic's setting.

    Of several names for one thing the last has the default, and the others count only when they are set, as in Kafka.
    """
    default = setting.default if synonym is setting.synonyms[-1] else None
    if synonym.unit_ms == 1:
        effect = f"{setting.effect}, for topics that do not set {setting.name}"
        return replace(setting, name=synonym.name, default=default, effect=effect, synonyms=())
    if isinstance(default, int):
        default //= synonym.unit_ms
    effect = f"the same as {setting.synonyms[0].name}, which it yields to, in another unit"
    return Setting(synonym.name, Kind.INT, default, effect, minimum=setting.minimum)


TOPIC_DEFAULTS: Final = table(
    _broker_setting(setting, synonym) for setting in TOPIC_SETTINGS.values() for synonym in setting.synonyms
)
"""The broker's settings that stand in for what a topic does not set itself."""
