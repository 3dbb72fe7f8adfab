"""Alerting as a whole: the rules in their file, their evaluation, and the notifiers."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, TextIO

from penstock.abc import Clock
from penstock.errors import ClosedError, ConfigError, NotifyError
from penstock.model.clock import SystemClock, wait_on
from penstock.model.retry import Retry
from penstock.observe.alerts.config_file import AlertConfig, AlertConfigFile, Mute
from penstock.observe.alerts.evaluator import LONGEST_GAP_S, Evaluator
from penstock.observe.alerts.memory import Memory, MemoryFile
from penstock.observe.alerts.messages import Message, trial_message
from penstock.observe.alerts.notification_log import NotificationLog
from penstock.observe.alerts.notifying import Notifier, make_notifier
from penstock.observe.alerts.readings import unusable
from penstock.observe.alerts.rules import AlertState, NotifierState, Rule
from penstock.observe.alerts.settings import NotifierSettings, type_of
from penstock.observe.facts import Snapshot
from penstock.streams.url import without_password

_CHANCE: Final = random.Random()
_RETRY: Final = Retry(None, first_delay_s=1.0, max_delay_s=300.0, jitter=0.0)
CLOSING_S: Final = 5.0

log = logging.getLogger("penstock.alerts")


class Sender:
    """Sends the messages of one notifier, one at a time. A slow or dead notifier delays no other."""

    def __init__(self, settings: NotifierSettings, notifier: Notifier, alerting: Alerting, clock: Clock) -> None:
        self.settings = settings
        self._notifier = notifier
        self._alerting = alerting
        self._clock = clock
        self._changed = threading.Condition()
        self._is_closed = False
        self._wakes = 0
        self._not_before_s = 0.0
        self._sent = 0
        self._failures = 0
        self._error: str | None = None
        self._sent_ms: int | None = None
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Check for a due message. Never waits for one that is on its way."""
        with self._changed:
            if self._thread is None and not self._is_closed:
                name = f"penstock-alerts-{self.settings.name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._wakes += 1
            self._changed.notify_all()

    def state(self) -> NotifierState:
        with self._changed:
            return NotifierState(
                name=self.settings.name,
                type=type_of(self.settings),
                target=self.settings.target,
                sent=self._sent,
                failures=self._failures,
                error=self._error,
                sent_ms=self._sent_ms,
            )

    def close(self, timeout_s: float = CLOSING_S) -> None:
        """Start no new message. One on its way has `timeout_s` to arrive."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                log.warning("a message by the notifier %s was on its way when it was closed", self.settings.name)

    def _run(self) -> None:
        while (message := self._next()) is not None:
            try:
                remark = self._notifier.send(message)
            except NotifyError as error:
                self._report_failure(message, str(error), error.retry_after_s)
            except Exception as error:
                # A bug in one notifier must not silently end all its messages.
                log.exception("the notifier %s failed unexpectedly", self.settings.name)
                self._report_failure(message, f"{type(error).__name__}: {error}", None)
            else:
                self._report_arrival(message, remark)

    def _next(self) -> Message | None:
        """Wait for a message that is due and may be sent now. None when closed.

        No lock is held while `Alerting` is asked, as it asks back for our state.
        """
        while True:
            with self._changed:
                while not self._is_closed and (left_s := self._not_before_s - self._clock.monotonic_s()) > 0:
                    wait_on(self._clock, self._changed, left_s)
                if self._is_closed:
                    return None
                wakes = self._wakes
            message = self._alerting.due(self.settings.name)
            if message is not None:
                return message
            with self._changed:
                while not self._is_closed and self._wakes == wakes:
                    wait_on(self._clock, self._changed, None)

    def _report_arrival(self, message: Message, remark: str | None) -> None:
        with self._changed:
            self._sent += 1
            self._failures = 0
            self._error = remark
            self._sent_ms = self._clock.wall_ms()
        self._alerting.arrived(self.settings.name, message)

    def _report_failure(self, message: Message, error: str, retry_after_s: float | None) -> None:
        with self._changed:
            self._failures += 1
            backoff_s = _RETRY.backoff_s(self._failures, _CHANCE)
            self._error = error
            self._not_before_s = self._clock.monotonic_s() + max(backoff_s, retry_after_s or 0.0)
        self._alerting.failed(self.settings.name, message, error)


REMEMBER_EVERY_S: Final = 30.0
"""How often the state is written when no alert has changed. A kill loses only how long something that has not moved
since was already known not to move."""


class Alerting:
    """Evaluates snapshots by the rules of a file, and notifies those whom the rules name.

    The file need not exist: `DEFAULT_RULES` apply until there is one. It is read again whenever it changes; if it
    becomes unreadable, `problem` says so and the previous rules stay in force. What fires and who was notified is
    stored beside it, so a restart notifies nobody twice. Thread-safe; only `test` waits for a notifier.
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
        """`stream` is named in messages. Without `notify`, nothing is sent and nothing is stored. `memory` is the file
        for the state, by default `alerts.state.json` beside `alerts.json`. `log_to` is where a log notifier without a
        file writes, by default standard error. Raises ConfigError for an unusable file of rules."""
        self._clock = clock or SystemClock()
        self._stream = without_password(stream)
        self._notify = notify
        self._log_to = log_to
        self._lock = threading.RLock()
        self._file = AlertConfigFile(path)
        self._config = self._file.read()
        self._memory_file = MemoryFile(memory or path.with_name(f"{path.stem}.state.json"))
        self._evaluator = Evaluator(self._config.rules, longest_gap_s=longest_gap_s)
        self._ledger = NotificationLog()
        self._senders: dict[str, Sender] = {}
        self._now_ms = self._clock.wall_ms()
        self._remembered_s: float | None = None
        self._file_problem: str | None = None
        self._memory_problem: str | None = None
        self._forgotten: str | None = None
        self._rule_problem: str | None = None
        self._is_closed = False
        if notify and not self._claim():
            self._recall()

    @property
    def problem(self) -> str | None:
        with self._lock:
            return self._file_problem or self._memory_problem or self._forgotten or self._rule_problem

    def heard(self, snapshot: Snapshot) -> None:
        """Evaluate a snapshot and notify. A listener for `observe.watching.Watch`."""
        with self._lock:
            if self._is_closed:
                return
            if self._notify:
                self._claim()
            self._read_again()
            before = self._phases()
            self._now_ms = snapshot.at_ms
            self._evaluator.evaluate(snapshot)
            if snapshot.problem is None:
                self._rule_problem = unusable(self._config.rules, snapshot)
            self._ledger.keep({alert.key for alert in self._evaluator.alerts})
            self._remember(now=before != self._phases())
            senders = self._wanted_senders()
        for sender in senders:
            sender.wake()

    def states(self) -> list[AlertState]:
        """All alerts: firing ones first, most severe at the top, then pending ones, then those resolved within a
        day."""
        with self._lock:
            found = []
            for alert in self._evaluator.alerts:
                muted_ms = self._config.muted_until_ms(*alert.key, self._now_ms)
                found.append(replace(alert.state(), muted_until_ms=muted_ms, told=self._ledger.told(alert)))
            return sorted(found, key=lambda state: state.order)

    def rules(self) -> list[Rule]:
        with self._lock:
            self._read_again()
            return list(self._config.rules)

    def mutes(self) -> list[Mute]:
        with self._lock:
            self._read_again()
            return [mute for mute in self._config.mutes if mute.until_ms > self._clock.wall_ms()]

    def notifiers(self) -> list[NotifierState]:
        with self._lock:
            self._read_again()
            return [self._sender(settings).state() for settings in self._config.all_notifiers]

    def add_rule(self, rule: Rule, *, replace: bool = False) -> None:
        """Raises ConfigError when the name exists already (unless `replace`), or when it names an unknown notifier."""
        self._change(lambda config: config.with_rule(rule, replace=replace))

    def remove_rule(self, name: str) -> Rule:
        """Remove a rule and return it; its firing alerts are resolved. Raises ConfigError when there is none."""
        removed = []

        def without(config: AlertConfig) -> AlertConfig:
            removed.append(config.rule(name))
            return config.without_rule(name)

        self._change(without)
        return removed[-1]

    def add_notifier(self, notifier: NotifierSettings, *, replace: bool = False) -> None:
        self._change(lambda config: config.with_notifier(notifier, replace=replace))

    def mute(self, name: str, until_ms: int, subject: str = "*") -> None:
        """Send nothing about this rule's alerts until then. A time in the past ends the mute."""
        self._change(lambda config: config.muted(name, until_ms, subject, self._clock.wall_ms()))

    def test(self, name: str) -> str | None:
        """Send a test message now. Raises NotifyError when that fails, and returns partial problems, such as one bad
        address among several."""
        with self._lock:
            self._read_again()
            settings = self._config.notifier(name)
        return make_notifier(settings, self._log_to).send(trial_message(name, self._stream, self._clock.wall_ms()))

    def close(self) -> None:
        """Stop notifying. Messages on their way have a few seconds to arrive."""
        with self._lock:
            if self._is_closed:
                return
            senders = list(self._senders.values())
            self._is_closed = True
        for sender in senders:
            sender.close()
        with self._lock:
            self._remember(now=True)
            self._memory_file.release()

    def due(self, notifier: str) -> Message | None:
        """For senders: the message that is due now."""
        with self._lock:
            if self._is_closed or not self._memory_file.is_ours:
                return None
            settings = next((each for each in self._config.all_notifiers if each.name == notifier), None)
            if settings is None:
                return None
            items = self._ledger.due(self._evaluator.alerts, settings, self._now_ms, self._is_muted)
            return Message(self._stream, self._now_ms, items) if items else None

    def arrived(self, notifier: str, message: Message) -> None:
        """For senders: the message was delivered."""
        with self._lock:
            self._ledger.arrived(notifier, message.items, message.at_ms)
            self._remember(now=True)

    def failed(self, notifier: str, message: Message, error: str) -> None:
        """For senders: the message failed, and will be retried."""
        with self._lock:
            self._ledger.failed(notifier, message.items, error)
            self._remember(now=True)

    def _change(self, by: Callable[[AlertConfig], AlertConfig]) -> None:
        with self._lock:
            if self._is_closed:
                raise ClosedError("alerts were closed: nothing can be changed any more")
            self._use(self._file.change(by))

    def _use(self, config: AlertConfig) -> None:
        self._config = config
        self._evaluator.use(config.rules)
        self._file_problem = None
        kept = {settings.name: settings for settings in config.all_notifiers}
        for name in [name for name, sender in self._senders.items() if kept.get(name) != sender.settings]:
            # Its thread ends by itself once its message has arrived or failed; do not wait for it here.
            self._senders.pop(name).close(timeout_s=0)

    def _read_again(self) -> None:
        if not self._file.has_changed():
            return
        try:
            self._use(self._file.read())
        except ConfigError as error:
            self._file_problem = f"{error} (the rules that were read before stay in force)"

    def _claim(self) -> bool:
        """Whether this process notifies. A process that takes over loads the stored state."""
        if self._memory_file.is_ours:
            return True
        try:
            if not self._memory_file.claim():
                self._memory_problem = (
                    f"{self._memory_file.holder()} sends these notifications; this process only shows the alerts"
                )
                return False
        except OSError as error:
            self._memory_problem = f"no notifications are sent: {self._memory_file.path} cannot be written: {error}"
            return False
        self._memory_problem = None
        self._recall()
        return True

    def _recall(self) -> None:
        memory, problem = self._memory_file.read()
        if problem is not None:
            self._forgotten = problem
            log.warning("%s", problem)
        self._evaluator.recall(memory.evaluator)
        self._ledger = NotificationLog(memory.ledger)

    def _remember(self, now: bool) -> None:
        if not self._memory_file.is_ours:
            return
        at_s = self._clock.monotonic_s()
        if not now and self._remembered_s is not None and at_s - self._remembered_s < REMEMBER_EVERY_S:
            return
        try:
            self._memory_file.write(Memory(self._evaluator.remember(), self._ledger.lines))
        except OSError as error:
            self._memory_problem = f"{self._memory_file.path} cannot be written ({error}): a restart may notify twice"
            return
        self._memory_problem = None
        self._remembered_s = at_s

    def _is_muted(self, rule: str, subject: str) -> bool:
        return self._config.muted_until_ms(rule, subject, self._now_ms) is not None

    def _phases(self) -> list[tuple[object, ...]]:
        return [(*alert.key, alert.phase, alert.fired_ms) for alert in self._evaluator.alerts]

    def _wanted_senders(self) -> list[Sender]:
        """The senders that have something to send. A notifier gets a thread when it first has."""
        if not self._memory_file.is_ours:
            return []
        named = {name for alert in self._evaluator.alerts for name in alert.rule.notify}
        return [self._sender(settings) for settings in self._config.all_notifiers if settings.name in named]

    def _sender(self, settings: NotifierSettings) -> Sender:
        sender = self._senders.get(settings.name)
        if sender is None:
            sender = Sender(settings, make_notifier(settings, self._log_to), self, self._clock)
            self._senders[settings.name] = sender
        return sender
