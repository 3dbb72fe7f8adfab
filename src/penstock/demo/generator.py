"""The generator: sends events at a steady rate, and counts them."""

from __future__ import annotations

import datetime
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from penstock.demo.events import (
    LARGE_CENTS,
    MALFORMED_HEADER,
    PAGE_EVENTS,
    TRANSACTIONS,
    Event,
    EventSource,
    MalformedRow,
    PageEvent,
    Transaction,
    window_of,
)
from penstock.demo.processes import Owner
from penstock.model import Receipt
from penstock.producing.producer import Producer

WindowTotals = dict[str, int]
"""How often each page was seen in each window, by `window_name`."""


def window_name(window_s: int, page: str) -> str:
    return f"{window_s} {page}"


@dataclass(slots=True)
class Account:
    """Events of each kind are numbered from 0, so a count identifies them."""

    transactions: int = 0
    malformed: int = 0
    pages: int = 0
    acknowledged: int = 0
    """How many of all these the log has acknowledged."""
    large: list[int] = field(default_factory=list)
    windows: WindowTotals = field(default_factory=dict)

    @property
    def sent(self) -> int:
        return self.transactions + self.malformed + self.pages

    def enter(self, event: Event) -> None:
        match event:
            case MalformedRow():
                self.malformed += 1
            case Transaction():
                self.transactions += 1
                if event.cents >= LARGE_CENTS:
                    self.large.append(event.number)
            case PageEvent():
                self.pages += 1
                name = window_name(window_of(event.at), event.page)
                self.windows[name] = self.windows.get(name, 0) + 1


_TICK_S: Final = 0.02
_TELL_EVERY_S: Final = 0.25
_FLUSH_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    url: str
    events: int | None
    """How many are sent; None: until it is asked to finish."""
    rate: int
    seed: int
    first: int = 0
    fault: str | None = None


class Generator:
    def __init__(self, settings: GeneratorSettings, producer: Producer, owner: Owner) -> None:
        self._settings = settings
        self._producer = producer
        self._owner = owner
        self._account = Account()
        self._told_s = 0.0

    def run(self) -> Account:
        """Send everything, and return the count of it."""
        chance = EventSource(self._settings.seed, self._settings.first)
        began_s = time.monotonic()
        while not self._is_done() and not self._owner.wants_end.wait(_TICK_S):
            due = int((time.monotonic() - began_s) * self._settings.rate)
            if self._settings.events is not None:
                due = min(due, self._settings.events)
            while self._account.sent < due:
                self._send(chance.next_event(datetime.datetime.now(datetime.UTC)))
            self._tell()
        self._producer.flush(_FLUSH_TIMEOUT_S)
        return self._account

    def _is_done(self) -> bool:
        return self._settings.events is not None and self._account.sent >= self._settings.events

    def _send(self, event: Event) -> None:
        producer = self._producer
        if isinstance(event, MalformedRow):
            headers = {MALFORMED_HEADER: str(event.number)}
            receipt = producer.send(TRANSACTIONS.name, event.data, event.card, headers=headers)
        elif isinstance(event, PageEvent):
            receipt = producer.send(PAGE_EVENTS, event)
        else:
            receipt = producer.send(TRANSACTIONS, event)
        receipt.add_done_callback(self._hear)
        self._account.enter(event)

    def _hear(self, receipt: Receipt) -> None:
        if receipt.error is None:
            self._account.acknowledged += 1

    def _tell(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_EVERY_S:
            self._told_s = now_s
            account = self._account
            told = account.transactions + account.malformed
            self._owner.tell("sent", sent=account.sent, to_judge=told, acknowledged=account.acknowledged)


def generate(settings: GeneratorSettings, owner: Owner) -> None:
    with Producer(settings.url) as producer:
        account = Generator(settings, producer, owner).run()
    owner.tell("account", account=asdict(_falsified(account, settings.fault)))


def _lose_a_transaction(account: Account) -> Account:
    return replace(account, transactions=account.transactions + 1, acknowledged=account.acknowledged + 1)


def _lose_a_letter(account: Account) -> Account:
    return replace(account, malformed=account.malformed + 1, acknowledged=account.acknowledged + 1)


def _shift_a_page(account: Account) -> Account:
    first, *_, last = sorted(account.windows)
    moved = {first: account.windows[first] - 1, last: account.windows[last] + 1}
    return replace(account, windows={**account.windows, **moved})


FAULTS: Final = {"transaction": _lose_a_transaction, "letter": _lose_a_letter, "window": _shift_a_page}
"""Ways to falsify the account, so that tests see that the check uses it."""


def _falsified(account: Account, fault: str | None) -> Account:
    return account if fault is None else FAULTS[fault](account)
