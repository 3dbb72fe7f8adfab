"""What the driver tells tasks: where to read, in files on the same host or through the client, and which ranges.

Large ranges are split so that all cores work, small ones are combined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import InputPartition

from penstock.errors import LogError
from penstock.log.statefile import read_state
from penstock.streams.topic_patterns import TopicPattern, described

CLUSTER_FILE: Final = "cluster"
"""The broker's file with the cluster id. Its module is not imported for the name, as that would load the protocol code
in every worker."""


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics that a query reads: those with these names, or all whose names match a pattern."""

    names: tuple[str, ...]
    pattern: str | None = None
    """The text of a `TopicPattern`."""

    @property
    def is_single(self) -> bool:
        return self.pattern is None and len(self.names) == 1

    def __contains__(self, topic: str) -> bool:
        return topic in self.names if self.pattern is None else _pattern(self.pattern).matches(topic)

    def __str__(self) -> str:
        return described(self.names if self.pattern is None else _pattern(self.pattern))


@lru_cache(maxsize=16)
def _pattern(text: str) -> TopicPattern:
    return TopicPattern(re.compile(text))


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The data folder of an embedded log, as a path on its host."""

    path: str
    cluster_id: str

    def is_here(self) -> bool:
        """Whether this process can read the folder, and it is the folder of that log, not of another one."""
        try:
            content = read_state(Path(self.path) / CLUSTER_FILE)
            return (
                content is not None
                and msgspec.json.decode(content, type=dict[str, str])["cluster_id"] == self.cluster_id
            )
        except (OSError, LogError, msgspec.MsgspecError, KeyError):
            return False


@dataclass(frozen=True, slots=True)
class Origin:
    """A stream, and how tasks on any host read it."""

    url: str = field(repr=False)
    """The URL for the client, which may contain a password; for an embedded log, the address of its broker."""
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    folder: LogFolder | None = None
    has_offsets: bool = True
    """Whether the pointers are offsets, as `Feature.OFFSETS` says."""

    @property
    def key(self) -> tuple[str, str]:
        """Equal for origins that can use the same connection."""
        return self.url, repr(sorted(self.client.items()))


@dataclass(frozen=True, slots=True)
class Range:
    """The records of a partition from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int


class TaskInput(InputPartition):
    """The ranges that one task reads, in this order."""

    def __init__(self, origin: Origin, ranges: tuple[Range, ...]) -> None:
        super().__init__(None)
        self.origin = origin
        self.ranges = ranges


WORTH_A_TASK: Final = 20_000
"""The minimum number of pointers per task: reading them takes as long as starting a task, a few milliseconds."""
MOST_IN_A_TASK: Final = 4_000_000
"""The maximum number of pointers per task: a retry repeats the whole task, so larger ones are always split."""


def split(ranges: Iterable[Range], tasks: int) -> list[tuple[Range, ...]]:
    """Divide ranges into about `tasks` parts of about equal size, in the order of the partitions.

    There are fewer parts if there is little to read, and more if there is very much. A part may contain ranges of
    several partitions.
    """
    pieces = [each for each in ranges if each.end > each.start]
    total = sum(each.end - each.start for each in pieces)
    count = max(tasks, -(-total // MOST_IN_A_TASK))
    part = max(-(-total // count), WORTH_A_TASK)
    shares: list[tuple[Range, ...]] = []
    share: list[Range] = []
    room = part
    for piece in pieces:
        start = piece.start
        while start < piece.end:
            taken = min(room, piece.end - start)
            share.append(Range(piece.topic, piece.partition, start, start + taken))
            start += taken
            room -= taken
            if not room:
                shares.append(tuple(share))
                share, room = [], part
    if share:
        shares.append(tuple(share))
    return shares


def whole_partitions(ranges: Iterable[Range], tasks: int) -> list[tuple[Range, ...]]:
    """Divide ranges among at most `tasks` tasks without splitting any, where pointers do not count records."""
    pieces = [each for each in ranges if each.end > each.start]
    return [tuple(pieces[number::tasks]) for number in range(min(tasks, len(pieces)))]
