"""All topics of a stream, look after look: what they hold, how long they keep it, and how fast they grow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.abc import Clock
from penstock.observe.facts import PartitionFacts, TopicFacts
from penstock.observe.forecast import rate_per_s
from penstock.observe.samples import Samples
from penstock.observe.timeline import Timeline
from penstock.streams.kafka.groups import Place
from penstock.streams.kafka.survey import Survey
from penstock.streams.kafka.topics import TopicSummary

STARTS_AT_ONCE: Final = 600
"""The starts of so many partitions are asked for at every look; of more, those that are read, and the others now and
then, as starts move seldom."""
SELDOM_S: Final = 30.0
"""How often sizes are asked for, and the starts of many partitions."""
CONFIG_AGE_S: Final = 300.0
"""How old the settings of a topic may get before they are asked for again."""
CONFIGS_AT_ONCE: Final = 50
UNKNOWN_SIZES_S: Final = 600.0
"""How soon sizes are asked for again where nobody told them."""


AskSizes = Callable[[], dict[Place, int] | None]
"""Tells how many bytes each partition takes; None where that cannot be asked."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long a topic keeps its records."""

    retention_ms: int | None = None
    retention_bytes: int | None = None
    is_compacted: bool = False
    removes: bool = True
    """Whether records are removed for their age, or for their number: not where the topic is only compacted."""


class TopicSight:
    """What is known of the topics. Used by one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._survey: Survey | None = None
        self._ask_sizes: AskSizes = _no_sizes
        self._starts: dict[Place, int] = {}
        self._sizes: dict[Place, int] | None = None
        self._record_bytes: dict[Place, float] = {}
        """As it was when sizes were asked for: sizes are older than what is known of records."""
        self._starts_due_s = self._sizes_due_s = float("-inf")
        self._keeping: dict[str, tuple[Keeping, float]] = {}
        self._appended: dict[str, Samples] = {}
        self.ends: dict[Place, int] = {}
        self.timelines: dict[Place, Timeline] = {}

    def use(self, survey: Survey, ask_sizes: AskSizes) -> None:
        """Ask these from now on."""
        self._survey, self._ask_sizes = survey, ask_sizes

    def look(self, at_ms: int, read: Collection[Place] = ()) -> dict[str, TopicFacts]:
        """All topics now. `read` are those that groups read, whose starts matter. Raises BrokerUnavailableError."""
        assert self._survey is not None
        survey, now_s = self._survey, self._clock.monotonic_s()
        summaries = sorted(survey.topics(), key=lambda each: each.name)
        places = [(each.name, partition) for each in summaries for partition in each.partitions]
        ends = survey.ends(places)
        self._look_at_starts(survey, ends, read, now_s)
        self._look_at_sizes(ends, now_s)
        self._look_at_settings(survey, [each.name for each in summaries], now_s)
        self._remember(ends, at_ms)
        return {each.name: self._facts(each, at_ms) for each in summaries}

    def keeping(self, topic: str) -> Keeping | None:
        """How long a topic keeps its records; None when nobody could be asked."""
        known = self._keeping.get(topic)
        return None if known is None else known[0]

    def record_bytes(self, place: Place) -> float | None:
        """How many bytes a record of a partition takes on the disk; None when that is not known, or it has none."""
        return self._record_bytes.get(place)

    def _look_at_starts(self, survey: Survey, ends: Mapping[Place, int], read: Collection[Place], now_s: float) -> None:
        asked: Iterable[Place]
        if len(ends) <= STARTS_AT_ONCE or now_s >= self._starts_due_s:
            asked, self._starts_due_s = ends, now_s + SELDOM_S
        else:
            asked = [place for place in ends if place in read or place not in self._starts]
        self._starts |= survey.starts(asked)
        self._starts = {place: start for place, start in self._starts.items() if place in ends}

    def _look_at_sizes(self, ends: Mapping[Place, int], now_s: float) -> None:
        if now_s < self._sizes_due_s:
            return
        self._sizes = self._ask_sizes()
        self._record_bytes = {
            place: size_bytes / records
            for place, size_bytes in (self._sizes or {}).items()
            if (records := ends.get(place, 0) - self._starts.get(place, 0)) > 0
        }
        self._sizes_due_s = now_s + (UNKNOWN_SIZES_S if self._sizes is None else SELDOM_S)

    def _look_at_settings(self, survey: Survey, topics: list[str], now_s: float) -> None:
        there = set(topics)
        self._keeping = {topic: known for topic, known in self._keeping.items() if topic in there}
        old = [topic for topic, (_, asked_s) in self._keeping.items() if now_s - asked_s >= CONFIG_AGE_S]
        old.sort(key=lambda topic: self._keeping[topic][1])
        asked = [*(topic for topic in topics if topic not in self._keeping), *old[:CONFIGS_AT_ONCE]]
        for topic, settings in survey.configs(asked).items():
            self._keeping[topic] = (keeping_of(settings), now_s)

    def _remember(self, ends: dict[Place, int], at_ms: int) -> None:
        totals: dict[str, int] = {}
        for place, end in ends.items():
            totals[place[0]] = totals.get(place[0], 0) + end
            if place in self.ends and end < self.ends[place] and place[0] in self._appended:
                self._appended[place[0]].clear()  # the topic was made anew
            timeline = self.timelines.get(place)
            if timeline is None:
                timeline = self.timelines[place] = Timeline()
            timeline.look(at_ms, end)
        for topic, total in totals.items():
            self._appended.setdefault(topic, Samples()).add(at_ms, total)
        self._appended = {topic: each for topic, each in self._appended.items() if topic in totals}
        self.timelines = {place: each for place, each in self.timelines.items() if place in ends}
        self.ends = ends

    def _facts(self, summary: TopicSummary, at_ms: int) -> TopicFacts:
        keeping = self.keeping(summary.name) or Keeping()
        partitions = []
        for partition in summary.partitions:
            place = (summary.name, partition)
            end = self.ends.get(place)
            if end is None:  # it has no leader yet
                continue
            start = min(self._starts.get(place, 0), end)
            size_bytes = None if self._sizes is None else self._sizes.get(place)
            partitions.append(PartitionFacts(summary.name, partition, start, end, size_bytes))
        appended = self._appended.get(summary.name)
        return TopicFacts(
            summary.name,
            tuple(partitions),
            is_internal=summary.internal,
            retention_ms=keeping.retention_ms,
            retention_bytes=keeping.retention_bytes,
            is_compacted=keeping.is_compacted,
            rate_per_s=rate_per_s(appended.all()) if appended is not None else None,
        )


def _no_sizes() -> None:
    return None


def keeping_of(settings: Mapping[str, str | None]) -> Keeping:
    """What the settings of a topic, by Kafka's names, mean for how long it keeps its records."""
    policies = {each.strip() for each in (settings.get("cleanup.policy") or "delete").split(",")}
    return Keeping(
        retention_ms=_limit(settings.get("retention.ms")),
        retention_bytes=_limit(settings.get("retention.bytes")),
        is_compacted="compact" in policies,
        removes="delete" in policies,
    )


def _limit(text: str | None) -> int | None:
    """A number of which a negative one means none."""
    try:
        value = int(text or "-1")
    except ValueError:
        return None
    return None if value < 0 else value
