"""Rebalances: moving a group from one generation to the next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from penstock.broker.contracts import Clock
from penstock.broker.groups.countdown import Countdown
from penstock.broker.groups.group import Group, GroupState, Member
from penstock.broker.groups.journal import Journal, answer_for
from penstock.broker.groups.messages import JoinAnswer, SyncAnswer
from penstock.broker.groups.records import group_key, group_value
from penstock.broker.groups.settings import GroupSettings

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Rebalances:
    """Moves groups through their states, driven by requests (`membership`) and by time.

    A rebalance has two phases. First every member (re)joins; the phase ends when all have, or after the rebalance
    timeout, when missing members are removed unless they are static. Then the leader sends the assignment, and the
    group is stable once that is in the log.
    """

    clock: Clock
    settings: GroupSettings
    journal: Journal

    def new_group(self, group_id: str) -> Group:
        group: Group

        def later(step: Callable[[Group], None]) -> Countdown:
            return Countdown(self.clock, lambda: step(group))

        group = Group(
            group_id=group_id,
            join_phase=later(self._end_of_join_phase),
            sync_phase=later(self._end_of_sync_phase),
            state_since_ms=self.clock.wall_ms(),
        )
        return group

    def session_of(self, group: Group, member_id: str) -> Countdown:
        return Countdown(self.clock, lambda: self._end_of_session(group, member_id))

    def expect(self, group: Group, member_id: str, session_timeout_ms: int) -> None:

        def give_up() -> None:
            self.remove(group, member_id, "it never joined with its id")

        countdown = Countdown(self.clock, give_up)
        group.pending_members[member_id] = countdown
        countdown.start(session_timeout_ms)

    def heard_from(self, member: Member) -> None:
        member.session.start(member.session_timeout_ms)

    def remove(self, group: Group, member_id: str, reason: str) -> asyncio.Future[None] | None:
        """Remove a member, or a future one, from the group, and let the others continue.

        Returns the resulting write, if there is one.
        """
        was_member = member_id in group.members
        group.remove(member_id)
        if was_member:
            logger.info("Member %s left group %s: %s", member_id, group.group_id, reason)
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                return self.rebalance(group, f"member {member_id} left: {reason}")
        if group.state is GroupState.PREPARING_REBALANCE and group.everyone_has_joined:
            return self.complete_join_phase(group)
        return None

    def rebalance(self, group: Group, reason: str) -> asyncio.Future[None] | None:
        """Start a rebalance, or check whether the running one can continue."""
        if group.can_rebalance:
            return self.prepare(group, reason)
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.everyone_has_joined
        ):
            return self.complete_join_phase(group)
        return None

    def prepare(self, group: Group, reason: str) -> asyncio.Future[None] | None:
        logger.info(
            "Group %s is rebalanced (%s, generation %d): %s",
            group.group_id,
            group.state.value,
            group.generation,
            reason,
        )
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._drop_assignments(group, ErrorCode.rebalance_in_progress)
        group.pending_sync.clear()
        group.sync_phase.stop()
        is_initial = group.state is GroupState.EMPTY
        group.enter(GroupState.PREPARING_REBALANCE, self.clock.wall_ms())
        if is_initial:
            delay_ms = self.settings.initial_rebalance_delay_ms
            group.joined_during_delay = False
            group.delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.join_phase.start(delay_ms)
            return None
        if group.everyone_has_joined:
            return self.complete_join_phase(group)
        group.join_phase.start(group.rebalance_timeout_ms)
        return None

    def complete_join_phase(self, group: Group) -> asyncio.Future[None] | None:
        """Start the next generation with those who have joined, and with the static members."""
        assert group.state is GroupState.PREPARING_REBALANCE
        group.join_phase.stop()
        for member in [member for member in group.members.values() if member.join is None and not member.is_static]:
            logger.info("Member %s of group %s did not join again in time", member.member_id, group.group_id)
            group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            logger.warning("Nobody joined group %s again; waiting for its static members", group.group_id)
            group.join_phase.start(group.rebalance_timeout_ms)
            return None
        group.begin_generation(self.clock.wall_ms())
        logger.info(
            "Group %s is %s in generation %d with %d members",
            group.group_id,
            group.state.value,
            group.generation,
            len(group.members),
        )
        if not group.members:
            return self.store(group, {})
        for member in group.members.values():
            member.answer_join(group.joined_answer(member))
            member.is_new = False
            self.heard_from(member)
        group.pending_sync.update(group.members)
        group.sync_phase.start(group.rebalance_timeout_ms)
        return None

    def assign(self, group: Group, assignments: dict[str, bytes]) -> None:
        """Store the leader's assignment, and send it to the members once it is durable."""
        generation = group.generation
        missing = [member_id for member_id in group.members if member_id not in assignments]
        if missing:
            logger.warning("The leader of group %s assigned nothing to %s", group.group_id, ", ".join(missing))

        def still_wanted() -> bool:
            return group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation

        def apply() -> None:
            if not still_wanted():
                return
            for member in group.members.values():
                member.assignment = assignments.get(member.member_id, b"")
            group.enter(GroupState.STABLE, self.clock.wall_ms())
            for member in group.members.values():
                answer = SyncAnswer(
                    protocol_type=group.protocol_type,
                    protocol_name=group.protocol_name,
                    assignment=member.assignment,
                )
                if member.answer_sync(answer):
                    self.heard_from(member)

        def fail(error: BaseException) -> None:
            if still_wanted():
                self._drop_assignments(group, answer_for(error))
                self.rebalance(group, f"its assignment could not be stored: {error}")

        self.store(group, assignments, apply=apply, fail=fail)

    def store(
        self,
        group: Group,
        assignments: dict[str, bytes],
        *,
        apply: Callable[[], None] = lambda: None,
        fail: Callable[[BaseException], None] = lambda _error: None,
    ) -> asyncio.Future[None]:
        record = group_key(group.group_id), group_value(group.to_store(assignments))
        group.stored = True
        return self.journal.write(self.journal.partition_of(group.group_id), [record], apply=apply, fail=fail)

    def abandon_join(self, group: Group, member: Member, join: asyncio.Future[JoinAnswer]) -> None:
        """Handle a disconnected client whose JoinGroup waits.

        A new member is removed: nobody knows it yet, and it would delay the others. A former member may return with its
        id; it is waited for until its session ends.
        """
        if group.members.get(member.member_id) is not member or member.join is not join:
            return
        member.join = None
        if member.is_new:
            self.remove(group, member.member_id, "its client went away while it joined")
        else:
            self.heard_from(member)

    def abandon_sync(self, group: Group, member: Member, sync: asyncio.Future[SyncAnswer]) -> None:
        """Handle a disconnected client whose SyncGroup waits; it may return until its session ends."""
        if group.members.get(member.member_id) is member and member.sync is sync:
            member.sync = None
            self.heard_from(member)

    def _drop_assignments(self, group: Group, error: ErrorCode) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.answer_sync(SyncAnswer(error=error)):
                self.heard_from(member)

    def _end_of_join_phase(self, group: Group) -> None:
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        is_initial = group.previous_state is GroupState.EMPTY
        if is_initial and group.joined_during_delay and group.delay_left_ms > 0:
            delay_ms = min(self.settings.initial_rebalance_delay_ms, group.delay_left_ms)
            group.joined_during_delay = False
            group.delay_left_ms -= delay_ms
            group.join_phase.start(delay_ms)
            return
        self.complete_join_phase(group)

    def _end_of_sync_phase(self, group: Group) -> None:
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
            return
        late = sorted(group.pending_sync)
        for member_id in late:
            group.remove(member_id)
        self.prepare(group, f"{', '.join(late)} did not ask for an assignment in time")

    def _end_of_session(self, group: Group, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is not None and not member.waits_for_the_group:
            self.remove(group, member_id, "its session timed out")
