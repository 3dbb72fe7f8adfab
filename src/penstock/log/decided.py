"""What compaction knows of transactions: whose records were rolled back, and which markers nothing needs any more.

It is told of every batch in order. A marker is needed while a record of its transaction is in the log, or an emptied
batch that stands for one: without it the transaction would look open for ever, or rolled-back records like good ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from penstock.log.aborted import AbortedTransaction
from penstock.log.batch import BatchHeader


class DecidedTransactions:
    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted: dict[int, deque[AbortedTransaction]] = {}
        self._with_records: set[AbortedTransaction] = set()
        self._committed: set[int] = set()
        """Producers of whom records were met since their last marker."""
        self.forgotten: list[AbortedTransaction] = []
        """Of these, no record is left in the log."""
        for entry in sorted(aborted, key=lambda entry: entry.first_offset):
            self._aborted.setdefault(entry.producer_id, deque()).append(entry)

    def rolls_back(self, header: BatchHeader) -> bool:
        """Whether the records of a data batch were rolled back."""
        if not header.is_transactional:
            return False
        entry = self._entry_at(header)
        if entry is None or entry.first_offset > header.base_offset:
            self._committed.add(header.producer_id)
            return False
        self._with_records.add(entry)
        return True

    def needs(self, header: BatchHeader, *, commits: bool) -> bool:
        """Whether a marker is still needed."""
        needed = header.producer_id in self._committed
        self._committed.discard(header.producer_id)
        entry = None if commits else self._entry_at(header)
        if entry is None or entry.last_offset != header.base_offset:
            return needed
        if entry in self._with_records:
            return True
        self.forgotten.append(entry)
        return False

    def _entry_at(self, header: BatchHeader) -> AbortedTransaction | None:
        """The producer's first transaction that ends at the batch or behind it."""
        entries = self._aborted.get(header.producer_id)
        if not entries:
            return None
        while entries and entries[0].last_offset < header.base_offset:
            entries.popleft()
        return entries[0] if entries else None
