"""Groups as the command line, the console and the admin requests see them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE, assigned_partitions
from penstock.broker.groups.group import Group
from penstock.broker.groups.offsets import TopicPartition
from penstock.broker.groups.state import GroupState


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    """What the member said about itself under the group's protocol; empty unless the group is stable."""
    assignment: bytes
    partitions: tuple[TopicPartition, ...] | None
    """The partitions of the assignment; None when the group is not one of consumers."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    state: GroupState
    state_since_ms: int | None
    generation: int
    protocol_type: str
    protocol_name: str
    """Empty unless the group is stable."""
    leader_id: str | None
    members: tuple[MemberDescription, ...]


def describe(group: Group) -> GroupDescription:
    settled = group.protocol_name if group.state is GroupState.STABLE else None
    is_consumer_group = group.protocol_type == CONSUMER_PROTOCOL_TYPE
    return GroupDescription(
        group_id=group.group_id,
        state=group.state,
        state_since_ms=group.state_since_ms,
        generation=group.generation,
        protocol_type=group.protocol_type or "",
        protocol_name=settled or "",
        leader_id=group.leader_id,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=b"" if settled is None else member.metadata_for(settled),
                assignment=member.assignment,
                partitions=assigned_partitions(member.assignment) if is_consumer_group else None,
            )
            for member in group.members.values()
        ),
    )
