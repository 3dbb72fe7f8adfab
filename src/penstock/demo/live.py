"""What is known while the demo runs: reported by its processes, read from the log, and kept for the report."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.abc import CheckpointStore
from penstock.consuming.defaults import default_store
from penstock.demo.events import FRAUD_GROUP, LETTERS, PAGE_EVENTS, TRANSACTIONS, USE_GROUP, VERDICTS
from penstock.demo.generator import Account
from penstock.errors import PenstockError
from penstock.model.checkpoint import CheckpointKey
from penstock.serde import Topic
from penstock.streams import Connection, connect

CONSUMED: Final[Mapping[str, int]] = {topic.name: topic.partitions or 1 for topic in (TRANSACTIONS, PAGE_EVENTS)}
"""The topics of the consumers, and their numbers of partitions."""

_EVERY_S: Final = 0.5
_EVERY_AT_FIRST_S: Final = 0.1


class ProgressReader:
    def __init__(self, url: str) -> None:
        self._stack = contextlib.ExitStack()
        self.connection: Connection = self._stack.enter_context(connect(url, client_id="demo-look"))
        self._store: CheckpointStore = default_store(self.connection, in_the_stream=False)
        self._stack.callback(self._store.close)

    def close(self) -> None:
        self._stack.close()

    def records(self, topic: str) -> int:
        """How many records a topic has; 0 for a missing one."""
        return sum(self._ends(topic).values())

    def lag(self, group: str, topic: Topic[Any]) -> int:
        """How many records the group has not finished."""
        known = self._store.checkpoints(group)
        left = 0
        for partition, end in self._ends(topic.name).items():
            checkpoint = known.get(CheckpointKey(group, topic.name, partition))
            left += end - (checkpoint.start if checkpoint is not None else 0)
        return left

    def _ends(self, topic: str) -> Mapping[int, int]:
        summaries = {each.name: each for each in self.connection.admin().all()}
        if topic not in summaries:
            return {}
        partitions = self.connection.admin().partitions_of(topic)
        return self.connection.admin().ends(topic, partitions)


class ProgressWatcher:
    """Reads progress repeatedly, in its own thread, and reports to `live`. It sees nothing while the broker is away."""

    def __init__(self, url: str, live: Live) -> None:
        self._look = ProgressReader(url)
        self._live = live
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-look", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._look.close()

    def _run(self) -> None:
        live, look = self._live, self._look
        while not self._stopping.wait(_EVERY_AT_FIRST_S if live.first_result_s is None else _EVERY_S):
            try:
                seen = {
                    "verdicts": look.records(VERDICTS.name),
                    "letters": look.records(LETTERS),
                    "lag": look.lag(FRAUD_GROUP, TRANSACTIONS),
                    "page_lag": look.lag(USE_GROUP, PAGE_EVENTS),
                }
            except PenstockError:
                continue  # the broker is away: it was killed, or is being stopped
            live.saw(**seen)


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """A line for people: a part was started, killed, or is back."""

    at_s: float
    text: str
    mark: str = ""
    """Its name on the time axis of the report; empty for none."""


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    to_judge: int
    """Transactions sent, including malformed ones."""
    verdicts: int
    lag: int
    letters: int


@dataclass(slots=True)
class ConsumerState:
    calls: int = 0
    partial: int = 0
    assigned: dict[str, set[int]] = field(default_factory=dict)
    is_killed: bool = False


@dataclass(slots=True)
class QueryState:
    """What one query on Spark reports, including what earlier drivers had reported."""

    read: int = 0
    written: int = 0
    batch: int = -1
    """The last finished batch of the current driver; -1: none yet."""
    lag: int | None = None
    state: str = "starting"
    error: str | None = None


class Live:
    """Written by the threads that listen and look, read by the display. All times are since `began_s`."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._lock = threading.Lock()
        self.sent = 0
        self.to_judge = 0
        self.acknowledged = 0
        self.account: Account | None = None
        self.consumers: dict[str, ConsumerState] = {}
        self.queries: dict[str, QueryState] = {}
        self._before: dict[str, QueryState] = {}
        self.has_session = False
        self.is_real_time = False
        self.verdicts = 0
        self.letters = 0
        self.lag = 0
        self.page_lag = 0
        self.first_result_s: float | None = None
        self.console: str | None = None
        self.broker_port = 0
        self.events: list[DemoEvent] = []
        self.samples: list[Sample] = []

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def partial(self) -> int:
        return sum(each.partial for each in self.consumers.values())

    def happened(self, text: str, mark: str = "") -> DemoEvent:
        event = DemoEvent(self.now_s, text, mark)
        self.events.append(event)
        return event

    def saw(self, *, verdicts: int, letters: int, lag: int, page_lag: int) -> None:
        if verdicts and self.first_result_s is None:
            self.first_result_s = self.now_s
        self.verdicts, self.letters, self.lag, self.page_lag = verdicts, letters, lag, page_lag
        self.samples.append(Sample(self.now_s, self.to_judge, verdicts, lag, letters))

    def covers(self, partitions: Mapping[str, int]) -> bool:
        """Whether consumers have all partitions of these topics, given with their numbers."""
        with self._lock:
            return all(
                set().union(*(each.assigned.get(topic, ()) for each in self.consumers.values())) >= set(range(count))
                for topic, count in partitions.items()
            )

    def forget_consumer(self, name: str) -> None:
        """It was killed: it has no partitions, but its counts stay."""
        with self._lock:
            self.consumers[name].assigned.clear()
            self.consumers[name].is_killed = True

    def listener_of(self, name: str) -> Callable[[dict[str, Any]], None]:
        """A function that takes the reports of a consumer."""
        before = self.consumers.get(name, ConsumerState())
        state = ConsumerState(calls=before.calls, partial=before.partial)
        self.consumers[name] = state

        def hear(said: dict[str, Any]) -> None:
            with self._lock:
                match said["kind"]:
                    case "judged":
                        state.calls = before.calls + said["calls"]
                        state.partial = before.partial + said["partial"]
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
            before = self._before.get(said["query"], QueryState())
            state = QueryState(
                read=max(before.read, said["read"]),
                written=before.written + said["written"],
                batch=said["batch"],
                lag=said["lag"],
                state=said["state"],
                error=said["error"],
            )
            self.queries = {**self.queries, said["query"]: state}

    def forget_driver(self) -> None:
        """It was killed, or is about to start: the counts of its queries stay."""
        self.has_session = False
        self._before = self.queries
        self.queries = {name: replace(each, batch=-1, state="starting") for name, each in self.queries.items()}
