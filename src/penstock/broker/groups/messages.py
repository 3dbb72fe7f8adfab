"""The coordinator's requests and answers, independent of wire versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from penstock.broker.groups.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class MemberProtocol:
    """An assignment protocol that a member supports, in order of preference, with its metadata."""

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
    """From version 4 on, a new member first gets an id and must rejoin, so that a lost answer leaves no ghost."""
    can_skip_assignment: bool = True
    """From version 9 on, a leader can be told that the assignment is unchanged."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class JoinedMember:
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
    """-1 with an empty member id: a consumer that assigns its partitions itself, or an admin."""
    instance_id: str | None = None
    retention_ms: int | None = None
    """Only sent by old clients (versions 2 to 4)."""
    knows_missing_groups: bool = True
    """From version 9 on, a missing group has its own code; before, it is an illegal generation."""


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """The answer of OffsetFetch for one partition: -1 if nothing is committed."""

    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.none
