"""The receipts of buffered records, and the outcome of each."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Final

from penstock.errors import DeliveryError
from penstock.model import Receipt
from penstock.streams.sending import UnseenFailures

logger = logging.getLogger(__name__)

_MARK_S: Final = 0.1
"""The resolution of the oldest record's age."""

_Result = tuple[int, int, DeliveryError | None]


class PendingReceipts:
    """One receipt for each record of this process in the buffer.

    `enter` is called by the sending thread, `settle` by the delivering one, for the same record possibly at the same
    time and in either order. Each first stores its part and then looks for the other's; removing it is atomic.
    """

    def __init__(self, first: int, *, has_older: bool) -> None:
        """Records from number `first` on have receipts. Older ones, if any, come from an earlier process."""
        self._first = first
        self._receipts: dict[int, Receipt] = {}
        self._early: dict[int, _Result] = {}
        """Outcomes of records that the sending thread has not entered yet."""
        self._failures = UnseenFailures()
        self._next_mark_s = 0.0
        self._marks: deque[tuple[int, float]] = deque([(0, time.monotonic())] if has_older else ())
        """Samples of a record number and when it was put. It is unknown when older records were put."""

    def __len__(self) -> int:
        return len(self._receipts)

    def enter(self, sequence: int, receipt: Receipt) -> None:
        self._receipts[sequence] = receipt
        if self._early and sequence in self._early:
            self._meet(sequence)

    def mark(self, sequence: int) -> None:
        """Sample the time: the record with this number is put next. Called often by the delivering thread."""
        now_s = time.monotonic()
        if self._marks and self._marks[-1][0] == sequence:
            self._marks[-1] = (sequence, now_s)
        elif now_s >= self._next_mark_s:
            self._next_mark_s = now_s + _MARK_S
            self._marks.append((sequence, now_s))

    def settle(self, sequence: int, partition: int, offset: int, error: DeliveryError | None = None) -> None:
        receipt = self._receipts.pop(sequence, None)
        if receipt is None:
            if sequence >= self._first:
                self._early[sequence] = (partition, offset, error)
                if sequence in self._receipts:
                    self._meet(sequence)
        elif error is None:
            receipt.settle(partition, offset)
        else:
            self._settle(receipt, partition, offset, error)

    def committed(self, through: int) -> None:
        """Forget records up to this number: they are done."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= through + 1:
            marks.popleft()

    def oldest_age_s(self, is_empty: bool) -> float:
        """The age of the oldest buffered record, to about a second; 0 if there is none.

        Records of an earlier process count from the start of this one.
        """
        marks = self._marks
        return max(0.0, time.monotonic() - marks[0][1]) if marks and not is_empty else 0.0

    def drop(self, sequence: int, error: DeliveryError) -> None:
        """Fail the receipt of a dropped record. It is not raised later: the user chose to drop."""
        receipt = self._receipts.get(sequence)
        if receipt is not None:
            receipt.seen = True
        self.settle(sequence, -1, -1, error)

    def fail_all(self, why: str, *, seen: bool) -> int:
        """Fail every receipt: this producer will not deliver its record. With `seen`, nothing is raised later.

        Returns how many receipts failed.
        """
        count = 0
        for sequence in list(self._receipts):
            receipt = self._receipts.pop(sequence, None)
            if receipt is not None:
                receipt.seen = seen
                self._settle(receipt, -1, -1, DeliveryError(f"a record for topic {receipt.topic!r} {why}"))
                count += 1
        return count

    def raise_failures(self) -> None:
        """Raise failures that were not seen on a receipt."""
        self._failures.raise_first()

    def _meet(self, sequence: int) -> None:
        receipt = self._receipts.pop(sequence, None)
        if receipt is not None:
            self._settle(receipt, *self._early.pop(sequence))

    def _settle(self, receipt: Receipt, partition: int, offset: int, error: DeliveryError | None) -> None:
        if error is not None:
            self._failures.add(receipt)
        receipt.settle(partition, offset, error)
