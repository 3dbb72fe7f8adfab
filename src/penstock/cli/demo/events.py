"""The events of the demo, their topics, and where they come from: chance with a seed."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.serde import Topic

WINDOW_S: Final = 10
GRACE_S: Final = 5
"""How much later than its successors a page event may come and still be counted in its window."""
LARGE_CENTS: Final = 100_000
"""Payments from here on are passed on by the query in real-time mode."""
CLOSING: Final = -1
"""The number of the page event that moves time on when all others were read, so that their windows are final."""
MALFORMED_HEADER: Final = "malformed"
"""Carries the number of a malformed row: what is left to tell it by."""

PAGES: Final = ("/", "/search", "/product", "/basket", "/checkout", "/help")
_CARDS: Final = 400
_SHARE_OF_TRANSACTIONS: Final = 0.5
_SHARE_MALFORMED: Final = 0.01


@dataclass(slots=True)
class Transaction:
    """A payment with a card."""

    number: int
    card: str
    cents: int
    country: str


@dataclass(slots=True)
class Verdict:
    """What the analysers say about a transaction, and how long that took."""

    transaction: int
    suspicion: float
    label: str
    """complete or partial"""
    missing: list[str]
    """The analysers that had not answered when time was up."""
    took_ms: float
    appended_ms: int
    """When the log took the transaction, by the log's clock."""
    consumer: str


@dataclass(slots=True)
class LateAnswer:
    """What an analyser said after the verdict had left without it."""

    transaction: int
    analyser: str
    suspicion: float
    late_by_ms: float


@dataclass(slots=True)
class PageEvent:
    """Somebody looked at a page."""

    number: int
    page: str
    visitor: str
    at: datetime.datetime


def card_of(transaction: Transaction) -> str:
    return transaction.card


def transaction_of(result: Verdict | LateAnswer) -> str:
    return str(result.transaction)


def visitor_of(event: PageEvent) -> str:
    return event.visitor


TRANSACTIONS: Final = Topic("transactions", Transaction, key=card_of, partitions=4)
VERDICTS: Final = Topic("verdicts", Verdict, key=transaction_of, partitions=2)
LATE_ANSWERS: Final = Topic("late-answers", LateAnswer, key=transaction_of, partitions=1)
PAGE_EVENTS: Final = Topic("page-events", PageEvent, key=visitor_of, partitions=2)
LETTERS: Final = "transactions.dlq"
PAGE_USE: Final = "page-use"
"""What the pipeline on Spark makes of page events."""
PAGE_EVENTS_LATE: Final = "page-events.late"
LARGE_PAYMENTS: Final = "large-payments"
"""What the query in real-time mode passes on."""

FRAUD_GROUP: Final = "fraud"
USE_GROUP: Final = "page-counts"
USE_TABLE: Final = "page_use"
"""The table, beside the checkpoints, that the consumers count page events in."""


@dataclass(frozen=True, slots=True)
class MalformedRow:
    """Bytes on the topic of transactions that are none."""

    number: int
    card: str
    data: bytes


Event = Transaction | MalformedRow | PageEvent


def _cut_short(number: int) -> bytes:
    return b'{"number": %d, "card": "card-1' % number


def _wrong_type(number: int) -> bytes:
    return b'{"number": %d, "card": "card-1", "cents": "a lot", "country": "home"}' % number


def _not_all_there(number: int) -> bytes:
    return b'{"number": %d}' % number


def _noise(number: int) -> bytes:
    return b"\xff\xfe\x00" + number.to_bytes(8)


_MALFORMED: Final[tuple[Callable[[int], bytes], ...]] = (_cut_short, _wrong_type, _not_all_there, _noise)


class Chance:
    """One event after the other. The same seed gives the same, but for the times of page events."""

    def __init__(self, seed: int, first: int = 0) -> None:
        """`first` is where the numbers of events of each kind begin."""
        self._random = random.Random(seed)
        self._transactions = self._malformed = self._pages = first

    def next_event(self, now: datetime.datetime) -> Event:
        chance = self._random
        if chance.random() >= _SHARE_OF_TRANSACTIONS:
            self._pages += 1
            page = chance.choices(PAGES, weights=(30, 25, 20, 10, 5, 2))[0]
            return PageEvent(self._pages - 1, page, f"visitor-{chance.randrange(1_000)}", now)
        card = f"card-{chance.randrange(_CARDS)}"
        if chance.random() < _SHARE_MALFORMED:
            self._malformed += 1
            return MalformedRow(self._malformed - 1, card, chance.choice(_MALFORMED)(self._malformed - 1))
        self._transactions += 1
        cents = round(min(1_500_000, chance.lognormvariate(8.5, 1.6)))
        country = "elsewhere" if chance.random() < 0.06 else "home"
        return Transaction(self._transactions - 1, card, cents, country)


def window_of(at: datetime.datetime) -> int:
    """The beginning of the window that a time is in, in seconds since 1970."""
    return int(at.timestamp()) // WINDOW_S * WINDOW_S
