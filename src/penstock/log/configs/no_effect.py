"""Kafka's topic configs that have no effect on a log with one node, and why. They are accepted, stored and shown."""

from __future__ import annotations

from typing import Final

from penstock.log.configs.setting import Kind, Setting, Synonym

ONE_NODE: Final = "the log is one node"
TIERING: Final = "everything is kept on the node's own disk; use Apache Kafka for tiered storage"
_THROTTLE: Final = f"{ONE_NODE} and copies nothing to replicas"
_REPLICAS: Final = r"\*|([0-9]+:[0-9]+(,[0-9]+:[0-9]+)*)?"
"""All replicas, or a list of PARTITION:BROKER."""

NO_EFFECT_SETTINGS: Final = (
    Setting(
        "file.delete.delay.ms",
        Kind.LONG,
        60_000,
        "how long a deleted segment's file stays on disk",
        minimum=0,
        no_effect_because="files of deleted segments are removed at once; readers that have one open can finish",
        synonyms=(Synonym("log.segment.delete.delay.ms"),),
    ),
    Setting(
        "follower.replication.throttled.replicas",
        Kind.LIST,
        (),
        "which followers are throttled",
        matching=_REPLICAS,
        no_effect_because=_THROTTLE,
    ),
    Setting(
        "leader.replication.throttled.replicas",
        Kind.LIST,
        (),
        "which leaders are throttled",
        matching=_REPLICAS,
        no_effect_because=_THROTTLE,
    ),
    Setting(
        "local.retention.bytes",
        Kind.LONG,
        -2,
        "the size kept locally when segments are tiered",
        minimum=-2,
        no_effect_because=TIERING,
        synonyms=(Synonym("log.local.retention.bytes"),),
    ),
    Setting(
        "local.retention.ms",
        Kind.LONG,
        -2,
        "the age kept locally when segments are tiered",
        minimum=-2,
        no_effect_because=TIERING,
        synonyms=(Synonym("log.local.retention.ms"),),
    ),
    Setting(
        "min.insync.replicas",
        Kind.INT,
        1,
        "how many replicas must have a record before acks=all is answered",
        minimum=1,
        no_effect_because=(
            "there is one replica. As in Apache Kafka, no more replicas are asked for than a topic has, so acks=all is "
            "answered once the record is on this node's disk"
        ),
        synonyms=(Synonym("min.insync.replicas"),),
    ),
    Setting(
        "preallocate",
        Kind.BOOLEAN,
        False,
        "whether segment files get their full size when they are created",
        no_effect_because="segment files grow as they are written",
        synonyms=(Synonym("log.preallocate"),),
    ),
    Setting("remote.log.copy.disable", Kind.BOOLEAN, False, "whether tiering stops copying", no_effect_because=TIERING),
    Setting(
        "remote.log.delete.on.disable",
        Kind.BOOLEAN,
        False,
        "whether tiered segments are deleted when tiering is switched off",
        no_effect_because=TIERING,
    ),
    Setting("remote.storage.enable", Kind.BOOLEAN, False, "whether segments are tiered", fixed_because=TIERING),
    Setting(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        False,
        "whether a replica that lacks records may become leader",
        no_effect_because=f"{ONE_NODE}: no other replica could become leader",
        synonyms=(Synonym("unclean.leader.election.enable"),),
    ),
)
"""`remote.storage.enable` is refused, as by an Apache Kafka without tiered storage: users who set it expect records
beyond local retention to be kept elsewhere."""
