"""What is known while the demo runs: told by its processes, seen on the log, and kept for the report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.cli.demo.account import Account


@dataclass(frozen=True, slots=True)
class Happening:
    """Something worth a line: a part was started, killed, or is back."""

    at_s: float
    """Since the demo began."""
    text: str
    mark: str = ""
    """What the report calls it on its time axis; nothing for what it leaves out there."""


@dataclass(frozen=True, slots=True)
class Sample:
    """How things stood at one moment."""

    at_s: float
    to_judge: int
    """Transactions sent, malformed ones among them."""
    verdicts: int
    lag: int
    letters: int


@dataclass(slots=True)
class ConsumerState:
    """What one consumer tells of itself."""

    calls: int = 0
    partial: int = 0
    p99_ms: float = 0.0
    assigned: dict[str, set[int]] = field(default_factory=dict)
    """By topic, the partitions that it has."""
    is_killed: bool = False


@dataclass(slots=True)
class QueryState:
    """What one query on Spark tells of itself."""

    read: int = 0
    written: int = 0
    lag: int | None = None
    state: str = "starting"
    error: str | None = None


class Live:
    """Written by the threads that listen and look, read by the one that shows. All times are since `began_s`."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._lock = threading.Lock()
        self.sent = 0
        self.to_judge = 0
        self.acknowledged = 0
        self.account: Account | None = None
        self.consumers: dict[str, ConsumerState] = {}
        self.queries: dict[str, QueryState] = {}
        self.has_session = False
        self.is_real_time = False
        self.verdicts = 0
        self.letters = 0
        self.lag = 0
        self.page_lag = 0
        self.first_result_s: float | None = None
        self.console: str | None = None
        self.broker_port = 0
        self.happenings: list[Happening] = []
        self.samples: list[Sample] = []

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def partial(self) -> int:
        return sum(each.partial for each in self.consumers.values())

    def happened(self, text: str, mark: str = "") -> Happening:
        happening = Happening(self.now_s, text, mark)
        self.happenings.append(happening)
        return happening

    def saw(self, *, verdicts: int, letters: int, lag: int, page_lag: int) -> None:
        """A look at the log."""
        if verdicts and self.first_result_s is None:
            self.first_result_s = self.now_s
        self.verdicts, self.letters, self.lag, self.page_lag = verdicts, letters, lag, page_lag
        self.samples.append(Sample(self.now_s, self.to_judge, verdicts, lag, letters))

    def covers(self, partitions: Mapping[str, int]) -> bool:
        """Whether consumers have all partitions of these topics, which are given with their number."""
        with self._lock:
            return all(
                set().union(*(each.assigned.get(topic, ()) for each in self.consumers.values())) >= set(range(count))
                for topic, count in partitions.items()
            )

    def forget_consumer(self, name: str) -> None:
        """It has been killed: it has no partitions any more, and what it counted stays counted."""
        with self._lock:
            self.consumers[name].assigned.clear()
            self.consumers[name].is_killed = True

    def listener_of(self, name: str) -> Callable[[dict[str, Any]], None]:
        """Hears a consumer."""
        before = self.consumers.get(name, ConsumerState())
        state = ConsumerState(calls=before.calls, partial=before.partial)
        self.consumers[name] = state

        def hear(said: dict[str, Any]) -> None:
            with self._lock:
                match said["kind"]:
                    case "judged":
                        state.calls = before.calls + said["calls"]
                        state.partial = before.partial + said["partial"]
                        state.p99_ms = said["p99_ms"]
                    case "assigned":
                        state.assigned.setdefault(said["topic"], set()).update(said["partitions"])
                    case "revoked":
                        state.assigned.setdefault(said["topic"], set()).difference_update(said["partitions"])

        return hear

    def hear_generator(self, said: dict[str, Any]) -> None:
        if said["kind"] == "sent":
            self.sent, self.to_judge, self.acknowledged = said["sent"], said["to_judge"], said["acknowledged"]
        elif said["kind"] == "account":
            self.account = Account(**said["account"])
            self.sent, self.acknowledged = self.account.sent, self.account.acknowledged
            self.to_judge = self.account.transactions + self.account.malformed

    def hear_driver(self, said: dict[str, Any]) -> None:
        if said["kind"] == "session":
            self.has_session, self.is_real_time = True, said["real_time"]
        elif said["kind"] == "query":
            state = QueryState(said["read"], said["written"], said["lag"], said["state"], said["error"])
            self.queries = {**self.queries, said["query"]: state}

    def forget_driver(self) -> None:
        self.has_session = False
        self.queries = {}
