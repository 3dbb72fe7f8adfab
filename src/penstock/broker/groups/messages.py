"""What the coordinator is asked and what it answers, free of the versions of the wire protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from penstock.broker.groups.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class MemberProtocol:
    """One way of assigning partitions that a member offers, best liked first, with what it wants others to know."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    group_id: str
    member_id: str
    """Empty for a member that has no id yet."""
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    requires_known_member_id: bool = True
    """From version 4 on a new member is sent away with an id first, so that a lost answer leaves no ghost behind."""
    can_skip_assignment: bool = True
    """From version 9 on a leader can be told that the assignment stands."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """What the leader is told about a member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    error: ErrorCode = ErrorCode.none
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes]
    """By member id; empty unless it comes from the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeavingMember:
    member_id: str
    instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeftMember:
    member_id: str
    instance_id: str | None
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None

    @property
    def where(self) -> TopicPartition:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    member_id: str = ""
    generation: int = -1
    """-1 with an empty member id comes from a consumer that manages its partitions itself, or from an admin."""
    instance_id: str | None = None
    retention_ms: int | None = None
    """Asked for by old clients only (versions 2 to 4)."""
    knows_missing_groups: bool = True
    """From version 9 on a missing group can be called that; before, it is an illegal generation."""


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """What OffsetFetch answers for one partition: -1 when nothing is committed."""

    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.none
