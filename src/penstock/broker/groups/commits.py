"""The offsets of groups: committing, reading, deleting and expiring them, and the groups that have nothing left."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.broker.contracts import Clock
from penstock.broker.errors import ProtocolError
from penstock.broker.groups.group import Group, GroupState
from penstock.broker.groups.journal import Journal, answer_for
from penstock.broker.groups.messages import CommitRequest, FetchedOffset
from penstock.broker.groups.offsets import OffsetStore, TopicPartition
from penstock.broker.groups.rebalances import Rebalances
from penstock.broker.groups.records import CommittedOffset, StoredRecord, group_key, offset_key, offset_value
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.request import Steps, run_in_slices
from penstock.broker.stored_fields import LONGEST_STRING_BYTES

logger = logging.getLogger(__name__)

_NO_OFFSET: Final = FetchedOffset()
_RECORDS_PER_WRITE: Final = 1_000

VerifyTransaction = Callable[[str, int, int, int], ErrorCode]
"""Whether a transaction is open that includes a partition of `__consumer_offsets`: transactional id, producer id,
epoch, partition. Offsets outside of one would wait for a marker that never comes."""


@dataclass(slots=True, eq=False)
class Commits:
    groups: MutableMapping[str, Group]
    offsets: OffsetStore
    journal: Journal
    rebalances: Rebalances
    clock: Clock
    settings: GroupSettings
    verify_transaction: VerifyTransaction
    _under_way: Counter[str] = field(default_factory=Counter)
    """By group: commits that are written but not durable yet."""
    _deletions: set[asyncio.Task[None]] = field(default_factory=set)

    async def commit(self, request: CommitRequest) -> dict[TopicPartition, ErrorCode]:
        group = self.groups.get(request.group_id)
        if group is None:
            self._check_group_id(request.group_id)
            if request.generation >= 0:
                missing = ErrorCode.group_id_not_found if request.knows_missing_groups else ErrorCode.illegal_generation
                raise ProtocolError(missing)
        else:
            self._check(group, request, transactional=False)
            member = group.members.get(request.member_id)
            if member is not None:
                self.rebalances.heard_from(member)
        return await self._write(request, producer_id=-1, producer_epoch=-1)

    async def commit_in_transaction(
        self, transactional_id: str, producer_id: int, producer_epoch: int, request: CommitRequest
    ) -> dict[TopicPartition, ErrorCode]:
        if not request.group_id:
            raise ProtocolError(ErrorCode.invalid_group_id)
        if producer_id < 0:
            raise ProtocolError(ErrorCode.invalid_producer_id_mapping)
        partition = self.journal.partition_of(request.group_id)
        refusal = self.verify_transaction(transactional_id, producer_id, producer_epoch, partition)
        if refusal is not ErrorCode.none:
            raise ProtocolError(refusal)
        group = self.groups.get(request.group_id)
        if group is None:
            self._check_group_id(request.group_id)
            if request.generation >= 0:
                raise ProtocolError(ErrorCode.illegal_generation)
        else:
            self._check(group, request, transactional=True)
        return await self._write(request, producer_id=producer_id, producer_epoch=producer_epoch)

    def complete_transaction(self, producer_id: int, *, commit: bool, partition: int | None = None) -> None:

        def complete(completed: int) -> None:
            groups = [
                group
                for group in self.offsets.groups_in_transaction(producer_id)
                if self.journal.partition_of(group) == completed
            ]
            self.offsets.end_transaction(producer_id, commit=commit, groups=groups)

        concerned = {partition} if partition is not None else set(self.journal.busy_partitions())
        if partition is None:
            concerned |= {self.journal.partition_of(group) for group in self.offsets.groups_in_transaction(producer_id)}
        for each in concerned:
            self.journal.after_writes(each, partial(complete, each))

    async def fetch(
        self, group_id: str, partitions: Collection[TopicPartition] | None, *, require_stable: bool
    ) -> dict[TopicPartition, FetchedOffset]:
        if require_stable:
            await self.journal.settled(self.journal.partition_of(group_id))
        group = self.groups.get(group_id)
        is_gone = group is None or group.state is GroupState.DEAD
        if partitions is None:
            partitions = () if is_gone else self.offsets.of(group_id)
        return await run_in_slices(self._fetched(group_id, partitions, is_gone, require_stable))

    def _fetched(
        self, group_id: str, partitions: Collection[TopicPartition], is_gone: bool, require_stable: bool
    ) -> Steps[dict[TopicPartition, FetchedOffset]]:
        answers: dict[TopicPartition, FetchedOffset] = {}
        for where in partitions:
            committed = None if is_gone else self.offsets.get(group_id, where)
            if require_stable and self.offsets.is_pending(group_id, where):
                answers[where] = FetchedOffset(error=ErrorCode.unstable_offset_commit)
            elif committed is None:
                answers[where] = _NO_OFFSET
            else:
                answers[where] = FetchedOffset(committed.offset, committed.leader_epoch, committed.metadata)
            yield
        return answers

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Delete offsets of topics that no member subscribes to."""
        if not group_id:
            raise ProtocolError(ErrorCode.invalid_group_id)
        group = self.groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            raise ProtocolError(ErrorCode.group_id_not_found)
        if group.state is not GroupState.EMPTY and not group.is_consumer_group:
            raise ProtocolError(ErrorCode.non_empty_group)
        answers = {
            where: ErrorCode.group_subscribed_to_topic if group.is_subscribed_to(where[0]) else ErrorCode.none
            for where in partitions
        }
        known = set(self.offsets.partitions_of(group_id))
        doomed = [where for where, error in answers.items() if error is ErrorCode.none and where in known]
        if doomed:
            await self.remove(group_id, doomed)
        return answers

    async def remove(self, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        """Write tombstones for these offsets."""

        def apply() -> None:
            for where in partitions:
                self.offsets.remove(group_id, where)

        records = [(offset_key(group_id, *where), None) for where in partitions]
        try:
            await asyncio.shield(self.journal.write(self.journal.partition_of(group_id), records, apply=apply))
        except Exception as error:
            raise ProtocolError(answer_for(error), str(error)) from error

    async def expire(self, now_ms: int) -> int:
        """Expire offsets for `GroupCoordinator.expire`. What cannot be written now is left for the next time."""
        dropped = 0
        for group in list(self.groups.values()):
            try:
                while self.groups.get(group.group_id) is group and not self._is_in_use(group):
                    expired = self._expired(group, now_ms)
                    if self._has_no_more_than(group, expired):
                        await self._delete_group(group)
                    elif expired:
                        await self.remove(group.group_id, expired[:_RECORDS_PER_WRITE])
                    else:
                        break
                    dropped += len(expired[:_RECORDS_PER_WRITE])
            except ProtocolError as error:
                logger.warning("The expired offsets of group %s could not be dropped: %s", group.group_id, error)
        return dropped

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
        answers: dict[str, ErrorCode] = {}
        for group_id in dict.fromkeys(group_ids):
            group = self.groups.get(group_id)
            if group is None or group.state is GroupState.DEAD:
                answers[group_id] = ErrorCode.group_id_not_found
            elif group.state is not GroupState.EMPTY:
                answers[group_id] = ErrorCode.non_empty_group
            else:
                try:
                    await self._delete_group(group)
                    answers[group_id] = ErrorCode.none
                except ProtocolError as error:
                    answers[group_id] = error.code
        return answers

    async def forget_topic(self, name: str) -> None:
        """Drop the offsets of a deleted topic, so that a new topic of that name is not read from the old offsets.

        Commits that were running when the topic was deleted are waited for and dropped as well; the caller makes sure
        that no new ones come.
        """
        for partition in self.journal.busy_partitions():
            await self.journal.settled(partition)
        by_group: dict[str, list[TopicPartition]] = defaultdict(list)
        for group_id, where in self.offsets.partitions_of_topic(name):
            by_group[group_id].append(where)
        for group_id, partitions in by_group.items():
            for some in _in_parts(partitions):
                await self.remove(group_id, some)

    async def close(self) -> None:
        while self._deletions:
            await asyncio.wait(self._deletions)

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
        longest = self.settings.offset_metadata_max_length
        answers = {
            each.where: ErrorCode.offset_metadata_too_large if len(each.metadata or "") > longest else ErrorCode.none
            for each in request.offsets
        }
        now_ms = self.clock.wall_ms()
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
        write = self.journal.write(
            self.journal.partition_of(group_id),
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
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = self.rebalances.new_group(group_id)
        for where, committed in accepted.items():
            if producer_id < 0:
                self.offsets.commit(group_id, where, committed)
            else:
                self.offsets.commit_pending(producer_id, group_id, where, committed)

    def _is_in_use(self, group: Group) -> bool:
        """Whether a member is about to join, or commits are being written. A tombstone written after such a commit
        would delete an offset that it has not seen."""
        return group.state is GroupState.DEAD or bool(group.pending_members) or self._under_way[group.group_id] > 0

    def _expired(self, group: Group, now_ms: int) -> list[TopicPartition]:
        offsets = self.offsets.of(group.group_id)
        return [where for where, committed in offsets.items() if self._over(group, where, committed, now_ms)]

    def _has_no_more_than(self, group: Group, expired: Sequence[TopicPartition]) -> bool:
        """Whether an empty group has nothing left, not even offsets that wait for a transaction."""
        return group.state is GroupState.EMPTY and len(expired) == len(self.offsets.partitions_of(group.group_id))

    def _over(self, group: Group, where: TopicPartition, committed: CommittedOffset, now_ms: int) -> bool:
        if group.is_subscribed_to(where[0]) or self.offsets.is_pending(group.group_id, where):
            return False
        since_ms = self._unused_since_ms(group, committed)
        if since_ms is None:
            return False
        if committed.expires_at_ms is not None:
            return now_ms >= committed.expires_at_ms
        return now_ms - since_ms >= self.settings.offsets_retention_minutes * 60_000

    def _unused_since_ms(self, group: Group, committed: CommittedOffset) -> int | None:
        """From when on the offset's retention counts; None while it does not."""
        if group.protocol_type is None:
            return committed.committed_at_ms
        if group.state is GroupState.EMPTY:
            return committed.committed_at_ms if group.state_since_ms is None else group.state_since_ms
        if group.state is GroupState.STABLE and group.is_consumer_group and group.subscribed is not None:
            return committed.committed_at_ms
        return None

    async def _delete_group(self, group: Group) -> None:
        """Delete an empty group and all its offsets. Meanwhile the group is Dead, so nothing joins it or commits to it;
        earlier commits are waited for, so that their offsets are deleted, too."""
        since_ms = group.state_since_ms
        group.enter(GroupState.DEAD, self.clock.wall_ms())
        deletion = asyncio.get_running_loop().create_task(self._write_deletion(group, since_ms))
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)
        await asyncio.shield(deletion)

    async def _write_deletion(self, group: Group, since_ms: int | None) -> None:
        partition = self.journal.partition_of(group.group_id)
        try:
            await self.journal.settled(partition)
            partitions = self.offsets.partitions_of(group.group_id)
            *earlier, last = [*_in_parts(partitions)] or [[]]
            for some in earlier:
                await self.remove(group.group_id, some)
            records: list[StoredRecord] = [(offset_key(group.group_id, *where), None) for where in last]
            if group.stored or records:
                records.append((group_key(group.group_id), None))
            if not records:
                self._forget(group, last)
                return
            await asyncio.shield(self.journal.write(partition, records, apply=lambda: self._forget(group, last)))
        except Exception as error:
            group.enter(GroupState.EMPTY, since_ms)
            if isinstance(error, ProtocolError):
                raise
            raise ProtocolError(answer_for(error), str(error)) from error

    def _forget(self, group: Group, last: Sequence[TopicPartition]) -> None:
        for where in last:
            self.offsets.remove(group.group_id, where)
        group.stop()
        del self.groups[group.group_id]
        logger.info("Group %s has been deleted", group.group_id)


def _in_parts(partitions: Sequence[TopicPartition]) -> list[Sequence[TopicPartition]]:
    return [partitions[start : start + _RECORDS_PER_WRITE] for start in range(0, len(partitions), _RECORDS_PER_WRITE)]
