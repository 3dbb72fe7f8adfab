"""The topic settings of Kafka that can have one value only on a log that is one node, and why."""

from __future__ import annotations

from typing import Final

from penstock.log.settings import Kind, Setting, Synonym

_ONE_NODE: Final = "penstock's log is one node"
_TIERING: Final = f"{_ONE_NODE} and keeps everything on its own disk; use Apache Kafka for tiered storage"
_THROTTLE: Final = f"{_ONE_NODE} and copies nothing to replicas; use Apache Kafka for replication"
_LEVEL: Final = "penstock compresses with each codec's own level; let the producers compress if you need another"

FIXED_SETTINGS: Final = (
    Setting(
        "compression.gzip.level",
        Kind.INT,
        -1,
        "the level of gzip when the broker compresses",
        minimum=1,
        maximum=9,
        besides=-1,
        fixed_because=_LEVEL,
        synonyms=(Synonym("compression.gzip.level"),),
    ),
    Setting(
        "compression.lz4.level",
        Kind.INT,
        9,
        "the level of lz4 when the broker compresses",
        minimum=1,
        maximum=17,
        fixed_because=_LEVEL,
        synonyms=(Synonym("compression.lz4.level"),),
    ),
    Setting(
        "compression.zstd.level",
        Kind.INT,
        3,
        "the level of zstd when the broker compresses",
        minimum=-131072,
        maximum=22,
        fixed_because=_LEVEL,
        synonyms=(Synonym("compression.zstd.level"),),
    ),
    Setting(
        "file.delete.delay.ms",
        Kind.LONG,
        0,
        "how long a deleted segment's file stays on disk",
        minimum=0,
        fixed_because="files of deleted segments are removed at once, and whoever is reading one can finish",
        synonyms=(Synonym("log.segment.delete.delay.ms"),),
    ),
    Setting(
        "follower.replication.throttled.replicas",
        Kind.LIST,
        (),
        "which followers are throttled",
        fixed_because=_THROTTLE,
    ),
    Setting(
        "leader.replication.throttled.replicas", Kind.LIST, (), "which leaders are throttled", fixed_because=_THROTTLE
    ),
    Setting(
        "local.retention.bytes",
        Kind.LONG,
        -2,
        "the size kept locally when segments are tiered",
        minimum=-2,
        fixed_because=_TIERING,
        synonyms=(Synonym("log.local.retention.bytes"),),
    ),
    Setting(
        "local.retention.ms",
        Kind.LONG,
        -2,
        "the age kept locally when segments are tiered",
        minimum=-2,
        fixed_because=_TIERING,
        synonyms=(Synonym("log.local.retention.ms"),),
    ),
    Setting(
        "preallocate",
        Kind.BOOLEAN,
        False,
        "whether segment files get their full size when they are begun",
        fixed_because="segment files grow as they are written, which needs no allocation ahead",
        synonyms=(Synonym("log.preallocate"),),
    ),
    Setting("remote.log.copy.disable", Kind.BOOLEAN, False, "whether tiering stops copying", fixed_because=_TIERING),
    Setting(
        "remote.log.delete.on.disable",
        Kind.BOOLEAN,
        False,
        "whether tiered segments are deleted with tiering",
        fixed_because=_TIERING,
    ),
    Setting("remote.storage.enable", Kind.BOOLEAN, False, "whether segments are tiered", fixed_because=_TIERING),
    Setting(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        False,
        "whether a stale replica may become leader",
        fixed_because=f"{_ONE_NODE}: no other replica could become leader; use Apache Kafka for replication",
        synonyms=(Synonym("unclean.leader.election.enable"),),
    ),
)
