"""What each kind of rule reads from a snapshot: a value for every subject, and a sentence about it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.model.text import LONGEST_ERROR, count_text, duration_text, number_text, shown_name
from penstock.observe.alerts.rules import Rule, RuleKind
from penstock.observe.captures import loss_remedy
from penstock.observe.facts import (
    DEAD,
    CaptureFacts,
    GroupFacts,
    LetterFacts,
    PipelineFacts,
    QueryFacts,
    ReaderFacts,
    Snapshot,
    TopicFacts,
)
from penstock.observe.pipelines import ACTIVE_STATES

RATE_OVER_S: Final = 60.0
"""The time over which arrivals are counted, once it has been watched for that long."""
MOST_SAMPLES: Final = 1_000

RUNNING: Final = ACTIVE_STATES | {DEAD}
"""States in which a query should make progress, or should have."""


class Mark(msgspec.Struct):
    place: int | str
    """A number that JSON cannot hold is text, such as a pointer of more than 64 bits."""
    since_s: float
    """On the evaluator's clock, which stops while the stream is away."""


class Arrivals:
    """How many dead letters arrive in a store, from how many wait there at each look.

    Redriven and discarded letters lower `waiting`, and do not count against arrivals.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=MOST_SAMPLES)

    def add(self, at_ms: int, waiting: int) -> None:
        if self._samples and at_ms <= self._samples[-1][0]:
            self._samples.clear()  # the clock was set back: the time between is unknown
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
    """The memory itself. It holds what the latest snapshot has, and forgets the rest."""

    def __init__(self) -> None:
        self.marks: dict[str, Mark] = {}
        self.arrivals: dict[str, Arrivals] = {}

    def see(self, snapshot: Snapshot, now_s: float, wants_topic: Callable[[TopicFacts], bool]) -> None:
        """Take in a snapshot without a problem. `now_s` is the evaluator's clock."""
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
            if reader.is_behind:
                self._stand(marks, reader_key(reader), int(reader.committed), now_s)
            return
        # It has committed nothing. Where it starts is unknown, so earlier records are not its lag; but if new records
        # arrive that it does not commit either, it is stalled.
        if reader.member is None:
            return
        first_key = "first " + reader_key(reader)
        first = self.marks.get(first_key) or Mark(_stored(reader.end), now_s)
        marks[first_key] = first
        if _stored(reader.end) != first.place:
            self._stand(marks, reader_key(reader), -1, now_s)

    def _stand(self, marks: dict[str, Mark], key: str, place: int, now_s: float) -> None:
        known = self.marks.get(key)
        marks[key] = known if known is not None and known.place == _stored(place) else Mark(_stored(place), now_s)

    def _see_letters(self, letters: Mapping[str, LetterFacts], at_ms: int) -> None:
        self.arrivals = {name: self.arrivals.get(name) or Arrivals() for name in letters}
        for name, facts in letters.items():
            self.arrivals[name].add(at_ms, facts.waiting)


def _stored(place: int) -> int | str:
    return place if place < 1 << 63 else str(place)


def reader_key(reader: ReaderFacts) -> str:
    return f"group {reader.group} {reader.topic}/{reader.partition}"


def topic_key(topic: str) -> str:
    return f"topic {topic}"


def query_key(pipeline: str, query: QueryFacts) -> str:
    return f"pipeline {pipeline} {query.query}"


@dataclass(frozen=True, slots=True)
class Reading:
    subject: str
    value: float | None
    """None: unknown at this moment, so nothing changes."""
    text: str = ""
    is_certain: bool = False
    """It holds whatever the threshold: a failed query does not recover by waiting."""


@dataclass(frozen=True, slots=True)
class RuleInput:
    """A snapshot, with what is remembered of earlier ones."""

    snapshot: Snapshot
    watched: Watched
    now_s: float


def readings(rule: Rule, given: RuleInput) -> Iterator[Reading]:
    """One reading per subject of the rule. Not for stream_away, which is read from missing snapshots.

    A group, a pipeline and a capture of the same name are one subject, with the worst of their values.
    """
    worst: dict[str, Reading] = {}
    worse = min if rule.kind.is_worse_when_lower else max
    for reading in _READERS[rule.kind](given):
        if rule.is_for(reading.subject):
            known = worst.get(reading.subject)
            worst[reading.subject] = reading if known is None else worse(known, reading, key=_badness)
    yield from worst.values()


