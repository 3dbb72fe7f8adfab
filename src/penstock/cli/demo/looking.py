"""Looking at the log while the demo runs: how much there is, and how much of it is done."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any, Final

from penstock.abc import CheckpointStore
from penstock.cli.demo.events import FRAUD_GROUP, LETTERS, PAGE_EVENTS, TRANSACTIONS, USE_GROUP, VERDICTS
from penstock.cli.demo.live import Live
from penstock.consuming.defaults import default_store
from penstock.errors import PenstockError
from penstock.model.checkpoint import CheckpointKey
from penstock.serde import Topic
from penstock.streams import Connection, connect

CONSUMED: Final[Mapping[str, int]] = {topic.name: topic.partitions or 1 for topic in (TRANSACTIONS, PAGE_EVENTS)}
"""The topics that consumers share, and their partitions."""

_EVERY_S: Final = 0.5
_EVERY_AT_FIRST_S: Final = 0.1


class Look:
    """One connection to look through."""

    def __init__(self, url: str) -> None:
        self._stack = contextlib.ExitStack()
        self.connection: Connection = self._stack.enter_context(connect(url, client_id="demo-look"))
        self._store: CheckpointStore = default_store(self.connection, in_the_stream=False)
        self._stack.callback(self._store.close)

    def close(self) -> None:
        self._stack.close()

    def records(self, topic: str) -> int:
        """How many records a topic has; 0 for one that is not there."""
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
        summaries = {each.name: each for each in self.connection.administration.all()}
        if topic not in summaries:
            return {}
        partitions = self.connection.administration.partitions_of(topic)
        return self.connection.administration.ends(topic, partitions)


class Looker:
    """Looks again and again, in a thread of its own, and tells `live`. While the broker is away it sees nothing."""

    def __init__(self, url: str, live: Live) -> None:
        self._look = Look(url)
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
                continue  # the broker is away: it has been killed, or is being stopped
            live.saw(**seen)
