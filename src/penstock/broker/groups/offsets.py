"""The offsets that groups have committed, and those that wait for the end of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    """What the records of `__consumer_offsets` say about offsets. Changes come in the order of the log."""

    __slots__ = ("_committed", "_pending", "_sequence")

    def __init__(self) -> None:
        self._committed: dict[str, _GroupOffsets] = {}
        self._pending: dict[int, dict[str, _GroupOffsets]] = {}
        self._sequence = 0

    def commit(self, group: str, where: TopicPartition, committed: CommittedOffset) -> None:
        self._committed.setdefault(group, {})[where] = self._keep(committed)

    def commit_pending(self, producer_id: int, group: str, where: TopicPartition, committed: CommittedOffset) -> None:
        """Keep an offset back until `end_transaction` of this producer."""
        self._pending.setdefault(producer_id, {}).setdefault(group, {})[where] = self._keep(committed)

    def end_transaction(self, producer_id: int, *, commit: bool, groups: Iterable[str]) -> None:
        """Let the pending offsets of these groups count, or drop them.

        An offset that was committed outside the transaction after the transaction's own stays: it is the later one,
        and after compaction it may be the only one of the two that is left in the log.
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
        """Drop a committed offset, and what open transactions would put in its place."""
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

    def has_open_transaction(self, group: str) -> bool:
        return any(group in by_group for by_group in self._pending.values())

    def open_transactions(self) -> list[int]:
        """The producers with offsets that wait for a marker."""
        return list(self._pending)

    def groups_in_transaction(self, producer_id: int) -> list[str]:
        return list(self._pending.get(producer_id, ()))

    def groups(self) -> set[str]:
        """Every group that has an offset, be it committed or pending."""
        pending = (group for by_group in self._pending.values() for group in by_group)
        return {*self._committed, *pending}

    def partitions_of(self, group: str) -> list[TopicPartition]:
        """Every partition for which the group has an offset, be it committed or pending."""
        found = dict.fromkeys(self._committed.get(group, ()))
        for by_group in self._pending.values():
            found.update(dict.fromkeys(by_group.get(group, ())))
        return list(found)

    def partitions_of_topics(self, missing: Callable[[str], bool]) -> Iterable[tuple[str, TopicPartition]]:
        """Every offset, with its group, of the topics for which `missing` is true."""
        return [(group, where) for group in self.groups() for where in self.partitions_of(group) if missing(where[0])]

    def _keep(self, committed: CommittedOffset) -> _Kept:
        self._sequence += 1
        return _Kept(committed, self._sequence)

    def _forget_if_empty(self, group: str) -> None:
        if not self._committed.get(group, True):
            del self._committed[group]