def unusable(rules: Iterable[Rule], snapshot: Snapshot) -> str | None:
    """Which rules can never fire on this stream, and what to use instead; None: all can."""
    names = ", ".join(shown_name(rule.name) for rule in rules if rule.kind is RuleKind.LAG)
    if snapshot.is_counted or not names or snapshot.problem is not None:
        return None
    return (
        f"pointers of this stream do not count records, so the lag of a group in records is mostly unknown, and these "
        f"rules may never fire: {names}. Use rules of kind {RuleKind.LAG_S.value} instead"
    )


def is_watched(rule: Rule, topic: TopicFacts) -> bool:
    """Whether a rule about silence covers this topic. Internal topics are often silent: they must be named."""
    return (
        rule.kind is RuleKind.TOPIC_SILENT
        and rule.is_for(topic.name)
        and (not topic.is_internal or rule.match == topic.name)
    )


def _lag_s(given: RuleInput) -> Iterator[Reading]:
    for group in given.snapshot.groups.values():
        if group.is_behind and group.lag_s is None:
            yield Reading(group.name, None)
        else:
            yield Reading(group.name, group.lag_s or 0.0, f"{_group(group)} {_behind(group)}{_trend(group)}")


def _lag(given: RuleInput) -> Iterator[Reading]:
    for group in given.snapshot.groups.values():
        lag = None if group.lag is None else float(group.lag)
        yield Reading(group.name, lag, f"{_group(group)} {_behind(group)}{_trend(group)}")
    for pipeline in given.snapshot.pipelines.values():
        text = f"pipeline {shown_name(pipeline.name)} is {count_text(pipeline.lag or 0, 'record')} behind"
        yield Reading(pipeline.name, None if pipeline.lag is None else float(pipeline.lag), text)


def _time_to_loss_s(given: RuleInput) -> Iterator[Reading]:
    for group in given.snapshot.groups.values():
        if group.time_to_loss_s is None:
            continue
        topic = min(group.readers, key=lambda each: _or_never(each.time_to_loss_s)).topic
        yield Reading(
            group.name,
            group.time_to_loss_s,
            f"{_group(group)} will lose records of {shown_name(topic)} in {duration_text(group.time_to_loss_s)}, when "
            f"retention overtakes it; it {_behind(group)}. Give it more workers, or raise the topic's retention now",
        )
    yield from _capture_losses(given)


def _capture_losses(given: RuleInput) -> Iterator[Reading]:
    for capture in given.snapshot.captures.values():
        if capture.time_to_loss_s is not None:
            yield Reading(
                capture.name,
                capture.time_to_loss_s,
                f"in {duration_text(capture.time_to_loss_s)}, {shown_name(capture.source)} will remove changes that "
                f"capture {shown_name(capture.name)} ({capture.phase}) has not read: {loss_remedy(capture.source)}",
            )


def _letters_rate(given: RuleInput) -> Iterator[Reading]:
    for place, arrivals in given.watched.arrivals.items():
        rate = arrivals.per_minute
        bound = "" if given.snapshot.letters[place].is_exact else "at most "
        come = f"{bound}{number_text(rate or 0.0)} dead letters a minute arrive in {shown_name(place)}"
        yield Reading(place, rate, f"{come}. See why: penstock dlq")


def _letters_waiting(given: RuleInput) -> Iterator[Reading]:
    for place, facts in given.snapshot.letters.items():
        bound = "" if facts.is_exact else "at most "
        text = f"{bound}{count_text(facts.waiting, 'dead letter')} in {shown_name(place)}: redrive or discard them"
        yield Reading(place, float(facts.waiting), text)


def _stalled(given: RuleInput) -> Iterator[Reading]:
    for group in given.snapshot.groups.values():
        still = [(given.watched.still_s(reader_key(reader), given.now_s), reader) for reader in group.readers]
        longest_s, reader = max(
            ((still_s, reader) for still_s, reader in still if still_s is not None),
            key=lambda each: each[0],
            default=(0.0, None),
        )
        where = f"{shown_name(reader.topic)}/{reader.partition}" if reader is not None else ""
        nobody = ". It has no members: start its consumers" if group.members == 0 else ""
        yield Reading(
            group.name,
            longest_s,
            f"{_group(group)} has committed nothing in {where} for {duration_text(longest_s)} "
            f"and {_behind(group)}{nobody}",
        )
    for pipeline in given.snapshot.pipelines.values():
        yield _stalled_pipeline(pipeline, given)
    for capture in given.snapshot.captures.values():
        yield _stalled_capture(capture, given.snapshot.at_ms)


