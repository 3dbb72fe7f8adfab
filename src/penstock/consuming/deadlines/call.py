"""One call: an argument given to all analysers, and the answers so far."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.abc import Clock
from penstock.model.clock import wait_on


class Why(StrEnum):
    """Why an analyser's answer is missing."""

    RUNNING = "running"
    """It was still running when time was up. Its answer will be late."""
    WAITING = "waiting"
    """Its workers were busy with earlier calls. It will not be started."""
    BUSY = "busy"
    """Its queue was full, so it was not asked."""
    ABSENT = "absent"
    """Its answer comes as a record, and had not come: it may follow."""


@dataclass(frozen=True, slots=True)
class Result:
    """The answers that were there when time was up."""

    complete: bool
    """Whether every analyser has answered. If not, the result is partial: some are missing or failed."""
    answers: Mapping[str, Any]
    missing: tuple[str, ...]
    """The analysers that have neither answered nor failed, in order; `why` says why."""
    failed: Mapping[str, BaseException]
    """The errors of the analysers that failed."""
    took_s: float
    why: Mapping[str, Why] = field(default_factory=dict)
    """For each missing analyser: whether it was running, waiting for a worker, or not asked."""
    overdue: bool = False
    """Time was up before the request could be read, as after a crash."""

    @property
    def label(self) -> str:
        """`complete` or `partial`."""
        return "complete" if self.complete else "partial"

    def __str__(self) -> str:
        parts = [f"{self.label} after {self.took_s * 1000:.1f} ms"]
        if self.missing:
            parts.append("missing: " + ", ".join(f"{name} ({self.why[name]})" for name in self.missing))
        if self.failed:
            parts.append("failed: " + ", ".join(f"{name} ({error!r})" for name, error in self.failed.items()))
        return "; ".join(parts)


class Call:
    """Collects answers, from any thread, until all are there or the call is over."""

    __slots__ = (
        "_answers", "_changed", "_failed", "_on_settled", "_pending", "_why", "argument", "deadline_s",
        "is_over", "started_s",
    )  # fmt: skip

    def __init__(
        self,
        argument: Any,
        names: Sequence[str],
        started_s: float,
        allowed_s: float,
        on_settled: Callable[[], None] | None = None,
    ) -> None:
        self.argument = argument
        self.started_s = started_s
        self.deadline_s = started_s + allowed_s
        self.is_over = False
        """Whether its result was taken: further answers are late."""
        self._pending = len(names)
        self._answers: dict[str, Any] = {}
        self._failed: dict[str, BaseException] = {}
        self._why: dict[str, Why] = dict.fromkeys(names, Why.WAITING)
        self._changed = threading.Condition(threading.Lock())
        self._on_settled = on_settled

    def begin(self, name: str) -> bool:
        """Start an analyser. False when the call is over and it need not."""
        with self._changed:
            self._why[name] = Why.RUNNING
            return not self.is_over

    def answer(self, name: str, answer: Any) -> bool:
        """Add an answer. False when it is late and not part of the result."""
        with self._changed:
            if self.is_over:
                return False
            self._answers[name] = answer
            self._settle_one()
            return True

    def fail(self, name: str, error: BaseException) -> bool:
        with self._changed:
            if self.is_over:
                return False
            self._failed[name] = error
            self._settle_one()
            return True

    def reject(self, name: str) -> None:
        """Note that the analyser's queue is full."""
        with self._changed:
            self._why[name] = Why.BUSY
            self._settle_one()

    def wait(self, clock: Clock) -> None:
        """Return when every analyser has answered, or time is up."""
        with self._changed:
            while self._pending and (left_s := self.deadline_s - clock.monotonic_s()) > 0:
                wait_on(clock, self._changed, left_s)

    def take_result(self, names: Sequence[str], now_s: float) -> Result:
        """End the call and return the answers so far."""
        with self._changed:
            self.is_over = True
            answers, failed = self._answers, self._failed
            missing = tuple(name for name in names if name not in answers and name not in failed)
            return Result(
                complete=not missing and not failed,
                answers={name: answers[name] for name in names if name in answers},
                missing=missing,
                failed=failed,
                took_s=now_s - self.started_s,
                why={name: self._why[name] for name in missing},
            )

    def _settle_one(self) -> None:
        self._pending -= 1
        if self._pending == 0:
            self._changed.notify_all()
            if self._on_settled is not None:
                self._on_settled()
