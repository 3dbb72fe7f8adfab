"""Committing, reading and deleting offsets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from functools import partial

from kio.schema.errors import ErrorCode

from penstock.broker.contracts import Clock, internal_partition
from penstock.broker.errors import ProtocolError
from penstock.broker.groups.fields import LONGEST_STRING_BYTES
from penstock.broker.groups.group import Group
from penstock.broker.groups.journal import Journal, answer_for
from penstock.broker.groups.messages import CommitRequest, FetchedOffset, OffsetToCommit
from penstock.broker.groups.offsets import OffsetStore, TopicPartition
from penstock.broker.groups.rebalances import Rebalances
from penstock.broker.groups.records import CommittedOffset, offset_key, offset_value
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.groups.state import GroupState

VerifyTransaction = Callable[[str, int, int, int], ErrorCode]
"""Whether a transaction is open that a partition of `__consumer_offsets` is part of: transactional id, producer id,
epoch, partition. Offsets that were taken outside of one would wait for a marker that never comes."""


class Commits:
    def __init__(
        self,
        groups: MutableMapping[str, Group],
        offsets: OffsetStore,
        journal: Journal,
        rebalances: Rebalances,
        clock: Clock,
        settings: GroupSettings,
        verify_transaction: VerifyTransaction,
    ) -> None:
        self._verify_transaction = verify_transaction
        self._groups = groups
        self._offsets = offsets
        self._journal = journal
        self._rebalances = rebalances
        self._clock = clock
        self._settings = settings
        self._under_way: Counter[str] = Counter()

    def are_under_way(self, group_id: str) -> bool:
        """Whether the group has commits that are written but not durable yet."""
        return self._under_way[group_id] > 0

    async def commit(self, request: CommitRequest) -> dict[TopicPartition, ErrorCode]:
        """Store the offsets, and answer for each partition once they are durable."""
        group = self._groups.get(request.group_id)
        if group is None:
            self._check_group_id(request.group_id)
            if request.generation >= 0:
                missing = ErrorCode.group_id_not_found if request.knows_missing_groups else ErrorCode.illegal_generation
                raise ProtocolError(missing)
        else:
            self._check(group, request, transactional=False)
            member = group.members.get(request.member_id)
            if member is not None:
                self._rebalances.heard_from(member)
        return await self._write(request, producer_id=-1, producer_epoch=-1)

    async def commit_in_transaction(
        self, transactional_id: str, producer_id: int, producer_epoch: int, request: CommitRequest
    ) -> dict[TopicPartition, ErrorCode]:
        """Store the offsets as part of the producer's transaction: they count once that is committed."""
        if not request.group_id:
            raise ProtocolError(ErrorCode.invalid_group_id)
        if producer_id < 0:
            raise ProtocolError(ErrorCode.invalid_producer_id_mapping)
        partition = self._partition_of(request.group_id)
        refusal = self._verify_transaction(transactional_id, producer_id, producer_epoch, partition)
        if refusal is not ErrorCode.none:
            raise ProtocolError(refusal)
        group = self._groups.get(request.group_id)
        if group is None:
            self._check_group_id(request.group_id)
            if request.generation >= 0:
                raise ProtocolError(ErrorCode.illegal_generation)
        else:
            self._check(group, request, transactional=True)
        return await self._write(request, producer_id=producer_id, producer_epoch=producer_epoch)

    def complete_transaction(self, producer_id: int, *, commit: bool, partition: int | None = None) -> None:
        """The marker of the producer's transaction is in the log: its offsets count from now on, or never existed."""

        def complete(completed: int) -> None:
            groups = [
                group
                for group in self._offsets.groups_in_transaction(producer_id)
                if self._partition_of(group) == completed
            ]
            self._offsets.end_transaction(producer_id, commit=commit, groups=groups)

        concerned = {partition} if partition is not None else set(self._journal.busy_partitions())
        if partition is None:
            concerned |= {self._partition_of(group) for group in self._offsets.groups_in_transaction(producer_id)}
        for each in concerned:
            self._journal.after_writes(each, partial(complete, each))

    async def fetch(
        self, group_id: str, partitions: Collection[TopicPartition] | None, *, require_stable: bool
    ) -> dict[TopicPartition, FetchedOffset]:
        """What the group has committed for these partitions, or for all that it has committed anything for."""
        if require_stable:
            await self._journal.settled(self._partition_of(group_id))
        group = self._groups.get(group_id)
        is_gone = group is None or group.state is GroupState.DEAD
        if partitions is None:
            partitions = () if is_gone else self._offsets.of(group_id)
        answers: dict[TopicPartition, FetchedOffset] = {}
        for where in partitions:
            committed = None if is_gone else self._offsets.get(group_id, where)
            if require_stable and self._offsets.is_pending(group_id, where):
                answers[where] = FetchedOffset(error=ErrorCode.unstable_offset_commit)
            elif committed is None:
                answers[where] = FetchedOffset()
            else:
                answers[where] = FetchedOffset(committed.offset, committed.leader_epoch, committed.metadata)
        return answers

    async def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        """Delete offsets of topics that no member subscribes to."""
        if not group_id:
            raise ProtocolError(ErrorCode.invalid_group_id)
        group = self._groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            raise ProtocolError(ErrorCode.group_id_not_found)
        if group.state is not GroupState.EMPTY and not group.is_consumer_group:
            raise ProtocolError(ErrorCode.non_empty_group)
        answers = {
            where: ErrorCode.group_subscribed_to_topic if group.is_subscribed_to(where[0]) else ErrorCode.none
            for where in partitions
        }
        known = set(self._offsets.partitions_of(group_id))
        doomed = [where for where, error in answers.items() if error is ErrorCode.none and where in known]
        if doomed:
            await self.remove(group_id, doomed)
        return answers

    async def remove(self, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        """Write that these offsets are gone."""

        def apply() -> None:
            for where in partitions:
                self._offsets.remove(group_id, where)

        records = [(offset_key(group_id, *where), None) for where in partitions]
        try:
            await asyncio.shield(self._journal.write(self._partition_of(group_id), records, apply=apply))
        except Exception as error:
            raise ProtocolError(answer_for(error), str(error)) from error

    def _check(self, group: Group, request: CommitRequest, *, transactional: bool) -> None:
        if group.state is GroupState.DEAD:
            raise ProtocolError(ErrorCode.coordinator_not_available)
        if request.generation < 0 and group.state is GroupState.EMPTY:
            return
        if request.generation >= 0 or request.member_id or request.instance_id is not None:
            group.check_member(request.member_id, request.instance_id)
            if request.generation != group.generation:
                raise ProtocolError(ErrorCode.illegal_generation)
        elif not transactional:
            raise ProtocolError(ErrorCode.unknown_member_id)
        if not transactional and group.state is GroupState.COMPLETING_REBALANCE:
            raise ProtocolError(ErrorCode.rebalance_in_progress)

    def _check_group_id(self, group_id: str) -> None:
        if len(group_id.encode()) > LONGEST_STRING_BYTES:
            raise ProtocolError(ErrorCode.invalid_group_id)

    async def _write(
        self, request: CommitRequest, *, producer_id: int, producer_epoch: int
    ) -> dict[TopicPartition, ErrorCode]:
        answers = {offset.where: self._refusal(offset) for offset in request.offsets}
        now_ms = self._clock.wall_ms()
        expires_at_ms = None if request.retention_ms is None else now_ms + request.retention_ms
        accepted = {
            offset.where: CommittedOffset(
                offset.offset, offset.leader_epoch, offset.metadata or "", now_ms, expires_at_ms
            )
            for offset in request.offsets
            if answers[offset.where] is ErrorCode.none
        }
        if not accepted:
            return answers
        group_id = request.group_id

        def finish(_error: BaseException | None = None) -> None:
            self._under_way[group_id] -= 1
            if not self._under_way[group_id]:
                del self._under_way[group_id]

        def apply() -> None:
            finish()
            self._remember(group_id, producer_id, accepted)

        self._under_way[group_id] += 1
        write = self._journal.write(
            self._partition_of(group_id),
            [(offset_key(group_id, *where), offset_value(committed)) for where, committed in accepted.items()],
            apply=apply,
            fail=finish,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        try:
            await asyncio.shield(write)
        except Exception as error:
            return {
                where: answer_for(error) if answer is ErrorCode.none else answer for where, answer in answers.items()
            }
        return answers

    def _remember(self, group_id: str, producer_id: int, accepted: Mapping[TopicPartition, CommittedOffset]) -> None:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = self._rebalances.new_group(group_id)
        for where, committed in accepted.items():
            if producer_id < 0:
                self._offsets.commit(group_id, where, committed)
            else:
                self._offsets.commit_pending(producer_id, group_id, where, committed)

    def _refusal(self, offset: OffsetToCommit) -> ErrorCode:
        if len(offset.metadata or "") > self._settings.offset_metadata_max_length:
            return ErrorCode.offset_metadata_too_large
        return ErrorCode.none

    def _partition_of(self, group_id: str) -> int:
        return internal_partition(group_id, self._journal.topic.partition_count)
