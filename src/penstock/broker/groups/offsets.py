"""Committed offsets, and those that wait for the end of a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.broker.groups.records import CommittedOffset

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Kept:
    committed: CommittedOffset
    sequence: int
    """Grows with every change, in the order of the log."""


_GroupOffsets = dict[TopicPartition, _Kept]


class OffsetStore:
    """The offsets in the records of `__consumer_offsets`. Changes come in the order of the log."""

    __slots__ = ("_committed", "_pending", "_sequence")

    def __init__(self) -> None:
        self._committed: dict[str, _GroupOffsets] = {}
        self._pending: dict[int, dict[str, _GroupOffsets]] = {}
        self._sequence = 0

    def commit(self, group: str, where: TopicPartition, committed: CommittedOffset) -> None:
        self._committed.setdefault(group, {})[where] = self._keep(committed)

    def commit_pending(self, producer_id: int, group: str, where: TopicPartition, committed: CommittedOffset) -> None:
        """Hold an offset back until `end_transaction` of this producer."""
        self._pending.setdefault(producer_id, {}).setdefault(group, {})[where] = self._keep(committed)

    def end_transaction(self, producer_id: int, *, commit: bool, groups: Iterable[str]) -> None:
        """Commit or drop the pending offsets of these groups.

        An offset that was committed outside the transaction after the transaction's own stays: it is the later one, and
        after compaction it may be the only one of the two in the log.
        """
        by_group = self._pending.get(producer_id, {})
        for group in groups:
            pending = by_group.pop(group, {})
            if not commit:
                continue
            committed = self._committed.setdefault(group, {})
            for where, kept in pending.items():
                existing = committed.get(where)
                if existing is None or existing.sequence < kept.sequence:
                    committed[where] = kept
            self._forget_if_empty(group)
        if not by_group:
            self._pending.pop(producer_id, None)

    def remove(self, group: str, where: TopicPartition) -> None:
        """Drop a committed offset, and the pending offsets of open transactions for it."""
        self._committed.get(group, {}).pop(where, None)
        self._forget_if_empty(group)
        for producer_id, by_group in list(self._pending.items()):
            pending = by_group.get(group)
            if pending is None or pending.pop(where, None) is None:
                continue
            if not pending:
                del by_group[group]
            if not by_group:
                del self._pending[producer_id]

    def of(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        return {where: kept.committed for where, kept in self._committed.get(group, {}).items()}

    def get(self, group: str, where: TopicPartition) -> CommittedOffset | None:
        kept = self._committed.get(group, {}).get(where)
        return None if kept is None else kept.committed

    def is_pending(self, group: str, where: TopicPartition) -> bool:
        return any(where in by_group.get(group, ()) for by_group in self._pending.values())

    def open_transactions(self) -> list[int]:
        return list(self._pending)

    def groups_in_transaction(self, producer_id: int) -> list[str]:
        return list(self._pending.get(producer_id, ()))

    def groups(self) -> set[str]:
        pending = (group for by_group in self._pending.values() for group in by_group)
        return {*self._committed, *pending}

    def partitions_of(self, group: str) -> list[TopicPartition]:
        found = dict.fromkeys(self._committed.get(group, ()))
        for by_group in self._pending.values():
            found.update(dict.fromkeys(by_group.get(group, ())))
        return list(found)

    def topics(self) -> set[str]:
        return {topic for group in self.groups() for topic, _ in self.partitions_of(group)}

    def partitions_of_topic(self, name: str) -> Iterable[tuple[str, TopicPartition]]:
        return [(group, where) for group in self.groups() for where in self.partitions_of(group) if where[0] == name]

    def _keep(self, committed: CommittedOffset) -> _Kept:
        self._sequence += 1
        return _Kept(committed, self._sequence)

    def _forget_if_empty(self, group: str) -> None:
        if not self._committed.get(group, True):
            del self._committed[group]
