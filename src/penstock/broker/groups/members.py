"""The requests of group members: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.groups.group import Group, GroupState, Member
from penstock.broker.groups.journal import answer_for
from penstock.broker.groups.messages import (
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    LeftMember,
    SyncAnswer,
    SyncRequest,
)
from penstock.broker.groups.rebalances import Rebalances
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.stored_fields import LONGEST_STRING_BYTES

logger = logging.getLogger(__name__)

_LONGEST_TEXT_BYTES = LONGEST_STRING_BYTES - 64
"""A member id made of it can still be stored."""

_Waiting = tuple[Member, asyncio.Future[JoinAnswer]]


@dataclass(slots=True, eq=False)
class Members:
    groups: MutableMapping[str, Group]
    rebalances: Rebalances
    settings: GroupSettings
    new_id: Callable[[], str]

    async def join(self, request: JoinRequest) -> JoinAnswer:
        try:
            self._check_join(request)
            group = self._group_for(request)
            admitted = self._admit(group, request)
        except ProtocolError as error:
            keeps_id = error.code is not ErrorCode.group_max_size_reached
            return JoinAnswer(error=error.code, member_id=request.member_id if keeps_id else "")
        if isinstance(admitted, JoinAnswer):
            return admitted
        member, join = admitted
        try:
            return await join
        except asyncio.CancelledError:
            self.rebalances.abandon_join(group, member, join)
            raise

    def _check_join(self, request: JoinRequest) -> None:
        if not request.group_id:
            raise ProtocolError(ErrorCode.invalid_group_id)
        longest_ms = self.settings.max_session_timeout_ms
        if not self.settings.min_session_timeout_ms <= request.session_timeout_ms <= longest_ms:
            raise ProtocolError(ErrorCode.invalid_session_timeout)
        if any(
            len(text.encode()) > _LONGEST_TEXT_BYTES
            for text in (
                request.group_id,
                request.instance_id or "",
                request.client_id,
                request.client_host,
                request.protocol_type,
                *(protocol.name for protocol in request.protocols),
            )
        ):
            raise ProtocolError(ErrorCode.invalid_request)

    def _group_for(self, request: JoinRequest) -> Group:
        """The group, or a new one that is not registered yet."""
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise ProtocolError(ErrorCode.unknown_member_id)
            return self.rebalances.new_group(request.group_id)
        if group.state is GroupState.DEAD:
            raise ProtocolError(ErrorCode.coordinator_not_available)
        return group

    def _admit(self, group: Group, request: JoinRequest) -> _Waiting | JoinAnswer:
        """What to wait for, or the immediate answer."""
        if not self._has_room_for(group, request.member_id):
            if request.member_id:
                self.rebalances.remove(group, request.member_id, "the group is full")
            raise ProtocolError(ErrorCode.group_max_size_reached)
        if not group.supports(request.protocol_type, request.protocols):
            raise ProtocolError(ErrorCode.inconsistent_group_protocol)
        self.groups.setdefault(group.group_id, group)
        if not request.member_id:
            return self._join_without_id(group, request)
        if request.member_id in group.pending_members and request.instance_id is None:
            return self._add(group, request, request.member_id)
        return self._join_again(group, request)

    def _has_room_for(self, group: Group, member_id: str) -> bool:
        limit = self.settings.max_size
        if not member_id and len(group.pending_members) >= limit:
            return False
        if group.state is GroupState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            return (member is not None and member.join is not None) or group.joined_count < limit
        return member is not None or len(group.members) < limit

    def _join_without_id(self, group: Group, request: JoinRequest) -> _Waiting | JoinAnswer:
        if request.instance_id is not None:
            member_id = f"{request.instance_id}-{self.new_id()}"
            replaced = group.static_members.get(request.instance_id)
            if replaced is None:
                return self._add(group, request, member_id)
            return self._replace(group, request, group.members[replaced], member_id)
        member_id = f"{request.client_id or 'member'}-{self.new_id()}"
        if not request.requires_known_member_id:
            return self._add(group, request, member_id)
        self.rebalances.expect(group, member_id, request.session_timeout_ms)
        return JoinAnswer(error=ErrorCode.member_id_required, member_id=member_id)

    def _join_again(self, group: Group, request: JoinRequest) -> _Waiting | JoinAnswer:
        member = group.check_member(request.member_id, request.instance_id)
        unchanged = member.protocols == request.protocols
        if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
            return group.joined_answer(member)
        is_leader = group.leader_id == member.member_id
        if group.state is GroupState.STABLE and unchanged and not is_leader:
            return group.joined_answer(member)
        join = self._wait_for_others(member, request)
        who = "the leader" if is_leader else f"member {member.member_id}"
        self.rebalances.rebalance(group, f"{who} joins again: {request.reason or 'no reason given'}")
        return member, join

    def _add(self, group: Group, request: JoinRequest, member_id: str) -> _Waiting:
        member = self._new_member(group, request, member_id)
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.joined_during_delay = True
        group.add(member, request.protocol_type)
        join = self._wait_for_others(member, request)
        member.session.start(self.settings.new_member_join_timeout_ms)
        self.rebalances.rebalance(group, f"member {member_id} joins: {request.reason or 'no reason given'}")
        return member, join

    def _replace(self, group: Group, request: JoinRequest, old: Member, member_id: str) -> _Waiting:
        """A static member returns without its id: it takes over the place and assignment of its former self."""
        leader_before = group.leader_id
        new = self._new_member(group, request, member_id)
        new.assignment = old.assignment
        group.replace_static(old, new)
        join = self._wait_for_others(new, request)
        self.rebalances.heard_from(new)
        reason = f"static member {request.instance_id} comes back as {member_id}"
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            self._store_replacement(group, request, old, new, leader_before or "")
        elif group.state is GroupState.COMPLETING_REBALANCE:
            self.rebalances.prepare(group, reason)
        else:
            self.rebalances.rebalance(group, reason)
        return new, join

    def _store_replacement(
        self, group: Group, request: JoinRequest, old: Member, new: Member, leader_before: str
    ) -> None:
        """Store the new id. No rebalance is needed: no other member needs to know it. A rebalance that began in the
        meantime has this member waiting already and ends the wait itself."""
        generation = group.generation

        def still_wanted() -> bool:
            current = group.members.get(new.member_id) is new
            return current and group.state is GroupState.STABLE and group.generation == generation

        def apply() -> None:
            if not still_wanted():
                return
            group.learn_subscriptions()
            is_leader = group.leader_id == new.member_id
            skips = is_leader and request.can_skip_assignment
            new.answer_join(
                JoinAnswer(
                    member_id=new.member_id,
                    generation=group.generation,
                    protocol_type=group.protocol_type,
                    protocol_name=group.protocol_name,
                    leader=group.leader_id or "" if request.can_skip_assignment else leader_before,
                    skip_assignment=skips,
                    members=group.member_list() if skips else (),
                )
            )

        def fail(error: BaseException) -> None:
            if not still_wanted():
                return
            new.answer_join(JoinAnswer(error=answer_for(error), member_id="", generation=group.generation))
            group.replace_static(new, old)
            self.rebalances.heard_from(old)

        assignments = {member.member_id: member.assignment for member in group.members.values()}
        self.rebalances.store(group, assignments, apply=apply, fail=fail)

    def _new_member(self, group: Group, request: JoinRequest, member_id: str) -> Member:
        return Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            session=self.rebalances.session_of(group, member_id),
        )

    def _wait_for_others(self, member: Member, request: JoinRequest) -> asyncio.Future[JoinAnswer]:
        """Store the member's new metadata, and let it wait for the others.

        An earlier JoinGroup of the same member that still waits, most likely on an abandoned connection, is answered
        with an error that makes the client rejoin at no cost.
        """
        member.answer_join(JoinAnswer(error=ErrorCode.rebalance_in_progress, member_id=member.member_id))
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.join = asyncio.get_running_loop().create_future()
        return member.join

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        try:
            group = self._group(request.group_id)
            member = group.check_member(request.member_id, request.instance_id)
            self._check_sync(group, request)
        except ProtocolError as error:
            return SyncAnswer(error=error.code)
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            group.sync_phase.stop()
        if group.state is GroupState.STABLE:
            return SyncAnswer(
                protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
            )
        return await self._wait_for_assignment(group, member, request)

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> None:
        """Keep the member's session alive. Raises REBALANCE_IN_PROGRESS if it has to rejoin."""
        group = self._group(group_id)
        member = group.check_member(member_id, instance_id)
        if generation != group.generation:
            raise ProtocolError(ErrorCode.illegal_generation)
        self.rebalances.heard_from(member)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise ProtocolError(ErrorCode.rebalance_in_progress)

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> list[LeftMember]:
        """Remove members, by member id or, as an admin does, by instance id alone. The others are rebalanced once."""
        if not group_id:
            raise ProtocolError(ErrorCode.invalid_group_id)
        group = self.groups.get(group_id)
        if group is None:
            return [LeftMember(who.member_id, who.instance_id, ErrorCode.unknown_member_id) for who in leaving]
        if group.state is GroupState.DEAD:
            raise ProtocolError(ErrorCode.coordinator_not_available)
        answers = [LeftMember(who.member_id, who.instance_id, self._take_out(group, who)) for who in leaving]
        if any(answer.error is ErrorCode.none for answer in answers):
            write = None if group.state is GroupState.EMPTY else self.rebalances.rebalance(group, "members left")
            if write is not None:
                await asyncio.wait([write])  # the journal logs a failure; the members have left anyway
        return answers

    def _group(self, group_id: str) -> Group:
        if not group_id:
            raise ProtocolError(ErrorCode.invalid_group_id)
        group = self.groups.get(group_id)
        if group is None or group.state is GroupState.EMPTY:
            raise ProtocolError(ErrorCode.unknown_member_id)
        if group.state is GroupState.DEAD:
            raise ProtocolError(ErrorCode.coordinator_not_available)
        return group

    def _check_sync(self, group: Group, request: SyncRequest) -> None:
        if request.generation != group.generation:
            raise ProtocolError(ErrorCode.illegal_generation)
        if request.protocol_type not in (None, group.protocol_type):
            raise ProtocolError(ErrorCode.inconsistent_group_protocol)
        if request.protocol_name not in (None, group.protocol_name):
            raise ProtocolError(ErrorCode.inconsistent_group_protocol)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise ProtocolError(ErrorCode.rebalance_in_progress)

    async def _wait_for_assignment(self, group: Group, member: Member, request: SyncRequest) -> SyncAnswer:
        member.answer_sync(SyncAnswer(error=ErrorCode.rebalance_in_progress))
        sync: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        member.sync = sync
        if group.leader_id == member.member_id:
            self.rebalances.assign(group, dict(request.assignments))
        try:
            return await sync
        except asyncio.CancelledError:
            self.rebalances.abandon_sync(group, member, sync)
            raise

    def _take_out(self, group: Group, who: LeavingMember) -> ErrorCode:
        member_id = who.member_id
        if not member_id:
            if who.instance_id is None or who.instance_id not in group.static_members:
                return ErrorCode.unknown_member_id
            member_id = group.static_members[who.instance_id]
        elif member_id not in group.pending_members:
            try:
                group.check_member(member_id, who.instance_id)
            except ProtocolError as error:
                return error.code
        logger.info("Member %s leaves group %s: %s", member_id, group.group_id, who.reason or "no reason given")
        group.remove(member_id)
        return ErrorCode.none
