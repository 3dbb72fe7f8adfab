"""Where tasks find records: in the files of a log on their own host, or through the client. It is pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import InputPartition

from penstock.errors import LogError
from penstock.log.statefile import read_state

CLUSTER_FILE: Final = "cluster"
"""What the broker calls the file that tells whose folder it is. Its module is not imported for a name: it brings along
all of the protocol, in every worker."""


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The data folder of an embedded log, as a process on its host would find it."""

    path: str
    cluster_id: str

    def is_here(self) -> bool:
        """Whether this process can read the folder, and it is that log's, and not another one's in a like place."""
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
    """A topic, and how to get at it from anywhere."""

    url: str
    """For the client. For an embedded log it is the address of its broker."""
    topic: str
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    folder: LogFolder | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What two origins share that are reached in the same way."""
        return self.url, self.topic, repr(sorted(self.client.items()))


@dataclass(frozen=True, slots=True)
class Range:
    """The records of a partition from `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int


class TaskInput(InputPartition):
    """What one task reads, in this order."""

    def __init__(self, origin: Origin, ranges: tuple[Range, ...]) -> None:
        super().__init__(None)
        self.origin = origin
        self.ranges = ranges
