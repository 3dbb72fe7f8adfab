"""The end of offsets and groups: by age, with their topic, or because somebody deletes them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, MutableMapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.broker.contracts import Clock, internal_partition
from penstock.broker.errors import ProtocolError
from penstock.broker.groups.commits import Commits
from penstock.broker.groups.group import Group
from penstock.broker.groups.journal import Journal, answer_for
from penstock.broker.groups.offsets import OffsetStore, TopicPartition
from penstock.broker.groups.records import CommittedOffset, StoredRecord, group_key, offset_key
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.groups.state import GroupState

logger = logging.getLogger(__name__)

_RECORDS_PER_WRITE: Final = 1_000


class Retention:
    def __init__(
        self,
        groups: MutableMapping[str, Group],
        offsets: OffsetStore,
        commits: Commits,
        journal: Journal,
        clock: Clock,
        settings: GroupSettings,
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._commits = commits
        self._journal = journal
        self._clock = clock
        self._settings = settings
        self._burials: set[asyncio.Task[None]] = set()

    async def expire(self, now_ms: int) -> int:
        """Drop the offsets whose time is over, and the groups that have neither members nor offsets left.

        Returns how many offsets were dropped. What cannot be written now is left for the next time.
        """
        dropped = 0
        for group in list(self._groups.values()):
            try:
                while self._groups.get(group.group_id) is group and not self._is_in_use(group):
                    expired = self._expired(group, now_ms)
                    if self._has_no_more_than(group, expired):
                        await self._bury(group)
                    elif expired:
                        await self._commits.remove(group.group_id, expired[:_RECORDS_PER_WRITE])
                    else:
                        break
                    dropped += len(expired[:_RECORDS_PER_WRITE])
            except ProtocolError as error:
                logger.warning("The expired offsets of group %s could not be dropped: %s", group.group_id, error)
        return dropped

    async def delete(self, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
        """Delete groups that have no members, with all their offsets."""
        answers: dict[str, ErrorCode] = {}
        for group_id in dict.fromkeys(group_ids):
            group = self._groups.get(group_id)
            if group is None or group.state is GroupState.DEAD:
                answers[group_id] = ErrorCode.group_id_not_found
            elif group.state is not GroupState.EMPTY:
                answers[group_id] = ErrorCode.non_empty_group
            else:
                try:
                    await self._bury(group)
                    answers[group_id] = ErrorCode.none
                except ProtocolError as error:
                    answers[group_id] = error.code
        return answers

    async def forget_topics(self, gone: Callable[[str], bool]) -> None:
        """Drop the offsets of topics that no longer exist, lest a new topic of that name is read from the old place.

        Commits that were under way when the topic was deleted are waited for and dropped as well; the caller sees to
        it that no new ones come.
        """
        for partition in self._journal.busy_partitions():
            await self._journal.settled(partition)
        by_group: dict[str, list[TopicPartition]] = defaultdict(list)
        for group_id, where in self._offsets.partitions_of_topics(gone):
            by_group[group_id].append(where)
        for group_id, partitions in by_group.items():
            for some in _in_parts(partitions):
                await self._commits.remove(group_id, some)

    async def close(self) -> None:
        """Wait for the deletions that are under way."""
        while self._burials:
            await asyncio.wait(self._burials)

    def _is_in_use(self, group: Group) -> bool:
        """Whether now is no time to look: somebody is about to join, or commits are on their way to the log.

        A tombstone that is written behind such a commit would take back what it has not seen.
        """
        return (
            group.state is GroupState.DEAD or bool(group.pending_members) or self._commits.are_under_way(group.group_id)
        )

    def _expired(self, group: Group, now_ms: int) -> list[TopicPartition]:
        offsets = self._offsets.of(group.group_id)
        return [where for where, committed in offsets.items() if self._over(group, where, committed, now_ms)]

    def _has_no_more_than(self, group: Group, expired: Sequence[TopicPartition]) -> bool:
        """Whether an empty group would have nothing left, not even offsets that wait for a transaction."""
        return group.state is GroupState.EMPTY and len(expired) == len(self._offsets.partitions_of(group.group_id))

    def _over(self, group: Group, where: TopicPartition, committed: CommittedOffset, now_ms: int) -> bool:
        if group.is_subscribed_to(where[0]) or self._offsets.is_pending(group.group_id, where):
            return False
        since_ms = self._unused_since_ms(group, committed)
        if since_ms is None:
            return False
        if committed.expires_at_ms is not None:
            return now_ms >= committed.expires_at_ms
        return now_ms - since_ms >= self._settings.offsets_retention_minutes * 60_000

    def _unused_since_ms(self, group: Group, committed: CommittedOffset) -> int | None:
        """From when on the offset's retention counts; None while it does not."""
        if group.protocol_type is None:
            return committed.committed_at_ms
        if group.state is GroupState.EMPTY:
            return committed.committed_at_ms if group.state_since_ms is None else group.state_since_ms
        if group.state is GroupState.STABLE and group.is_consumer_group and group.subscribed is not None:
            return committed.committed_at_ms
        return None

    async def _bury(self, group: Group) -> None:
        """Write the end of an empty group and all its offsets.

        While that is under way the group is Dead, so nobody joins it or commits to it; commits that came before are
        waited for, so that their offsets are deleted too.
        """
        since_ms = group.state_since_ms
        group.enter(GroupState.DEAD, self._clock.wall_ms())
        burial = asyncio.get_running_loop().create_task(self._write_the_end(group, since_ms))
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)
        await asyncio.shield(burial)

    async def _write_the_end(self, group: Group, since_ms: int | None) -> None:
        partition = internal_partition(group.group_id, self._journal.topic.partition_count)
        try:
            await self._journal.settled(partition)
            partitions = self._offsets.partitions_of(group.group_id)
            *earlier, last = [*_in_parts(partitions)] or [[]]
            for some in earlier:
                await self._commits.remove(group.group_id, some)
            records: list[StoredRecord] = [(offset_key(group.group_id, *where), None) for where in last]
            if group.stored or records:
                records.append((group_key(group.group_id), None))
            if not records:
                self._forget(group, last)
                return
            await asyncio.shield(self._journal.write(partition, records, apply=lambda: self._forget(group, last)))
        except Exception as error:
            group.enter(GroupState.EMPTY, since_ms)
            if isinstance(error, ProtocolError):
                raise
            raise ProtocolError(answer_for(error), str(error)) from error

    def _forget(self, group: Group, last: Sequence[TopicPartition]) -> None:
        for where in last:
            self._offsets.remove(group.group_id, where)
        group.stop()
        del self._groups[group.group_id]
        logger.info("Group %s has been deleted", group.group_id)


def _in_parts(partitions: Sequence[TopicPartition]) -> list[Sequence[TopicPartition]]:
    return [partitions[start : start + _RECORDS_PER_WRITE] for start in range(0, len(partitions), _RECORDS_PER_WRITE)]
