"""The group coordinator: the entry point for everything about groups and their offsets."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from kio.schema.errors import ErrorCode

from penstock.broker.contracts import Clock, InternalTopic, StoredBatch
from penstock.broker.errors import ProtocolError
from penstock.broker.groups.commits import Commits, VerifyTransaction
from penstock.broker.groups.group import Group, GroupState, Member
from penstock.broker.groups.journal import Journal
from penstock.broker.groups.members import Members
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
from penstock.broker.groups.records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    StoredGroup,
    UnknownKey,
    read_group_value,
    read_key,
    read_offset_value,
)
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.stored_fields import DamagedRecordError

logger = logging.getLogger(__name__)


class GroupCoordinator:
    """The coordinator of all groups of this broker.

    It runs on one event loop and holds no locks. Its state is that of its topic: `load` builds it, and every change
    takes effect when it is durable, in the order of the log. A request that is cancelled because its client
    disconnected leaves nothing half done.

    `verify_transaction` says whether a producer has an open transaction that includes a partition of the topic; without
    it, every producer is trusted.

    Requests that are refused as a whole raise ProtocolError; joins and syncs carry their error in the answer, beside
    other fields.
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
        self._members = Members(self._groups, self._rebalances, settings, new_id)
        self._commits = Commits(
            self._groups, self._offsets, self._journal, self._rebalances, clock, settings, verify_transaction
        )

    def load(self) -> None:
        """Read the topic. Call it once, on the event loop, before the first request.

        Members of stable groups continue: each has its session timeout, from now on, to send a heartbeat.
        """
        for group_id, stored in _replay(self._topic.replay(), self._offsets, self._journal.partition_of).items():
            self._restore(group_id, stored)
        for group_id in self._offsets.groups() - self._groups.keys():
            self._groups[group_id] = self._rebalances.new_group(group_id)
        for group in self._groups.values():
            if len(group.members) > self._settings.max_size:
                self._rebalances.prepare(group, f"it has more than {self._settings.max_size} members")

    async def close(self) -> None:
        """Answer waiting requests, refuse new ones, and return when everything is durable.

        Call it before the connections are closed, so that members whose requests are then cancelled do not count as
        gone: they continue when the broker is back.
        """
        self._closed = True
        for group in self._groups.values():
            group.stop()
            for member in group.members.values():
                member.answer_join(JoinAnswer(error=ErrorCode.not_coordinator, member_id=member.member_id))
                member.answer_sync(SyncAnswer(error=ErrorCode.not_coordinator))
        await self._commits.close()
        await self._journal.close()
        for group in self._groups.values():
            group.stop()

    async def join(self, request: JoinRequest) -> JoinAnswer:
        """Answer when the next generation begins, or at once if there is nothing to wait for."""
        if self._closed:
            return JoinAnswer(error=ErrorCode.coordinator_not_available, member_id=request.member_id)
        return await self._members.join(request)

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Answer with the member's assignment once the leader's is durable."""
        if self._closed:
            return SyncAnswer(error=ErrorCode.coordinator_not_available)
        return await self._members.sync(request)

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None = None) -> None:
        self._check_open()
        self._members.heartbeat(group_id, member_id, generation, instance_id)

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> Sequence[LeftMember]:
        self._check_open()
        return await self._members.leave(group_id, leaving)

    async def commit(self, request: CommitRequest) -> dict[TopicPartition, ErrorCode]:
        """Store offsets; durable when it returns. The caller has checked that the partitions exist, with no await in
        between."""
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
        """The producers whose offsets wait for a marker. If the transaction coordinator does not know one after a
        restart, no marker will come."""
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
        return await self._commits.delete_offsets(group_id, partitions)

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
        self._check_open()
        return await self._commits.delete_groups(group_ids)

    async def expire(self, now_ms: int) -> int:
        """Drop expired offsets and groups; returns how many offsets. For the broker's housekeeping."""
        return await self._commits.expire(now_ms)

    async def forget_topic(self, name: str) -> None:
        """Drop the offsets of a deleted topic; no more commits to it are accepted."""
        await self._commits.forget_topic(name)

    def topics(self) -> set[str]:
        return self._offsets.topics()

    def list(self) -> Sequence[Group]:
        return [group for group in self._groups.values() if group.state is not GroupState.DEAD]

    def describe(self, group_id: str) -> Group | None:
        group = self._groups.get(group_id)
        return None if group is None or group.state is GroupState.DEAD else group

    def offsets(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
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


def _replay(
    batches: Iterable[StoredBatch], offsets: OffsetStore, partition_of: Callable[[str], int]
) -> dict[str, StoredGroup]:
    """Fill `offsets` and return the groups in the topic. A record that is damaged, or of an unknown type, is logged
    with its position and skipped: the earlier value stays, which for an offset means that records are read again."""
    groups: dict[str, StoredGroup] = {}
    keys: dict[bytes, OffsetKey | GroupKey | UnknownKey] = {}
    for batch in batches:
        if batch.control is not None:
            here = batch.partition
            concerned = {
                group for group in offsets.groups_in_transaction(batch.producer_id) if partition_of(group) == here
            }
            offsets.end_transaction(batch.producer_id, commit=batch.control == "commit", groups=concerned)
            continue
        for position, (key, value) in enumerate(batch.records):
            try:
                what = keys.get(key) or keys.setdefault(key, read_key(key))
                _replay_record(batch, what, value, offsets, groups)
            except DamagedRecordError as error:
                logger.warning(
                    "Skipped record %d of the batch at offset %d in partition %d of the group topic: it is damaged: %s",
                    position,
                    batch.base_offset,
                    batch.partition,
                    error,
                )
    return groups


def _replay_record(
    batch: StoredBatch,
    what: OffsetKey | GroupKey | UnknownKey,
    value: bytes | None,
    offsets: OffsetStore,
    groups: dict[str, StoredGroup],
) -> None:
    match what:
        case OffsetKey(group, topic, partition):
            if value is None:
                offsets.remove(group, (topic, partition))
            elif batch.transactional:
                offsets.commit_pending(batch.producer_id, group, (topic, partition), read_offset_value(value))
            else:
                offsets.commit(group, (topic, partition), read_offset_value(value))
        case GroupKey(group):
            if value is None:
                groups.pop(group, None)
            else:
                groups[group] = read_group_value(value)
        case UnknownKey(version):
            logger.warning(
                "Skipped a record in the batch at offset %d in partition %d of the group topic: it is of kind %d (%s)",
                batch.base_offset,
                batch.partition,
                version,
                what.name,
            )
