"""What a judge remembers of the things it has looked at: since when each has not moved, and what came lately."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from penstock.observe.facts import LetterFacts, QueryFacts, ReaderFacts, Snapshot, TopicFacts

RATE_OVER_S: Final = 60.0
"""The time over which arrivals are counted, once it has been watched for so long."""
MOST_SAMPLES: Final = 1_000

RUNNING: Final = frozenset({"starting", "running", "waiting"})
"""States of a query in which it should get on."""


class Mark(msgspec.Struct):
    """Something that has stood at one place for a while."""

    place: int
    since_s: float
    """On the judge's own clock, which stands still while the stream is away."""


class Arrivals:
    """How many dead letters came to a place, out of how many waited there when it was looked at.

    Letters that are redriven or discarded make `waiting` go down, and do not count against those that come.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=MOST_SAMPLES)

    def add(self, at_ms: int, waiting: int) -> None:
        if self._samples and at_ms <= self._samples[-1][0]:
            self._samples.clear()  # the clock was set back: nothing can be said about the time between
        self._samples.append((at_ms, waiting))
        while len(self._samples) > 2 and at_ms - self._samples[1][0] >= RATE_OVER_S * 1000:
            self._samples.popleft()

    @property
    def per_minute(self) -> float | None:
        """None until there were two looks."""
        if len(self._samples) < 2:
            return None
        counts = [waiting for _, waiting in self._samples]
        came = sum(max(0, after - before) for before, after in itertools.pairwise(counts))
        return came * 60_000 / (self._samples[-1][0] - self._samples[0][0])


class Watched:
    """The memory itself. It holds what the latest snapshot has, and forgets what is gone."""

    def __init__(self) -> None:
        self.marks: dict[str, Mark] = {}
        self.arrivals: dict[str, Arrivals] = {}

    def see(self, snapshot: Snapshot, now_s: float, wants_topic: Callable[[TopicFacts], bool]) -> None:
        """Take in a snapshot that is good. `now_s` is the judge's clock."""
        marks: dict[str, Mark] = {}
        for group in snapshot.groups.values():
            for reader in group.readers:
                self._mark_reader(marks, reader, now_s)
        for topic in snapshot.topics.values():
            if wants_topic(topic):
                self._stand(marks, topic_key(topic.name), sum(int(each.end) for each in topic.partitions), now_s)
        for pipeline in snapshot.pipelines.values():
            for query in pipeline.queries:
                if query.state in RUNNING and (query.lag or not pipeline.is_running):
                    self._stand(marks, query_key(pipeline.name, query), query.batch_id, now_s)
        self.marks = marks
        self._see_letters(snapshot.letters, snapshot.at_ms)

    def still_s(self, key: str, now_s: float) -> float | None:
        """For how long it has not moved; None: it moves, or has nothing to do."""
        mark = self.marks.get(key)
        return None if mark is None else max(0.0, now_s - mark.since_s)

    def _mark_reader(self, marks: dict[str, Mark], reader: ReaderFacts, now_s: float) -> None:
        if reader.committed is not None:
            if reader.lag:
                self._stand(marks, reader_key(reader), int(reader.committed), now_s)
            return
        # It has committed nothing. Where it began is unknown, so what was there before it is not its lag; but when
        # records come that it does not commit either, it stands.
        if reader.member is None:
            return
        first_key = "first " + reader_key(reader)
        first = self.marks.get(first_key) or Mark(int(reader.end), now_s)
        marks[first_key] = first
        if int(reader.end) > first.place:
            self._stand(marks, reader_key(reader), -1, now_s)

    def _stand(self, marks: dict[str, Mark], key: str, place: int, now_s: float) -> None:
        known = self.marks.get(key)
        marks[key] = known if known is not None and known.place == place else Mark(place, now_s)

    def _see_letters(self, letters: Mapping[str, LetterFacts], at_ms: int) -> None:
        self.arrivals = {name: self.arrivals.get(name) or Arrivals() for name in letters}
        for name, facts in letters.items():
            self.arrivals[name].add(at_ms, facts.waiting)


def reader_key(reader: ReaderFacts) -> str:
    return f"group {reader.group} {reader.topic}/{reader.partition}"


def topic_key(topic: str) -> str:
    return f"topic {topic}"


def query_key(pipeline: str, query: QueryFacts) -> str:
    return f"pipeline {pipeline} {query.query}"
