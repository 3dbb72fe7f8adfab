"""One thread per notifier, which sends what is due and retries for as long as it is due."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from penstock.abc import Clock
from penstock.errors import NotifyError
from penstock.model.clock import wait_on
from penstock.observe.alerts.messages import Message
from penstock.observe.alerts.notifying import Notifier
from penstock.observe.alerts.rules import NotifierState
from penstock.observe.alerts.settings import NotifierSettings, type_of

if TYPE_CHECKING:
    from penstock.observe.alerts.alerting import Alerting

FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 300.0
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
            backoff_s = min(FIRST_BACKOFF_S * 2 ** min(self._failures, 16), LONGEST_BACKOFF_S)
            self._failures += 1
            self._error = error
            self._not_before_s = self._clock.monotonic_s() + max(backoff_s, retry_after_s or 0.0)
        self._alerting.failed(self.settings.name, message, error)
