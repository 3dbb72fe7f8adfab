"""Topic configs, with Kafka's names and defaults.

`TopicConfig` is the table: each attribute carries its Setting, from which parsing, describing and the docs derive. A
config that a topic does not set comes from the broker's settings (`log.retention.ms` for `retention.ms`), and otherwise
from Kafka's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.log.configs.no_effect import NO_EFFECT_SETTINGS
from penstock.log.configs.setting import (
    LONG_MAXIMUM,
    Kind,
    Setting,
    Synonym,
    Value,
    find,
    setting_field,
    settings_of,
    table,
)

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
_MIB: Final = 1024 * 1024


def _setting(name: str, kind: Kind, default: Value, effect: str, broker_name: str = "", **more: Any) -> Any:
    """A field of TopicConfig. `broker_name` is for settings that the broker knows by one name only."""
    synonyms = more.pop("synonyms", (Synonym(broker_name),) if broker_name else ())
    return setting_field(name, kind, default, effect, synonyms=synonyms, **more)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configs that the log obeys, typed. Create it with `parse`, which checks the values."""

    cleanup_policy: frozenset[str] = _setting(
        "cleanup.policy",
        Kind.LIST,
        ("delete",),
        "what happens to old records: deleted by age and size, compacted to the last one of each key, both, or nothing",
        "log.cleanup.policy",
        choices=("compact", "delete"),
    )
    compression_gzip_level: int = _setting(
        "compression.gzip.level",
        Kind.INT,
        -1,
        "the gzip level if the broker compresses; -1 is the codec's own",
        "compression.gzip.level",
        minimum=1,
        maximum=9,
        besides=-1,
    )
    compression_lz4_level: int = _setting(
        "compression.lz4.level",
        Kind.INT,
        9,
        "the lz4 level if the broker compresses",
        "compression.lz4.level",
        minimum=1,
        maximum=17,
    )
    compression_type: str = _setting(
        "compression.type",
        Kind.STRING,
        "producer",
        "the codec that batches are stored with; 'producer' keeps what the producer chose",
        "compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_zstd_level: int = _setting(
        "compression.zstd.level",
        Kind.INT,
        3,
        "the zstd level if the broker compresses",
        "compression.zstd.level",
        minimum=-131072,
        maximum=22,
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
        "after how many records a partition is synced to disk, whatever acks its producers use",
        "log.flush.interval.messages",
        minimum=1,
    )
    flush_ms: int = _setting(
        "flush.ms",
        Kind.LONG,
        LONG_MAXIMUM,
        "how long a record may stay unsynced, whatever acks its producer used",
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
        "the largest batch that is accepted, after compression",
        "message.max.bytes",
        minimum=0,
    )
    message_timestamp_after_max_ms: int = _setting(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        _HOUR_MS,
        "how far a producer's timestamp may be ahead of the broker's clock",
        "log.message.timestamp.after.max.ms",
        minimum=0,
    )
    message_timestamp_before_max_ms: int = _setting(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        LONG_MAXIMUM,
        "how far a producer's timestamp may be behind the broker's clock",
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
        "the size at which a new segment file is started; retention and compaction work on whole, closed segments",
        "log.segment.bytes",
        minimum=_MIB,
    )
    segment_index_bytes: int = _setting(
        "segment.index.bytes",
        Kind.INT,
        10 * _MIB,
        "the size of the index at which a new segment is started",
        "log.index.size.max.bytes",
        minimum=4,
    )
    segment_jitter_ms: int = _setting(
        "segment.jitter.ms",
        Kind.LONG,
        0,
        "how much earlier than segment.ms a segment may be closed, at random, so that not all close at once",
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
        """The configs of a topic from its own and the broker's texts. Raises ConfigError that names what is wrong.

        Names in `broker_defaults` that are not about topics are ignored.
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
        # A setting without effect is stored as it was written; nothing reads its value.
        config = cls(**{name: value for name, value in values.items() if name in _ATTRIBUTES}) if values else _DEFAULTS
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise ConfigError(
                f"min.compaction.lag.ms={config.min_compaction_lag_ms} is more than "
                f"max.compaction.lag.ms={config.max_compaction_lag_ms}; a record would have to be compacted before "
                "that is allowed. Raise the second or lower the first."
            )
        return config


_SMALL_SEGMENTS: Final = Setting(
    "internal.segment.bytes",
    Kind.INT,
    None,
    "the size at which a new segment file is started, below what segment.bytes allows, which it overrides: for tests",
    minimum=1,
    hidden=True,
)

TOPIC_SETTINGS: Final = table((*settings_of(TopicConfig).values(), *NO_EFFECT_SETTINGS, _SMALL_SEGMENTS))
"""Every topic config of Kafka 4.x: those that are obeyed and those without effect here."""

_ATTRIBUTES: Final = frozenset(settings_of(TopicConfig))
_DEFAULTS: Final = TopicConfig()


_READ_ONLY_DEFAULTS: Final = frozenset({"log.flush.scheduler.interval.ms"})
"""Kafka allows changing every topic default in the topics' own unit on a running broker, except these."""


def _broker_setting(setting: Setting, synonym: Synonym) -> Setting:
    """The broker's setting for the default of a topic's setting. Of several names for one setting, the last has the
    default, and the others count only if they are set, as in Kafka."""
    default = setting.default if synonym is setting.synonyms[-1] else None
    if synonym.unit_ms == 1:
        effect = f"{setting.effect}, for topics that do not set {setting.name}"
        return replace(
            setting,
            name=synonym.name,
            default=default,
            effect=effect,
            synonyms=(),
            dynamic=synonym.name not in _READ_ONLY_DEFAULTS,
        )
    if isinstance(default, int):
        default //= synonym.unit_ms
    effect = f"the same as {setting.synonyms[0].name}, which it yields to, in another unit"
    return Setting(synonym.name, Kind.INT, default, effect, minimum=setting.minimum)


TOPIC_DEFAULTS: Final = table(
    _broker_setting(setting, synonym) for setting in TOPIC_SETTINGS.values() for synonym in setting.synonyms
)
"""The broker's settings that are defaults of topic configs."""
