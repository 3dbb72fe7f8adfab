"""All groups of a stream, look by look: their progress, their rates, and when they will have caught up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.abc import Survey
from penstock.model.administration import GroupMembers, PartitionId
from penstock.observe import forecast
from penstock.observe.facts import GroupFacts, PartitionFacts, ReaderFacts, TopicFacts
from penstock.observe.forecast import Samples
from penstock.observe.library_groups import LibraryGroup
from penstock.observe.topics import TopicObserver
from penstock.observe.waiting import NOTHING_WAITS, Question, Reading, Wait, Waiting

_MOST_STEPS: Final = 8
"""The start of a partition moves by whole segments. Its rate is that of the last few steps."""


@dataclass(slots=True)
class _Reader:
    committed: Samples = field(default_factory=Samples)
    finished: Samples = field(default_factory=Samples)
    """How many records it has finished: by its pointers, or by its checkpoints where those do not count records."""
    lag: Samples = field(default_factory=Samples)
    lag_s: Samples = field(default_factory=Samples)
    end: int = -1

    def clear(self) -> None:
        for samples in (self.committed, self.finished, self.lag, self.lag_s):
            samples.clear()


@dataclass(slots=True)
class _Group:
    lag: Samples = field(default_factory=Samples)
    """In records, or in seconds where those are not counted."""
    ends: Samples = field(default_factory=Samples)
    """The sum of the ends of its partitions, which grows while records are appended."""
    readers: dict[PartitionId, _Reader] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Standing:
    """A group at this look, before any forecast."""

    state: str
    members: int
    committed: Mapping[PartitionId, int]
    owners: Mapping[PartitionId, str]
    is_library: bool
    stores: tuple[str, ...] = ()
    finished: Mapping[PartitionId, int] = field(default_factory=dict)
    """How many records were finished, by the checkpoints of the library's groups."""

    @property
    def is_idle(self) -> bool:
        """Without members: what it has committed does not move, unless it is reset."""
        return self.members == 0


