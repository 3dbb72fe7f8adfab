"""The receipts of what is in the buffer, and what became of each."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Final

from penstock.errors import DeliveryError
from penstock.model import Receipt

logger = logging.getLogger(__name__)

_FAILURES_KEPT: Final = 10_000
"""Failed receipts that are kept until `flush`, which raises those that nobody has looked at; the others are counted."""
_MARK_S: Final = 0.1
"""How finely the age of the oldest record is known."""

_Result = tuple[int, int, DeliveryError | None]


class Ledger:
    """One receipt for each record of this process that is in the buffer.

    `enter` is called by who sends, `settle` by who delivers, for the same record perhaps at the same time and in either
    order. Each first leaves what it has and then looks for what the other has left; taking it away is atomic.
    """

    def __init__(self, first: int, *, has_older: bool) -> None:
        """Records from number `first` on have receipts. Older ones, if there are any, were put by somebody else."""
        self._first = first
        self._receipts: dict[int, Receipt] = {}
        self._early: dict[int, _Result] = {}
        """What became of records whose sender has not entered them yet."""
        self._lock = threading.Lock()
        self._failed: list[Receipt] = []
        self._failed_beyond = 0
        self._next_mark_s = 0.0
        self._marks: deque[tuple[int, float]] = deque([(0, time.monotonic())] if has_older else ())
        """Now and then, the number of a record and when it was put. When older records were put is not known."""

    def __len__(self) -> int:
        return len(self._receipts)

    def enter(self, sequence: int, receipt: Receipt) -> None:
        self._receipts[sequence] = receipt
        if self._early and sequence in self._early:
            self._meet(sequence)

    def mark(self, sequence: int) -> None:
        """Called often by who delivers: the record with this number is yet to be put."""
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
        """Records up to this number are done."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= through + 1:
            marks.popleft()

    def oldest_age_s(self, is_empty: bool) -> float:
        """How long the oldest record in the buffer has been there, to about a second; 0 when there is none.

        For those of an earlier process, as long as this one has had them.
        """
        marks = self._marks
        return max(0.0, time.monotonic() - marks[0][1]) if marks and not is_empty else 0.0

    def drop(self, sequence: int, error: DeliveryError) -> None:
        """It was dropped, as the user wants it when there is no room: no failure to raise later."""
        receipt = self._receipts.get(sequence)
        if receipt is not None:
            receipt.seen = True
        self.settle(sequence, -1, -1, error)

    def fail_all(self, why: str, *, seen: bool) -> int:
        """Nothing that is in the buffer is delivered by this producer. `seen`: it is no failure to raise later.

        Gives how many receipts have failed.
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
        """Raise what nobody has learnt from a receipt yet."""
        with self._lock:
            failed, beyond = self._failed, self._failed_beyond
            self._failed, self._failed_beyond = [], 0
        unseen = [receipt for receipt in failed if not receipt.seen]
        if unseen:
            first, count = unseen[0].error, len(unseen) + beyond
            others = f" ({count - 1} more were not delivered either)" if count > 1 else ""
            raise DeliveryError(f"{first}{others}") from first

    def _meet(self, sequence: int) -> None:
        receipt = self._receipts.pop(sequence, None)
        if receipt is not None:
            self._settle(receipt, *self._early.pop(sequence))

    def _settle(self, receipt: Receipt, partition: int, offset: int, error: DeliveryError | None) -> None:
        if error is not None:
            with self._lock:
                if len(self._failed) < _FAILURES_KEPT:
                    self._failed.append(receipt)
                else:
                    self._failed_beyond += 1
        receipt.settle(partition, offset, error)
