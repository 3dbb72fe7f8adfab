"""What each kind of rule reads out of a snapshot: for every subject a number, and the sentence that goes with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from penstock.observe.alerts.rules import Kind, Rule
from penstock.observe.alerts.watched import RUNNING, Watched, query_key, reader_key, topic_key
from penstock.observe.alerts.wording import count_text, duration_text, number_text, shown_name
from penstock.observe.facts import GroupFacts, PipelineFacts, Snapshot, TopicFacts


@dataclass(frozen=True, slots=True)
class Reading:
    """How it stands with one subject."""

    subject: str
    value: float | None
    """None: nobody knows at this moment, so nothing changes."""
    text: str = ""
    is_certain: bool = False
    """It holds whatever the threshold: a query that has failed will not get on by waiting."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A snapshot, with what is remembered of those before it."""

    snapshot: Snapshot
    watched: Watched
    now_s: float


def readings(rule: Rule, sight: Sight) -> Iterator[Reading]:
    """One for each subject that the rule is for. Not for stream_away, which is read from silence.

    A group and a pipeline of one name are one subject, which is as badly off as the worse of them.
    """
    worst: dict[str, Reading] = {}
    for reading in _READERS[rule.kind](sight):
        if rule.is_for(reading.subject):
            known = worst.get(reading.subject)
            worst[reading.subject] = reading if known is None else max(known, reading, key=_badness)
    yield from worst.values()


def is_watched(rule: Rule, topic: TopicFacts) -> bool:
    """Whether a rule about silence means this topic. Internal ones are silent for long: they are meant by name only."""
    return (
        rule.kind is Kind.TOPIC_SILENT
        and rule.is_for(topic.name)
        and (not topic.is_internal or rule.match == topic.name)
    )


def _lag_s(sight: Sight) -> Iterator[Reading]:
    for group in sight.snapshot.groups.values():
        if group.lag and group.lag_s is None:
            yield Reading(group.name, None)
        else:
            yield Reading(group.name, group.lag_s or 0.0, f"{_group(group)} {_behind(group)}{_trend(group)}")


def _lag(sight: Sight) -> Iterator[Reading]:
    for group in sight.snapshot.groups.values():
        yield Reading(group.name, float(group.lag), f"{_group(group)} {_behind(group)}{_trend(group)}")
    for pipeline in sight.snapshot.pipelines.values():
        text = f"pipeline {shown_name(pipeline.name)} is {count_text(pipeline.lag or 0, 'record')} behind"
        yield Reading(pipeline.name, None if pipeline.lag is None else float(pipeline.lag), text)


def _time_to_loss_s(sight: Sight) -> Iterator[Reading]:
    for group in sight.snapshot.groups.values():
        if group.time_to_loss_s is None:
            continue
        topic = min(group.readers, key=lambda each: _or_never(each.time_to_loss_s)).topic
        yield Reading(
            group.name,
            group.time_to_loss_s,
            f"{_group(group)} will lose records of {shown_name(topic)} in {duration_text(group.time_to_loss_s)}, when "
            f"retention overtakes it; it {_behind(group)}. Give it more workers, or raise the topic's retention now",
        )


def _letters_rate(sight: Sight) -> Iterator[Reading]:
    for place, arrivals in sight.watched.arrivals.items():
        rate = arrivals.per_minute
        bound = "" if sight.snapshot.letters[place].is_exact else "at most "
        come = f"{bound}{number_text(rate or 0.0)} dead letters a minute come to {shown_name(place)}"
        yield Reading(place, rate, f"{come}. See why: penstock dlq")


def _letters_waiting(sight: Sight) -> Iterator[Reading]:
    for place, facts in sight.snapshot.letters.items():
        bound = "" if facts.is_exact else "at most "
        text = f"{bound}{count_text(facts.waiting, 'dead letter')} in {shown_name(place)}: redrive or discard them"
        yield Reading(place, float(facts.waiting), text)


def _stalled(sight: Sight) -> Iterator[Reading]:
    for group in sight.snapshot.groups.values():
        still = [(sight.watched.still_s(reader_key(reader), sight.now_s), reader) for reader in group.readers]
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
    for pipeline in sight.snapshot.pipelines.values():
        yield _stalled_pipeline(pipeline, sight)


def _stalled_pipeline(pipeline: PipelineFacts, sight: Sight) -> Reading:
    name = f"pipeline {shown_name(pipeline.name)}"
    longest_s, longest_query = 0.0, ""
    for query in pipeline.queries:
        if query.state == "failed":
            why = f": {shown_name(query.error)}" if query.error else ""
            return Reading(pipeline.name, 0.0, f"{name}: query {shown_name(query.query)} has failed{why}", True)
        still_s = sight.watched.still_s(query_key(pipeline.name, query), sight.now_s)
        if query.state in RUNNING and still_s is not None and still_s >= longest_s:
            longest_s, longest_query = still_s, shown_name(query.query)
    ended = "" if pipeline.is_running else "; its process is gone without having said so"
    text = f"{name}: query {longest_query} has finished no batch for {duration_text(longest_s)}{ended}"
    return Reading(pipeline.name, longest_s, text)


def _topic_silent(sight: Sight) -> Iterator[Reading]:
    for topic in sight.snapshot.topics.values():
        still_s = sight.watched.still_s(topic_key(topic.name), sight.now_s)
        if still_s is not None:
            text = (
                f"nothing has been appended to {shown_name(topic.name)} for {duration_text(still_s)}: see its producers"
            )
            yield Reading(topic.name, still_s, text)


def _lost(sight: Sight) -> Iterator[Reading]:
    for group in sight.snapshot.groups.values():
        topics = ", ".join(sorted({shown_name(each.topic) for each in group.readers if each.lost}))
        yield Reading(
            group.name,
            float(group.lost),
            f"{count_text(group.lost, 'record')} of {topics} expired before {_group(group)} read them. They are gone; "
            "raise the retention, and see why the group was so far behind",
        )


def _nothing(_: Sight) -> Iterator[Reading]:
    yield from ()


_READERS: Final[dict[Kind, Callable[[Sight], Iterator[Reading]]]] = {
    Kind.LAG_S: _lag_s,
    Kind.LAG: _lag,
    Kind.TIME_TO_LOSS_S: _time_to_loss_s,
    Kind.LETTERS_RATE: _letters_rate,
    Kind.LETTERS_WAITING: _letters_waiting,
    Kind.STALLED: _stalled,
    Kind.TOPIC_SILENT: _topic_silent,
    Kind.LOST: _lost,
    Kind.STREAM_AWAY: _nothing,
}


def _group(group: GroupFacts) -> str:
    return f"group {shown_name(group.name)}"


def _behind(group: GroupFacts) -> str:
    seconds = f", {duration_text(group.lag_s)}" if group.lag_s is not None else ""
    return f"is {count_text(group.lag, 'record')}{seconds} behind"


def _trend(group: GroupFacts) -> str:
    if group.is_growing:
        return " and falls further back: it reads less than comes in"
    if group.time_to_drain_s is not None:
        return f" and will have caught up in {duration_text(group.time_to_drain_s)}"
    return ""


def _badness(reading: Reading) -> tuple[bool, float]:
    return reading.is_certain, -1.0 if reading.value is None else reading.value


def _or_never(time_s: float | None) -> float:
    return float("inf") if time_s is None else time_s
