"""All topics of a stream, look by look: their records, their retention, and their growth."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.abc import Clock, CountingSurvey, Survey
from penstock.model.administration import PartitionId, RecordCounts, TopicSummary
from penstock.observe.facts import PartitionFacts, TopicFacts
from penstock.observe.forecast import Samples, rate_per_s
from penstock.observe.waiting import Timeline

STARTS_AT_ONCE: Final = 600
"""The starts of this many partitions are asked for at every look; of more, those that are read, and the others now and
then, as starts move seldom."""
SELDOM_S: Final = 30.0
"""How often sizes are asked for, and the starts of many partitions."""
CONFIG_AGE_S: Final = 300.0
"""How old the settings of a topic may get before they are asked for again."""
CONFIGS_AT_ONCE: Final = 50
UNKNOWN_SIZES_S: Final = 600.0
"""How soon sizes are asked for again after a refusal."""


AskSizes = Callable[[], dict[PartitionId, int] | None]
"""Returns the size of each partition in bytes; None where it cannot be asked."""


@dataclass(frozen=True, slots=True)
class TopicRetention:
    retention_ms: int | None = None
    retention_bytes: int | None = None
    is_compacted: bool = False
    removes: bool = True
    """Whether records are removed by age or size: not where the topic is only compacted."""


class TopicObserver:
    """What is known of the topics. Used by one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._survey: Survey | None = None
        self._ask_sizes: AskSizes = _no_sizes
        self.is_counted = True
        """Whether pointers count records."""
        self._counts: Mapping[PartitionId, RecordCounts] = {}
        """What the stream counts, where pointers do not."""
        self._starts: dict[PartitionId, int] = {}
        self._sizes: dict[PartitionId, int] | None = None
        self._record_bytes: dict[PartitionId, float] = {}
        """The average size of a record when sizes were last asked for."""
        self._starts_due_s = self._sizes_due_s = float("-inf")
        self._retention: dict[str, tuple[TopicRetention, float]] = {}
        self._appended: dict[str, Samples] = {}
        self.ends: Mapping[PartitionId, int] = {}
        self.timelines: dict[PartitionId, Timeline] = {}

    def use(self, survey: Survey, ask_sizes: AskSizes, *, is_counted: bool = True) -> None:
        """`is_counted`: the stream has `Feature.OFFSETS`."""
        self._survey, self._ask_sizes, self.is_counted = survey, ask_sizes, is_counted

    def look(self, at_ms: int, read: Collection[PartitionId] = ()) -> dict[str, TopicFacts]:
        """All topics now. `read` are those that groups read, whose starts matter. Raises BrokerUnavailableError."""
        assert self._survey is not None
        survey, now_s = self._survey, self._clock.monotonic_s()
        summaries = sorted(survey.topics(), key=lambda each: each.name)
        places = [(each.name, partition) for each in summaries for partition in each.partitions]
        ends = survey.ends(places)
        if not self.is_counted and isinstance(survey, CountingSurvey):
            self._counts = survey.record_counts(ends)
        self._look_at_starts(survey, ends, read, now_s)
        self._look_at_sizes(ends, now_s)
        self._look_at_settings(survey, [each.name for each in summaries], now_s)
        self._remember(ends, at_ms)
        return {each.name: self._facts(each, at_ms) for each in summaries}

    def retention(self, topic: str) -> TopicRetention | None:
        """The retention of a topic; None when it is unknown."""
        known = self._retention.get(topic)
        return None if known is None else known[0]

    def record_bytes(self, place: PartitionId) -> float | None:
        """The mean size of a record on disk; None when it is unknown, or the partition is empty."""
        return self._record_bytes.get(place)

    def _look_at_starts(
        self, survey: Survey, ends: Mapping[PartitionId, int], read: Collection[PartitionId], now_s: float
    ) -> None:
        asked: Iterable[PartitionId]
        if len(ends) <= STARTS_AT_ONCE or now_s >= self._starts_due_s:
            asked, self._starts_due_s = ends, now_s + SELDOM_S
        else:
            asked = [place for place in ends if place in read or place not in self._starts]
        self._starts |= survey.starts(asked)
        self._starts = {place: start for place, start in self._starts.items() if place in ends}

    def _look_at_sizes(self, ends: Mapping[PartitionId, int], now_s: float) -> None:
        if now_s < self._sizes_due_s:
            return
        self._sizes = self._ask_sizes()
        self._record_bytes = {
            place: size_bytes / records
            for place, size_bytes in (self._sizes or {}).items()
            if self.is_counted and (records := ends.get(place, 0) - self._starts.get(place, 0)) > 0
        }
        self._sizes_due_s = now_s + (UNKNOWN_SIZES_S if self._sizes is None else SELDOM_S)

    def _look_at_settings(self, survey: Survey, topics: list[str], now_s: float) -> None:
        there = set(topics)
        self._retention = {topic: known for topic, known in self._retention.items() if topic in there}
        old = [topic for topic, (_, asked_s) in self._retention.items() if now_s - asked_s >= CONFIG_AGE_S]
        old.sort(key=lambda topic: self._retention[topic][1])
        asked = [*(topic for topic in topics if topic not in self._retention), *old[:CONFIGS_AT_ONCE]]
        for topic, settings in survey.configs(asked).items():
            self._retention[topic] = (retention_of(settings), now_s)

    def _remember(self, ends: Mapping[PartitionId, int], at_ms: int) -> None:
        totals: dict[str, int] = {}
        for place, end in ends.items():
            appended = self._appended_in(place, end)
            if appended is not None:
                totals[place[0]] = totals.get(place[0], 0) + appended
            if place in self.ends and end < self.ends[place] and place[0] in self._appended:
                self._appended[place[0]].clear()  # the topic was recreated
            timeline = self.timelines.get(place)
            if timeline is None:
                timeline = self.timelines[place] = Timeline()
            timeline.look(at_ms, end)
        for topic, total in totals.items():
            self._appended.setdefault(topic, Samples()).add(at_ms, total)
        self._appended = {topic: each for topic, each in self._appended.items() if topic in totals}
        self.timelines = {place: each for place, each in self.timelines.items() if place in ends}
        self.ends = ends

    def _appended_in(self, place: PartitionId, end: int) -> int | None:
        """How many records a partition has ever got, more or less; None where nothing counts them."""
        if self.is_counted:
            return end
        counts = self._counts.get(place)
        return None if counts is None else counts.appended

    def _facts(self, summary: TopicSummary, at_ms: int) -> TopicFacts:
        known = self.retention(summary.name)
        retention = known or TopicRetention()
        partitions = []
        for partition in summary.partitions:
            place = (summary.name, partition)
            end = self.ends.get(place)
            if end is None:  # it has no leader yet
                continue
            start = min(self._starts.get(place, 0), end)
            size_bytes = None if self._sizes is None else self._sizes.get(place)
            counts = self._counts.get(place)
            stored = None if counts is None else counts.stored
            partitions.append(
                PartitionFacts(
                    summary.name, partition, start, end, size_bytes, is_counted=self.is_counted, stored=stored
                )
            )
        appended = self._appended.get(summary.name)
        return TopicFacts(
            summary.name,
            tuple(partitions),
            is_internal=summary.internal,
            retention_ms=retention.retention_ms,
            retention_bytes=retention.retention_bytes,
            is_compacted=retention.is_compacted,
            is_retention_known=known is not None,
            rate_per_s=rate_per_s(appended.all()) if appended is not None else None,
        )


def _no_sizes() -> None:
    return None


def retention_of(settings: Mapping[str, str | None]) -> TopicRetention:
    """The retention that a topic's settings, by Kafka's names, amount to."""
    policies = {each.strip() for each in (settings.get("cleanup.policy") or "delete").split(",")}
    return TopicRetention(
        retention_ms=_limit(settings.get("retention.ms")),
        retention_bytes=_limit(settings.get("retention.bytes")),
        is_compacted="compact" in policies,
        removes="delete" in policies,
    )


def _limit(text: str | None) -> int | None:
    """A number; negative means no limit."""
    try:
        value = int(text or "-1")
    except ValueError:
        return None
    return None if value < 0 else value
