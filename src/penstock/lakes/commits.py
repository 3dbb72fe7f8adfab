"""The commits of a lake table: what they contain, and the offsets that their metadata names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.errors import ConfigError
from penstock.model import Pointer

OFFSETS_KEY: Final = "penstock.offsets"
"""In a commit's metadata: {"TOPIC": {"PARTITION": [first, next]}} as JSON."""
GROUP_KEY: Final = "penstock.group"
"""In a commit's metadata: the group, or the pipeline and query, that wrote it."""

PointerSpans = Mapping[tuple[str, int], tuple[Pointer, Pointer]]
"""By topic and partition: the first offset of a commit, and the one after its last."""

_MOST: Final = 2**63


@dataclass(frozen=True, slots=True)
class Move:
    """A writer's position moves from `after` to `version`, in the same commit as the rows in between.

    The commit is refused unless the table still has `after`; None: no position of this writer.
    """

    application: str
    after: int | None
    version: int

    def __post_init__(self) -> None:
        if not 0 <= self.version < _MOST:
            raise ConfigError(
                f"{self.application}: position {self.version} does not fit into the 64 bits that lake tables have for "
                "it: this stream's pointers are larger than Kafka's offsets. Carry the topic into Kafka or an "
                "embedded log first: penstock gateway"
            )


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """One commit of a lake table."""

    version: int
    """Delta's version, or the id of Iceberg's snapshot."""
    timestamp_ms: int
    group: str
    """The group or pipeline that wrote it; "" for commits of others, and of compaction."""
    offsets: PointerSpans
    """The records that it contains."""


def metadata_of(group: str, offsets: PointerSpans) -> dict[str, str]:
    """The metadata of a commit that contains these offsets."""
    topics: dict[str, dict[str, list[int]]] = {}
    for (topic, partition), span in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = list(span)
    found = {GROUP_KEY: group}
    if topics:
        found[OFFSETS_KEY] = msgspec.json.encode(topics).decode()
    return found


def commit_of(version: int, timestamp_ms: int, metadata: Mapping[str, Any]) -> LakeCommit:
    """Read back what `metadata_of` has stored."""
    text = metadata.get(OFFSETS_KEY)
    topics = {} if text is None else msgspec.json.decode(text, type=dict[str, dict[str, tuple[int, int]]])
    offsets = {
        (topic, int(partition)): span for topic, partitions in topics.items() for partition, span in partitions.items()
    }
    return LakeCommit(version, timestamp_ms, str(metadata.get(GROUP_KEY, "")), offsets)


def offsets_at(
    commits: Iterable[LakeCommit], version: int, group: str | None, label: str
) -> dict[tuple[str, int], int]:
    """For each partition, the offset after the last record that the table has in `version`.

    `commits` are those that the table still knows, newest first. Raises ConfigError if `version` is not among them.
    """
    found: dict[tuple[str, int], int] = {}
    known = False
    for commit in commits:
        known = known or commit.version == version
        if known and group in (None, commit.group):
            for place, (_, end) in commit.offsets.items():
                found.setdefault(place, end)
    if not known:
        raise ConfigError(f"{label} has no version {version}, or has forgotten it: its history is kept for a time")
    return found


def first_with(commits: Sequence[LakeCommit], topic: str, partition: int, offset: int, group: str | None) -> int | None:
    """The version in which the record at `offset` came into the table; None if no known commit contains it."""
    for commit in commits:
        span = commit.offsets.get((topic, partition))
        if span is not None and group in (None, commit.group) and span[0] <= offset < span[1]:
            return commit.version
    return None
