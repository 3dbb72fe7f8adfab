"""The events of the demo, their topics, and their seeded random source."""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from penstock.serde import Topic

WINDOW_S: Final = 10
GRACE_S: Final = 5
"""How much later than its successors a page event may arrive and still be counted in its window."""
LARGE_CENTS: Final = 100_000
"""Payments from this amount on are passed on by the query in real-time mode."""
CLOSING: Final = -1
"""The number of the page event that advances the watermark at the end, so that all windows are final."""
MALFORMED_HEADER: Final = "malformed"
"""The header with the number of a malformed row, by which it is identified."""

PAGES: Final = ("/", "/search", "/product", "/basket", "/checkout", "/help")
_CARDS: Final = 400
_SHARE_OF_TRANSACTIONS: Final = 0.5
_SHARE_MALFORMED: Final = 0.01


@dataclass(slots=True)
class Transaction:
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
    took_ms: float
    appended_ms: int
    """When the log appended the transaction, by the log's clock."""
    consumer: str


@dataclass(slots=True)
class LateAnswer:
    """The answer of an analyser after the deadline."""

    transaction: int
    analyser: str
    suspicion: float
    late_by_ms: float


@dataclass(slots=True)
class PageEvent:
    number: int
    page: str
    visitor: str
    at: datetime.datetime


def transaction_of(result: Verdict | LateAnswer) -> str:
    return str(result.transaction)


TRANSACTIONS: Final = Topic("transactions", Transaction, key=attrgetter("card"), partitions=4)
VERDICTS: Final = Topic("verdicts", Verdict, key=transaction_of, partitions=2)
LATE_ANSWERS: Final = Topic("late-answers", LateAnswer, key=transaction_of, partitions=1)
PAGE_EVENTS: Final = Topic("page-events", PageEvent, key=attrgetter("visitor"), partitions=2)
LETTERS: Final = "transactions.dlq"
PAGE_USE: Final = "page-use"
PAGE_EVENTS_LATE: Final = "page-events.late"
LARGE_PAYMENTS: Final = "large-payments"
"""What the query in real-time mode passes on."""

FRAUD_GROUP: Final = "fraud"
USE_GROUP: Final = "page-counts"
USE_TABLE: Final = "page_use"
"""The table, beside the checkpoints, in which the consumers count page events."""


@dataclass(frozen=True, slots=True)
class MalformedRow:
    number: int
    card: str
    data: bytes


Event = Transaction | MalformedRow | PageEvent


_MALFORMED: Final = (
    b'{"number": %d, "card": "card-1',
    b'{"number": %d, "card": "card-1", "cents": "a lot", "country": "home"}',
    b'{"number": %d}',
    b"\xff\xfe\x00%d",
)
"""Cut short, a wrong type, missing fields, and no text at all."""


class EventSource:
    """A sequence of events. The same seed gives the same events, except for the times of page events."""

    def __init__(self, seed: int, first: int = 0) -> None:
        """`first` is the first number of each kind of event."""
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
            return MalformedRow(self._malformed - 1, card, chance.choice(_MALFORMED) % (self._malformed - 1))
        self._transactions += 1
        cents = round(min(1_500_000, chance.lognormvariate(8.5, 1.6)))
        country = "elsewhere" if chance.random() < 0.06 else "home"
        return Transaction(self._transactions - 1, card, cents, country)


def window_of(at: datetime.datetime) -> int:
    """The start of the window of a time, in seconds since 1970."""
    return int(at.timestamp()) // WINDOW_S * WINDOW_S