def _stalled_pipeline(pipeline: PipelineFacts, given: RuleInput) -> Reading:
    name = f"pipeline {shown_name(pipeline.name)}"
    longest_s, longest_query = 0.0, ""
    for query in pipeline.queries:
        if query.state == "failed":
            why = f": {shown_name(query.error, LONGEST_ERROR)}" if query.error else ""
            return Reading(pipeline.name, 0.0, f"{name}: query {shown_name(query.query)} has failed{why}", True)
        still_s = given.watched.still_s(query_key(pipeline.name, query), given.now_s)
        if query.state in RUNNING and still_s is not None and still_s >= longest_s:
            longest_s, longest_query = still_s, shown_name(query.query)
    ended = "" if pipeline.is_running else "; its process ended without reporting it"
    text = f"{name}: query {longest_query} has finished no batch for {duration_text(longest_s)}{ended}"
    return Reading(pipeline.name, longest_s, text)


def _stalled_capture(capture: CaptureFacts, at_ms: int) -> Reading:
    name = f"capture {shown_name(capture.name)}"
    why = f": {shown_name(capture.error, LONGEST_ERROR)}" if capture.error else ""
    if capture.phase == "failed":
        return Reading(capture.name, 0.0, f"{name} has failed{why}", True)
    silent_s = max(0.0, (at_ms - capture.at_ms) / 1000) if capture.phase in (DEAD, "waiting") else 0.0
    return Reading(capture.name, silent_s, f"{name} has captured nothing for {duration_text(silent_s)}{why}: start it")


def _topic_silent(given: RuleInput) -> Iterator[Reading]:
    for topic in given.snapshot.topics.values():
        still_s = given.watched.still_s(topic_key(topic.name), given.now_s)
        if still_s is not None:
            text = (
                f"nothing has been appended to {shown_name(topic.name)} for {duration_text(still_s)}: see its producers"
            )
            yield Reading(topic.name, still_s, text)


def _lost(given: RuleInput) -> Iterator[Reading]:
    for group in given.snapshot.groups.values():
        topics = ", ".join(sorted({shown_name(each.topic) for each in group.readers if each.lost}))
        how_many = count_text(group.lost, "record") if group.is_counted else "records"
        yield Reading(
            group.name,
            float(group.lost),
            f"{how_many} of {topics} expired before {_group(group)} read them. They are gone; "
            "raise the retention, and see why the group was so far behind",
        )
    yield from _lost_by_captures(given)


def _lost_by_captures(given: RuleInput) -> Iterator[Reading]:
    for capture in given.snapshot.captures.values():
        why = shown_name(capture.error or "", LONGEST_ERROR)
        yield Reading(capture.name, float(capture.is_lost), f"capture {shown_name(capture.name)} lost changes: {why}")


def _nothing(_: RuleInput) -> Iterator[Reading]:
    yield from ()


_READERS: Final[dict[RuleKind, Callable[[RuleInput], Iterator[Reading]]]] = {
    RuleKind.LAG_S: _lag_s,
    RuleKind.LAG: _lag,
    RuleKind.TIME_TO_LOSS_S: _time_to_loss_s,
    RuleKind.LETTERS_RATE: _letters_rate,
    RuleKind.LETTERS_WAITING: _letters_waiting,
    RuleKind.STALLED: _stalled,
    RuleKind.TOPIC_SILENT: _topic_silent,
    RuleKind.LOST: _lost,
    RuleKind.STREAM_AWAY: _nothing,
}


def _group(group: GroupFacts) -> str:
    return f"group {shown_name(group.name)}"


def _behind(group: GroupFacts) -> str:
    told = [] if group.lag is None else [count_text(group.lag, "record")]
    if group.lag_s is not None:
        told.append(duration_text(group.lag_s))
    return f"is {', '.join(told)} behind" if told else "is behind"


def _trend(group: GroupFacts) -> str:
    if group.is_growing:
        return " and falls further behind: it reads less than arrives"
    if group.time_to_drain_s is not None:
        return f" and will have caught up in {duration_text(group.time_to_drain_s)}"
    return ""


def _badness(reading: Reading) -> tuple[bool, float]:
    return reading.is_certain, -1.0 if reading.value is None else reading.value


def _or_never(time_s: float | None) -> float:
    return float("inf") if time_s is None else time_s