class GroupObserver:
    """What is known of the groups. Used by one thread at a time."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._waiting = Waiting()
        self._steps: dict[PartitionId, list[forecast.Sample]] = {}
        self._survey: Survey | None = None

    @property
    def read(self) -> Collection[PartitionId]:
        """The partitions that groups read, as of the last look."""
        return self._steps.keys()

    def use(self, survey: Survey) -> None:
        self._survey = survey

    def look(
        self,
        at_ms: int,
        topics: Mapping[str, TopicFacts],
        observer: TopicObserver,
        library: Mapping[str, LibraryGroup],
        read: Reading,
    ) -> dict[str, GroupFacts]:
        """All groups now, including those that only a checkpoint store knows. Raises BrokerUnavailableError."""
        assert self._survey is not None
        partitions = {(each.topic, each.partition): each for topic in topics.values() for each in topic.partitions}
        standings = self._standings(self._survey, library)
        self._groups = {name: self._groups.get(name) or _Group() for name in standings}
        self._step(partitions, {place for each in standings.values() for place in each.committed}, at_ms)
        questions = [
            question
            for name, standing in standings.items()
            for question in self._note(self._groups[name], standing, partitions, at_ms)
        ]
        waits = self._waiting.answer(questions, observer.timelines, at_ms, read)
        return {
            name: self._facts(name, standing, topics, partitions, observer, waits, at_ms)
            for name, standing in sorted(standings.items())
        }

    def _standings(self, survey: Survey, library: Mapping[str, LibraryGroup]) -> dict[str, _Standing]:
        summaries = {each.name: each.state for each in survey.groups()}
        described = survey.members(summaries)
        committed = survey.committed(summaries)
        found: dict[str, _Standing] = {}
        for name in {*summaries, *library}:
            own = library.get(name)
            kafka = described.get(name) or GroupMembers(summaries.get(name, "empty"), ())
            owners = {place: each.client_id for each in kafka.members for place in each.assignment}
            offsets: dict[PartitionId, int] = dict(committed.get(name, {}))
            if own is not None:
                offsets |= own.starts  # the checkpoint decides; Kafka's offset is informative
                if not kafka.members and own.members:
                    owners = dict(own.owners)
            members = len(kafka.members) or (own.members if own is not None else 0)
            state = kafka.state if kafka.members or not members else "stable"
            if not offsets and not owners and not members and own is None and state == "dead":
                continue
            stores = own.stores if own is not None else ()
            finished = own.delivered if own is not None else {}
            found[name] = _Standing(state, members, offsets, owners, own is not None, stores, finished)
        return found

    def _note(
        self, group: _Group, standing: _Standing, partitions: Mapping[PartitionId, PartitionFacts], at_ms: int
    ) -> list[Question]:
        """Remember the group's progress. Returns the readers whose next record is to be looked up."""
        group.readers = {
            place: group.readers.get(place) or _Reader() for place in standing.committed if place in partitions
        }
        questions = []
        total = 0
        for place, reader in group.readers.items():
            partition, committed = partitions[place], standing.committed[place]
            before = reader.committed.last
            if before is not None and (committed < before or (committed != before and standing.is_idle)):
                reader.clear()  # it was reset, which says nothing about how fast it reads
                group.lag.clear()
            lag = _lag(committed, partition)
            stands_still = before == committed and reader.end == partition.end
            reader.committed.add(at_ms, committed)
            finished = committed if partition.is_counted else standing.finished.get(place)
            if finished is not None:
                reader.finished.add(at_ms, finished)
            reader.lag.add(at_ms, lag)
            reader.end = partition.end
            total += lag
            if lag:
                pointer = _next_pointer(committed, partition)
                questions.append(Question(place, pointer, partition.end, stands_still, partition.start))
        if all(partitions[place].is_counted for place in group.readers):
            group.lag.add(at_ms, total)
        group.ends.add(at_ms, sum(each.end for each in group.readers.values()))
        return questions

    def _facts(
        self,
        name: str,
        standing: _Standing,
        topics: Mapping[str, TopicFacts],
        partitions: Mapping[PartitionId, PartitionFacts],
        observer: TopicObserver,
        waits: Mapping[tuple[PartitionId, int], Wait],
        at_ms: int,
    ) -> GroupFacts:
        group = self._groups[name]
        readers = []
        read = {topic for topic, _ in (*standing.committed, *standing.owners)} & topics.keys()
        for place in sorted((topic, each.partition) for topic in read for each in topics[topic].partitions):
            partition, member = partitions[place], standing.owners.get(place)
            reader = group.readers.get(place)
            if reader is None:
                readers.append(
                    ReaderFacts(
                        name,
                        *place,
                        None,
                        partition.start,
                        partition.end,
                        member,
                        is_counted=partition.is_counted,
                        stored=partition.stored,
                    )
                )
                continue
            committed = standing.committed[place]
            wait = waits.get((place, _next_pointer(committed, partition)), NOTHING_WAITS)
            reader.lag_s.add(at_ms, wait.lag_s)
            readers.append(
                ReaderFacts(
                    name,
                    *place,
                    committed,
                    partition.start,
                    partition.end,
                    member,
                    lag_s=wait.lag_s,
                    time_to_loss_s=self._loss_s(standing, reader, partition, committed, wait, observer, at_ms),
                    lost=max(0, partition.start - committed) if partition.is_counted else int(wait.is_after_loss),
                    is_counted=partition.is_counted,
                    stored=partition.stored,
                    is_drained=wait.is_nothing and not partition.is_counted,
                )
            )
        lag: float = sum(each.lag or 0 for each in readers)
        append_rate = sum(topics[topic].rate_per_s or 0.0 for topic in {topic for topic, _ in group.readers})
        if not all(each.is_counted for each in readers):
            lag = max((each.lag_s for each in readers if each.lag_s is not None), default=0.0)
            group.lag.add(at_ms, lag)
            append_rate = forecast.time_appended_per_s(group.ends.all())
        trend = forecast.trend_per_s(group.lag.all())
        read_rates = [forecast.rate_per_s(each.finished.all()) for each in group.readers.values()]
        known_rates = [each for each in read_rates if each is not None]
        return GroupFacts(
            name,
            standing.state,
            standing.members,
            tuple(readers),
            is_library=standing.is_library,
            stores=standing.stores,
            rate_per_s=sum(known_rates) if known_rates else None,
            time_to_drain_s=forecast.time_to_drain_s(lag, trend),
            is_growing=forecast.is_growing(lag, trend, append_rate),
        )

    def _loss_s(
        self,
        standing: _Standing,
        reader: _Reader,
        partition: PartitionFacts,
        committed: int,
        wait: Wait,
        observer: TopicObserver,
        at_ms: int,
    ) -> float | None:
        lag = _lag(committed, partition)
        if not lag or wait.is_nothing:
            return None
        if wait.is_after_loss or (partition.is_counted and committed < partition.start):
            return 0.0  # it is losing records now
        retention, place = observer.retention(partition.topic), (partition.topic, partition.partition)
        record_bytes = observer.record_bytes(place)
        lag_trend = forecast.trend_per_s(reader.lag.all())
        by_pace = None
        is_size_unknown = retention is not None and retention.retention_bytes is not None and record_bytes is None
        if retention is None or is_size_unknown or not partition.is_counted:
            distance = committed - partition.start
            by_pace = forecast.loss_by_pace_s(
                distance, self._pace(place, at_ms), forecast.rate_per_s(reader.committed.all())
            )
        if retention is None:
            return by_pace
        if not retention.removes:
            return None
        ageing = 1.0 if standing.is_idle else forecast.trend_per_s(reader.lag_s.all())
        return forecast.soonest_s(
            (
                forecast.loss_by_age_s(wait.age_s, ageing, retention.retention_ms),
                forecast.loss_by_size_s(lag, lag_trend, record_bytes, retention.retention_bytes),
                by_pace,
            )
        )

    def _step(self, partitions: Mapping[PartitionId, PartitionFacts], read: set[PartitionId], at_ms: int) -> None:
        """Remember the starts of the partitions that are read."""
        kept = {}
        for place in read & partitions.keys():
            steps, start = self._steps.get(place, []), partitions[place].start
            if steps and (start < steps[-1][1] or at_ms < steps[-1][0]):
                steps = []
            if not steps or start > steps[-1][1]:
                steps = [*steps, (at_ms, float(start))][-_MOST_STEPS:]
            kept[place] = steps
        self._steps = kept

    def _pace(self, place: PartitionId, at_ms: int) -> float | None:
        """How fast a partition's start moves. If its last step took longer than usual, the rate drops."""
        steps = self._steps.get(place, [])
        if len(steps) < 3:
            return None
        (first_ms, first), (last_ms, last) = steps[1], steps[-1]
        usual_ms = (last_ms - steps[0][0]) / (len(steps) - 1)
        until_ms = at_ms if at_ms - last_ms > usual_ms else last_ms
        return None if until_ms <= first_ms else (last - first) / (until_ms - first_ms) * 1000


def _lag(committed: int, partition: PartitionFacts) -> int:
    """How many pointers it is behind."""
    return max(0, partition.end - max(committed, partition.start))


def _next_pointer(committed: int, partition: PartitionFacts) -> int:
    """Where its next record is looked for. A start after it is a loss only where pointers count records."""
    return max(committed, partition.start) if partition.is_counted else committed
