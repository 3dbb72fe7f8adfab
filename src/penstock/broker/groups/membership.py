"""What a member asks once it has joined: its assignment, a sign of life, the way out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.groups.group import Group
from penstock.broker.groups.member import Member
from penstock.broker.groups.messages import LeavingMember, LeftMember, SyncAnswer, SyncRequest
from penstock.broker.groups.rebalances import Rebalances
from penstock.broker.groups.state import GroupState

logger = logging.getLogger(__name__)


class Membership:
    def __init__(self, groups: Mapping[str, Group], rebalances: Rebalances) -> None:
        self._groups = groups
        self._rebalances = rebalances

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """The member's assignment, once the leader has sent it and it is durable."""
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
        """Keep the member's session alive. Raises REBALANCE_IN_PROGRESS when it has to join again."""
        group = self._group(group_id)
        member = group.check_member(member_id, instance_id)
        if generation != group.generation:
            raise ProtocolError(ErrorCode.illegal_generation)
        self._rebalances.heard_from(member)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise ProtocolError(ErrorCode.rebalance_in_progress)

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> list[LeftMember]:
        """Take members out, by member id or, as an admin does, by instance id alone. The others are rebalanced once."""
        if not group_id:
            raise ProtocolError(ErrorCode.invalid_group_id)
        group = self._groups.get(group_id)
        if group is None:
            return [LeftMember(who.member_id, who.instance_id, ErrorCode.unknown_member_id) for who in leaving]
        if group.state is GroupState.DEAD:
            raise ProtocolError(ErrorCode.coordinator_not_available)
        answers = [LeftMember(who.member_id, who.instance_id, self._take_out(group, who)) for who in leaving]
        if any(answer.error is ErrorCode.none for answer in answers):
            write = self._go_on_without(group)
            if write is not None:
                await asyncio.wait([write])  # the journal reports a failure; the members have left all the same
        return answers

    def _group(self, group_id: str) -> Group:
        if not group_id:
            raise ProtocolError(ErrorCode.invalid_group_id)
        group = self._groups.get(group_id)
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
            self._rebalances.assign(group, dict(request.assignments))
        try:
            return await sync
        except asyncio.CancelledError:
            self._rebalances.abandon_sync(group, member, sync)
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

    def _go_on_without(self, group: Group) -> asyncio.Future[None] | None:
        if group.state is GroupState.EMPTY:
            return None
        return self._rebalances.rebalance(group, "members left")
