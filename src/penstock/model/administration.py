"""The values that `penstock.abc.Admin` and its siblings return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANSWER_TIMEOUT_S: Final = 30.0
"""How long to wait for the answer of a stream."""
Offsets = dict[int, int]
"""Partition to offset."""
PartitionId = tuple[str, int]
"""A topic and a partition."""

CHECKPOINTED: Final = "penstock checkpoint"
"""The metadata of the offsets that the library's consumers commit. They only show progress: checkpoints decide.

If the checkpoints are in a file of one host, the host and the file follow.
"""
LONGEST_PLACE: Final = 900
"""Kafka takes 4096 bytes of metadata, and a character has up to four."""
_WITHOUT_MEMBERS: Final = frozenset({"empty", "dead", "unknown"})


def checkpoint_metadata(place: str | None) -> str:
    """The metadata of an offset whose checkpoint is at this place; None: in a store that all hosts share."""
    return CHECKPOINTED if place is None else f"{CHECKPOINTED} in {place[-LONGEST_PLACE:]}"


def is_checkpoint_metadata(metadata: str | None) -> bool:
    return metadata is not None and (metadata == CHECKPOINTED or metadata.startswith(f"{CHECKPOINTED} in "))


def checkpoint_place(metadata: str | None) -> str | None:
    """Where the checkpoint of an offset is, if it is in a file of one host."""
    start = f"{CHECKPOINTED} in "
    return metadata.removeprefix(start) if metadata is not None and metadata.startswith(start) else None


@dataclass(frozen=True, slots=True)
class TopicSummary:
    name: str
    partitions: tuple[int, ...]
    internal: bool
    """Whether the stream uses it for itself."""
    id: str | None = None
    """Differs if the topic was deleted and created again; None if the stream has no ids, or was not asked."""


@dataclass(frozen=True, slots=True)
class Span:
    """What can be read in a partition: from the start offset to before the end offset."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A setting of a topic."""

    name: str
    value: str | None
    is_default: bool
    """Whether it is the broker's default."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    name: str
    state: str


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    client_id: str
    host: str
    assignment: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a group has come in one partition."""

    topic: str
    partition: int
    committed: int | None
    """The offset to read next; None if nothing was committed."""
    end: int | None
    """The end of the partition; None if it does not exist any more."""
    member: Member | None

    @property
    def lag(self) -> int | None:
        """How many offsets are left to read."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    name: str
    state: str
    assignor: str
    members: tuple[Member, ...]
    progress: tuple[Progress, ...]
    is_checkpointed: bool = False
    """Whether its offsets come from a consumer of this library, which continues at its checkpoint instead."""

    @property
    def is_active(self) -> bool:
        return bool(self.members) or self.state not in _WITHOUT_MEMBERS

    @property
    def lag(self) -> int:
        return sum(each.lag or 0 for each in self.progress)


@dataclass(frozen=True, slots=True)
class GroupMembers:
    state: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """What a system counts in a partition."""

    stored: int
    """The records that can be read."""
    appended: int | None = None
    """The records that were ever appended; None if it does not count them."""


@dataclass(frozen=True, slots=True)
class RecordTime:
    pointer: int
    timestamp_ms: int
    is_after_loss: bool = False
    """Records between the requested pointer and this one have expired."""
