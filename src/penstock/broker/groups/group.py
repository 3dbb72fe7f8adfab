"""A group: its members, its generation, and the rules that need no clock and no log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.groups.countdown import Countdown
from penstock.broker.groups.messages import JoinAnswer, JoinedMember, MemberProtocol, SyncAnswer
from penstock.broker.groups.records import StoredGroup, StoredMember
from penstock.broker.stored_fields import DamagedRecordError, FieldReader

CONSUMER_PROTOCOL_TYPE: Final = "consumer"


class GroupState(Enum):
    EMPTY = "Empty"
    """No members. It may have offsets; joins, and commits of consumers outside of the group protocol, are accepted."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for the members to rejoin. Heartbeats are answered with REBALANCE_IN_PROGRESS."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A new generation has begun; waiting for the leader's assignment."""
    STABLE = "Stable"
    """Every member has, or can ask for, its assignment."""
    DEAD = "Dead"
    """Its deletion is being written. If that fails, it becomes Empty again."""


PREVIOUS: Final = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.PREPARING_REBALANCE: {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: {GroupState.EMPTY},
}


@dataclass(slots=True, eq=False, kw_only=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    session: Countdown
    assignment: bytes = b""
    is_new: bool = False
    """Until its first JoinGroup is answered. It cannot send heartbeats before, so another timeout applies."""
    join: asyncio.Future[JoinAnswer] | None = None
    sync: asyncio.Future[SyncAnswer] | None = None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def waits_for_the_group(self) -> bool:
        """Whether it waits for an answer of the group, so that no heartbeat is due."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    @property
    def protocol_names(self) -> frozenset[str]:
        return frozenset(protocol.name for protocol in self.protocols)

    def metadata_for(self, protocol_name: str) -> bytes:
        return next(protocol.metadata for protocol in self.protocols if protocol.name == protocol_name)

    def vote(self, candidates: Collection[str]) -> str:
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)

    def answer_join(self, answer: JoinAnswer) -> None:
        """Answer the waiting JoinGroup, if there is one. Its client may have disconnected just now."""
        if self.join is not None and not self.join.done():
            self.join.set_result(answer)
        self.join = None

    def answer_sync(self, answer: SyncAnswer) -> bool:
        """Answer the waiting SyncGroup, if there is one, and return whether there was."""
        waited = self.sync is not None
        if self.sync is not None and not self.sync.done():
            self.sync.set_result(answer)
        self.sync = None
        return waited


@dataclass(slots=True, eq=False, kw_only=True)
class Group:
    group_id: str
    join_phase: Countdown
    """Ends the wait for members that have not rejoined."""
    sync_phase: Countdown
    """Ends the wait for members that have joined but not asked for their assignment."""
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.DEAD
    state_since_ms: int | None = None
    generation: int = 0
    protocol_type: str | None = None
    """None for a group that was only used to commit offsets."""
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    """By member id, oldest first."""
    static_members: dict[str, str] = field(default_factory=dict)
    """Member ids by instance id."""
    pending_members: dict[str, Countdown] = field(default_factory=dict)
    """Members that got an id and have not joined with it yet, by that id."""
    pending_sync: set[str] = field(default_factory=set)
    """The members of this generation that have not sent their SyncGroup yet."""
    subscribed: frozenset[str] | None = None
    """The topics of all members of this generation; None if the broker cannot know them."""
    joined_during_delay: bool = False
    """Whether a member was added since the initial rebalance was last delayed."""
    delay_left_ms: int = 0
    """How much longer the initial rebalance may still be delayed."""
    stored: bool = False
    """Whether the topic has a record of this group, so that its end must be written, too."""

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def can_rebalance(self) -> bool:
        return self.state in PREVIOUS[GroupState.PREPARING_REBALANCE]

    @property
    def everyone_has_joined(self) -> bool:
        return not self.pending_members and all(member.join is not None for member in self.members.values())

    @property
    def joined_count(self) -> int:
        return sum(member.join is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def enter(self, state: GroupState, since_ms: int | None) -> None:
        assert self.state in PREVIOUS[state], f"group {self.group_id} cannot go from {self.state} to {state}"
        self.previous_state = self.state
        self.state = state
        self.state_since_ms = since_ms

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """The member, unless it is unknown or was replaced by another with the same instance id."""
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is None:
                raise ProtocolError(ErrorCode.unknown_member_id)
            if current != member_id:
                raise ProtocolError(ErrorCode.fenced_instance_id)
        member = self.members.get(member_id)
        if member is None:
            raise ProtocolError(ErrorCode.unknown_member_id)
        return member

    def supports(self, protocol_type: str, protocols: Iterable[MemberProtocol]) -> bool:
        names = {protocol.name for protocol in protocols}
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and names)
        if not self.members:
            return self.protocol_type == protocol_type and bool(names)
        return self.protocol_type == protocol_type and not names.isdisjoint(self._common_protocols())

    def add(self, member: Member, protocol_type: str) -> None:
        assert member.member_id not in self.members
        assert member.instance_id not in self.static_members
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.drop_pending(member.member_id)

    def drop_pending(self, member_id: str) -> None:
        countdown = self.pending_members.pop(member_id, None)
        if countdown is not None:
            countdown.stop()

    def remove(self, member_id: str) -> None:
        """Remove a member. Its waiting requests are answered with UNKNOWN_MEMBER_ID, so that it rejoins."""
        self.drop_pending(member_id)
        self.pending_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        member.session.stop()
        member.answer_join(JoinAnswer(error=ErrorCode.unknown_member_id, member_id=""))
        member.answer_sync(SyncAnswer(error=ErrorCode.unknown_member_id))
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def replace_static(self, old: Member, new: Member) -> None:
        """Let a static member continue under a new id. Users of the old one are fenced."""
        assert new.instance_id is not None
        assert old.instance_id == new.instance_id
        old.session.stop()
        old.answer_join(JoinAnswer(error=ErrorCode.fenced_instance_id, member_id=old.member_id))
        old.answer_sync(SyncAnswer(error=ErrorCode.fenced_instance_id))
        self.members = {
            (new.member_id if member is old else member_id): (new if member is old else member)
            for member_id, member in self.members.items()
        }
        self.static_members[new.instance_id] = new.member_id
        self.pending_sync.discard(old.member_id)
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined; False if no member has."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].join is not None:
            return True
        joined = next((member.member_id for member in self.members.values() if member.join is not None), None)
        if joined is None:
            return False
        self.leader_id = joined
        return True

    def select_protocol(self) -> str:
        common = self._common_protocols()
        votes = Counter(member.vote(common) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def begin_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.enter(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.enter(GroupState.EMPTY, now_ms)
        self.learn_subscriptions()

    def learn_subscriptions(self) -> None:
        self.subscribed = self._subscriptions()

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member may still need the offsets of this topic."""
        return self.is_consumer_group if self.subscribed is None else topic in self.subscribed

    def joined_answer(self, member: Member) -> JoinAnswer:
        """What a member is told about the current generation; the leader gets all members."""
        is_leader = member.member_id == self.leader_id
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or "",
            members=self.member_list() if is_leader else (),
        )

    def member_list(self) -> tuple[JoinedMember, ...]:
        assert self.protocol_name is not None
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_for(self.protocol_name))
            for member in self.members.values()
        )

    def to_store(self, assignments: dict[str, bytes]) -> StoredGroup:
        """What the topic keeps of the group as it is now, with these assignments."""
        return StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader_id,
            state_since_ms=self.state_since_ms,
            members=tuple(
                StoredMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata_for(self.protocol_name or ""),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    def stop(self) -> None:
        self.join_phase.stop()
        self.sync_phase.stop()
        for member in self.members.values():
            member.session.stop()
        for member_id in list(self.pending_members):
            self.drop_pending(member_id)

    def _common_protocols(self) -> frozenset[str]:
        return frozenset.intersection(*(member.protocol_names for member in self.members.values()))

    def _subscriptions(self) -> frozenset[str] | None:
        if not self.is_consumer_group:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            subscription = subscribed_topics(member.metadata_for(self.protocol_name))
            if subscription is None:
                return None
            topics |= subscription
        return frozenset(topics)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of a ConsumerProtocolSubscription, or None if the bytes are not one.

    Clients write it for clients; the broker reads the topics to know which offsets are still used. All later versions
    start like version 0, so only that is read.
    """
    reader = FieldReader(metadata)
    try:
        reader.int16()
        return frozenset(reader.string() for _ in range(reader.array_length()))
    except DamagedRecordError:
        return None
