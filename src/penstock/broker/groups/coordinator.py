"""The group coordinator: everything the broker asks about groups and their offsets goes through here."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence

from kio.schema.errors import ErrorCode

from penstock.broker.contracts import Clock, InternalTopic, internal_partition
from penstock.broker.errors import ProtocolError
from penstock.broker.groups.commits import Commits, VerifyTransaction
from penstock.broker.groups.descriptions import GroupDescription, describe
from penstock.broker.groups.group import Group
from penstock.broker.groups.joining import Joining
from penstock.broker.groups.journal import Journal
from penstock.broker.groups.member import Member
from penstock.broker.groups.membership import Membership
from penstock.broker.groups.messages import (
    CommitRequest,
    FetchedOffset,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    LeftMember,
    MemberProtocol,
    SyncAnswer,
    SyncRequest,
)
from penstock.broker.groups.offsets import OffsetStore, TopicPartition
from penstock.broker.groups.rebalances import Rebalances
from penstock.broker.groups.records import CommittedOffset, StoredGroup
from penstock.broker.groups.replay import replay
from penstock.broker.groups.retention import Retention
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.groups.state import GroupState

logger = logging.getLogger(__name__)


class GroupCoordinator:
    """The one coordinator of all groups of this broker.

    It runs on one event loop and holds no locks. What it remembers is what its topic says: `load` builds it, and every
    change takes effect when it is durable, in the order of the log. A request that is cancelled, because its client
    went away, leaves nothing half done.

    `verify_transaction` says whether a producer has a transaction open that includes a partition of the topic; without
    it, every producer is trusted that it has.

    Requests that are refused as a whole raise ProtocolError; joins and syncs carry their error in the answer, because
    other things stand beside it there.
    """

    def __init__(
        self,
        topic: InternalTopic,
        clock: Clock,
        settings: GroupSettings | None = None,
        *,
        verify_transaction: VerifyTransaction = lambda *_: ErrorCode.none,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        settings = settings or GroupSettings()
        self._settings = settings
        self._topic = topic
        self._closed = False
        self._groups: dict[str, Group] = {}
        self._offsets = OffsetStore()
        self._journal = Journal(topic)
        self._rebalances = Rebalances(clock, settings, self._journal)
        self._joining = Joining(self._groups, self._rebalances, settings, new_id)
        self._membership = Membership(self._groups, self._rebalances)
        self._commits = Commits(
            self._groups, self._offsets, self._journal, self._rebalances, clock, settings, verify_transaction
        )
        self._retention = Retention(self._groups, self._offsets, self._commits, self._journal, clock, settings)

    def load(self) -> None:
        """Read the topic. Call it once, on the event loop, before the first request.

        Members of stable groups go on where they were: each has its session timeout, from now on, to send a heartbeat.
        """
        for group_id, stored in replay(self._topic.replay(), self._offsets, self.partition_of).items():
            self._restore(group_id, stored)
        for group_id in self._offsets.groups() - self._groups.keys():
            self._groups[group_id] = self._rebalances.new_group(group_id)
        for group in self._groups.values():
            if len(group.members) > self._settings.max_size:
                self._rebalances.prepare(group, f"it has more than {self._settings.max_size} members")

    async def close(self) -> None:
        """Answer who waits, refuse who comes, and return when what is being written is durable.

        Call it before the connections are cut, so that members whose requests are cancelled then are not taken for
        gone: they are to go on where they were once the broker is back.
        """
        self._closed = True
        for group in self._groups.values():
            group.stop()
            for member in group.members.values():
                member.answer_join(JoinAnswer(error=ErrorCode.not_coordinator, member_id=member.member_id))
                member.answer_sync(SyncAnswer(error=ErrorCode.not_coordinator))
        await self._retention.close()
        await self._journal.close()
        for group in self._groups.values():
            group.stop()

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that keeps the group."""
        return internal_partition(group_id, self._topic.partition_count)

    async def join(self, request: JoinRequest) -> JoinAnswer:
        """Answer when the next generation begins, or at once when there is nothing to wait for."""
        if self._closed:
            return JoinAnswer(error=ErrorCode.coordinator_not_available, member_id=request.member_id)
        return await self._joining.join(request)

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Answer with the member's assignment when the leader's is durable."""
        if self._closed:
            return SyncAnswer(error=ErrorCode.coordinator_not_available)
        return await self._membership.sync(request)

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None = None) -> None:
        self._check_open()
        self._membership.heartbeat(group_id, member_id, generation, instance_id)

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> Sequence[LeftMember]:
        self._check_open()
        return await self._membership.leave(group_id, leaving)

    async def commit(self, request: CommitRequest) -> dict[TopicPartition, ErrorCode]:
        """Store offsets; durable when it returns. The caller has checked that the partitions exist, without awaiting
        anything in between."""
        self._check_open()
        return await self._commits.commit(request)

    async def commit_in_transaction(
        self, producer_id: int, producer_epoch: int, request: CommitRequest, *, transactional_id: str = ""
    ) -> dict[TopicPartition, ErrorCode]:
        """Store offsets that count once `complete_transaction` commits them."""
        self._check_open()
        return await self._commits.commit_in_transaction(transactional_id, producer_id, producer_epoch, request)

    def complete_transaction(self, producer_id: int, commit: bool, partition: int | None = None) -> None:
        """The marker is in partition `partition` of `__consumer_offsets` (None: in all that it touches)."""
        self._commits.complete_transaction(producer_id, commit=commit, partition=partition)

    def open_transactions(self) -> Sequence[int]:
        """The producers whose offsets wait for a marker. One that the transaction coordinator does not know, after a
        restart, never gets one by itself."""
        return self._offsets.open_transactions()

    async def fetch(
        self, group_id: str, partitions: Collection[TopicPartition] | None, *, require_stable: bool = False
    ) -> dict[TopicPartition, FetchedOffset]:
        """The committed offsets of these partitions, or of all (None)."""
        self._check_open()
        return await self._commits.fetch(group_id, partitions, require_stable=require_stable)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        self._check_open()
        return await self._commits.delete(group_id, partitions)

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
        self._check_open()
        return await self._retention.delete(group_ids)

    async def expire(self, now_ms: int) -> int:
        """Drop offsets and groups whose time is over; returns how many offsets. For the broker's housekeeping."""
        return await self._retention.expire(now_ms)

    async def forget_topic(self, name: str) -> None:
        """The topic has been deleted, so no commits to it are accepted any more: drop its offsets."""
        await self._retention.forget_topics(lambda topic: topic == name)

    async def forget_missing_topics(self, exists: Callable[[str], bool]) -> None:
        """Drop the offsets of topics that are not there. Call it after `load`, in case the broker died between the end
        of a topic and `forget_topic`."""
        await self._retention.forget_topics(lambda topic: not exists(topic))

    def list(self) -> Sequence[GroupDescription]:
        return [describe(group) for group in self._groups.values() if group.state is not GroupState.DEAD]

    def describe(self, group_id: str) -> GroupDescription | None:
        group = self._groups.get(group_id)
        return None if group is None or group.state is GroupState.DEAD else describe(group)

    def offsets(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """What the group has committed, with the time of each commit."""
        return self._offsets.of(group_id)

    def _check_open(self) -> None:
        if self._closed:
            raise ProtocolError(ErrorCode.coordinator_not_available)

    def _restore(self, group_id: str, stored: StoredGroup) -> None:
        group = self._groups[group_id] = self._rebalances.new_group(group_id)
        group.stored = True
        group.generation = stored.generation
        group.protocol_name = stored.protocol
        group.protocol_type = stored.protocol_type or None
        for each in stored.members:
            assert stored.protocol is not None
            member = Member(
                member_id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                session_timeout_ms=each.session_timeout_ms,
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                protocols=(MemberProtocol(stored.protocol, each.subscription),),
                session=self._rebalances.session_of(group, each.member_id),
                assignment=each.assignment,
            )
            group.add(member, stored.protocol_type)
            self._rebalances.heard_from(member)
        if group.members:
            group.state = GroupState.STABLE
            group.leader_id = stored.leader
        group.state_since_ms = stored.state_since_ms
        group.learn_subscriptions()
