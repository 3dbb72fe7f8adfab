"""Alerts as a whole: the rules in their file, the judge, and those who are told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, TextIO

from penstock.abc import Clock
from penstock.errors import ClosedError, ConfigError
from penstock.model.clock import SystemClock
from penstock.observe.alerts.book import Book, BookFile, Mute
from penstock.observe.alerts.courier import Courier
from penstock.observe.alerts.judge import LONGEST_GAP_S, Judge
from penstock.observe.alerts.ledger import Ledger
from penstock.observe.alerts.memory import Memory, MemoryFile
from penstock.observe.alerts.messages import Message, trial_message
from penstock.observe.alerts.notifying import make_notifier
from penstock.observe.alerts.rules import Rule
from penstock.observe.alerts.settings import NotifierSettings
from penstock.observe.alerts.states import AlertState, NotifierState
from penstock.observe.facts import Snapshot
from penstock.streams.url import without_password

REMEMBER_EVERY_S: Final = 30.0
"""How often the memory is written when no alert has changed. What is forgotten by a kill is for how long something
that has not moved since was already seen not to move."""


log = logging.getLogger("penstock.alerts")


class Alerting:
    """Hears snapshots, judges them by the rules of a file, and has those told whom the rules name.

    The file need not exist: until somebody writes one, `DEFAULT_RULES` hold. It is read again whenever it has changed;
    one that has become unreadable is told of in `problem`, and what was read before holds on. What fires and who was
    told is kept beside it, so a restart tells nobody twice. Any thread may call anything; nothing here waits for a
    notifier but `test`.
    """

    def __init__(
        self,
        path: Path,
        *,
        stream: str = "",
        clock: Clock | None = None,
        notify: bool = True,
        memory: Path | None = None,
        longest_gap_s: float = LONGEST_GAP_S,
        log_to: TextIO | None = None,
    ) -> None:
        """`stream` is named in messages. Without `notify`, nobody is told and nothing is remembered. `memory` is the
        file for what must survive, by default `alerts.state.json` beside `alerts.json`. `log_to` is where a log without
        a file goes, by default standard error. ConfigError for a file of rules that cannot be used."""
        self._clock = clock or SystemClock()
        self._stream = without_password(stream)
        self._notify = notify
        self._log_to = log_to
        self._lock = threading.RLock()
        self._file = BookFile(path)
        self._book = self._file.read()
        self._memory_file = MemoryFile(memory or path.with_name(f"{path.stem}.state.json"))
        self._judge = Judge(self._book.rules, longest_gap_s=longest_gap_s)
        self._ledger = Ledger()
        self._couriers: dict[str, Courier] = {}
        self._now_ms = self._clock.wall_ms()
        self._remembered_s: float | None = None
        self._file_problem: str | None = None
        self._memory_problem: str | None = None
        self._forgotten: str | None = None
        self._is_closed = False
        if notify and not self._claim():
            self._recall()

    @property
    def problem(self) -> str | None:
        """What is wrong with alerting itself; None: nothing."""
        with self._lock:
            return self._file_problem or self._memory_problem or self._forgotten

    def heard(self, snapshot: Snapshot) -> None:
        """Judge what was seen, and let those be told who are to be. A listener for `observe.watching.Watch`."""
        with self._lock:
            if self._is_closed:
                return
            if self._notify:
                self._claim()
            self._read_again()
            before = self._phases()
            self._now_ms = snapshot.at_ms
            self._judge.judge(snapshot)
            self._ledger.keep({alert.key for alert in self._judge.alerts})
            self._remember(now=before != self._phases())
            couriers = self._wanted_couriers()
        for courier in couriers:
            courier.wake()

    def states(self) -> list[AlertState]:
        """What fires first, the gravest at the top, then what may, then what was resolved within a day."""
        with self._lock:
            found = []
            for alert in self._judge.alerts:
                muted_ms = self._book.muted_until_ms(*alert.key, self._now_ms)
                found.append(replace(alert.state(), muted_until_ms=muted_ms, told=self._ledger.told(alert)))
            return sorted(found, key=lambda state: state.order)

    def rules(self) -> list[Rule]:
        with self._lock:
            self._read_again()
            return list(self._book.rules)

    def mutes(self) -> list[Mute]:
        with self._lock:
            self._read_again()
            return [mute for mute in self._book.mutes if mute.until_ms > self._clock.wall_ms()]

    def notifiers(self) -> list[NotifierState]:
        with self._lock:
            self._read_again()
            return [self._courier(settings).state() for settings in self._book.all_notifiers]

    def add_rule(self, rule: Rule, *, replace: bool = False) -> None:
        """ConfigError when there is one of this name, unless it is to be replaced, or when it names no notifier."""
        self._change(lambda book: book.with_rule(rule, replace=replace))

    def remove_rule(self, name: str) -> Rule:
        """What fires by it is resolved. Gives the rule that it was; ConfigError when there is none."""
        removed = []

        def without(book: Book) -> Book:
            removed.append(book.rule(name))
            return book.without_rule(name)

        self._change(without)
        return removed[-1]

    def add_notifier(self, notifier: NotifierSettings, *, replace: bool = False) -> None:
        self._change(lambda book: book.with_notifier(notifier, replace=replace))

    def remove_notifier(self, name: str) -> None:
        self._change(lambda book: book.without_notifier(name))

    def mute(self, name: str, until_ms: int, subject: str = "*") -> None:
        """Tell nobody of alerts by this rule until then; a time that has passed: tell again from now on."""
        self._change(lambda book: book.muted(name, until_ms, subject, self._clock.wall_ms()))

    def test(self, name: str) -> str | None:
        """Have this notifier say that it works, at once. Raises NotifyError when it does not; gives what was wrong all
        the same, such as one of several addresses."""
        with self._lock:
            self._read_again()
            settings = self._book.notifier(name)
        return make_notifier(settings, self._log_to).send(trial_message(name, self._stream, self._clock.wall_ms()))

    def close(self) -> None:
        """Tell nobody any more. Messages on their way have a few seconds to arrive."""
        with self._lock:
            if self._is_closed:
                return
            couriers = list(self._couriers.values())
            self._is_closed = True
        for courier in couriers:
            courier.close()
        with self._lock:
            self._remember(now=True)
            self._memory_file.release()

    def due(self, notifier: str) -> Message | None:
        """For couriers: what is to be said now."""
        with self._lock:
            if self._is_closed or not self._memory_file.is_ours:
                return None
            settings = next((each for each in self._book.all_notifiers if each.name == notifier), None)
            if settings is None:
                return None
            items = self._ledger.due(self._judge.alerts, settings, self._now_ms, self._is_muted)
            return Message(self._stream, self._now_ms, items) if items else None

    def arrived(self, notifier: str, message: Message) -> None:
        """For couriers: it was said."""
        with self._lock:
            self._ledger.arrived(notifier, message.items, message.at_ms)
            self._remember(now=True)

    def failed(self, notifier: str, message: Message, error: str) -> None:
        """For couriers: it could not be said, and will be tried again."""
        with self._lock:
            self._ledger.failed(notifier, message.items, error)
            self._remember(now=True)

    def _change(self, by: Callable[[Book], Book]) -> None:
        with self._lock:
            if self._is_closed:
                raise ClosedError("alerts were closed: nothing can be changed any more")
            self._use(self._file.change(by))

    def _use(self, book: Book) -> None:
        self._book = book
        self._judge.use(book.rules)
        self._file_problem = None
        kept = {settings.name: settings for settings in book.all_notifiers}
        for name in [name for name, courier in self._couriers.items() if kept.get(name) != courier.settings]:
            # Its thread ends by itself once its message has arrived or failed; nobody waits for it here.
            self._couriers.pop(name).close(timeout_s=0)

    def _read_again(self) -> None:
        if not self._file.has_changed():
            return
        try:
            self._use(self._file.read())
        except ConfigError as error:
            self._file_problem = f"{error} (the rules that were read before hold on)"

    def _claim(self) -> bool:
        """Whether it is us who tell. Who comes to it takes up what is remembered."""
        if self._memory_file.is_ours:
            return True
        try:
            if not self._memory_file.claim():
                self._memory_problem = f"{self._memory_file.holder()} tells of these alerts; this one only shows them"
                return False
        except OSError as error:
            self._memory_problem = f"nobody is told of alerts: {self._memory_file.path} cannot be kept: {error}"
            return False
        self._memory_problem = None
        self._recall()
        return True

    def _recall(self) -> None:
        memory, problem = self._memory_file.read()
        if problem is not None:
            self._forgotten = problem
            log.warning("%s", problem)
        self._judge.recall(memory.judge)
        self._ledger = Ledger(memory.ledger)

    def _remember(self, now: bool) -> None:
        if not self._memory_file.is_ours:
            return
        at_s = self._clock.monotonic_s()
        if not now and self._remembered_s is not None and at_s - self._remembered_s < REMEMBER_EVERY_S:
            return
        try:
            self._memory_file.write(Memory(self._judge.remember(), self._ledger.lines))
        except OSError as error:
            self._memory_problem = f"{self._memory_file.path} cannot be written ({error}): a restart may tell twice"
            return
        self._memory_problem = None
        self._remembered_s = at_s

    def _is_muted(self, rule: str, subject: str) -> bool:
        return self._book.muted_until_ms(rule, subject, self._now_ms) is not None

    def _phases(self) -> list[tuple[object, ...]]:
        return [(*alert.key, alert.phase, alert.fired_ms) for alert in self._judge.alerts]

    def _wanted_couriers(self) -> list[Courier]:
        """Those for whom there is something to say: threads are only had by notifiers that have spoken."""
        if not self._memory_file.is_ours:
            return []
        named = {name for alert in self._judge.alerts for name in alert.rule.notify}
        return [self._courier(settings) for settings in self._book.all_notifiers if settings.name in named]

    def _courier(self, settings: NotifierSettings) -> Courier:
        courier = self._couriers.get(settings.name)
        if courier is None:
            courier = Courier(settings, make_notifier(settings, self._log_to), self, self._clock)
            self._couriers[settings.name] = courier
        return courier
