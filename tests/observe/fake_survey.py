"""A stream that a test makes up, as `penstock.observe` asks for it, and partitions of the real storage engine in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.abc import Clock
from penstock.log.partition import PartitionLog
from penstock.model.administration import GroupMembers, GroupSummary, Member, PartitionId, RecordTime, TopicSummary
from penstock.observe.facts import GroupFacts, TopicFacts
from penstock.observe.groups import GroupObserver
from penstock.observe.library_groups import LibraryGroup
from penstock.observe.topics import TopicObserver
from tests.log.engine import records_from


class FakeStream:
    """One partition of one topic, and groups that read it. A test sets what is so; `look` gives what is told of it."""

    def __init__(
        self,
        clock: Clock,
        config: Mapping[str, str] | None = None,
        log: PartitionLog | None = None,
        *,
        is_counted: bool = True,
    ) -> None:
        self.clock = clock
        self.config: dict[str, str | None] | None = dict(config or {})
        self.log = log
        self.start = self.end = 0
        self.size_bytes: int | None = None
        self.committed: dict[str, int] = {}
        self.members: dict[str, int] = {}
        self.times: dict[int, int] = {}
        """The timestamps of the records, by pointer. While it is empty, reading takes too long to tell anything."""
        self.expired_before = 0
        """Reads from an earlier pointer tell that records have expired."""
        self.reads = 0
        self.library: dict[str, LibraryGroup] = {}
        self._topics = TopicObserver(clock)
        self._topics.use(self._as_survey(), self._sizes, is_counted=is_counted)
        self._groups = GroupObserver()
        self._groups.use(self._as_survey())

    def look(self) -> tuple[TopicFacts, Mapping[str, GroupFacts]]:
        at_ms = self.clock.wall_ms()
        topics = self._topics.look(at_ms)
        return topics["orders"], self._groups.look(at_ms, topics, self._topics, self.library, self._read)

    def topics(self) -> list[TopicSummary]:
        return [TopicSummary("orders", (0,), internal=False)]

    def starts(self, places: Iterable[PartitionId]) -> dict[PartitionId, int]:
        return dict.fromkeys(places, self.start if self.log is None else self.log.log_start_offset)

    def ends(self, places: Iterable[PartitionId]) -> dict[PartitionId, int]:
        return dict.fromkeys(places, self.end if self.log is None else self.log.high_watermark)

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str | None]]:
        return {} if self.config is None else {topic: dict(self.config) for topic in topics}

    def groups(self) -> list[GroupSummary]:
        return [GroupSummary(name, "stable" if self.members.get(name) else "empty") for name in self.committed]

    def members_of(self, groups: Iterable[str]) -> dict[str, GroupMembers]:
        return {
            name: GroupMembers(
                "stable" if self.members.get(name) else "empty",
                tuple(Member(str(n), f"m{n}", "here", (("orders", 0),)) for n in range(self.members.get(name, 0))),
            )
            for name in groups
        }

    def committed_by(self, groups: Iterable[str]) -> dict[str, dict[PartitionId, int]]:
        return {name: {("orders", 0): self.committed[name]} for name in groups}

    def _read(self, pointers: Mapping[PartitionId, int]) -> dict[PartitionId, RecordTime | None]:
        found: dict[PartitionId, RecordTime | None] = {}
        for place, pointer in pointers.items():
            self.reads += 1
            if self.log is not None:
                there = records_from(self.log, pointer)
                found[place] = RecordTime(there[0].offset, there[0].timestamp) if there else None
            elif self.times:
                later = [each for each in self.times if each >= max(pointer, self.expired_before)]
                is_after_loss = pointer < self.expired_before
                found[place] = RecordTime(min(later), self.times[min(later)], is_after_loss) if later else None
        return found

    def _sizes(self) -> dict[PartitionId, int] | None:
        size_bytes = self.size_bytes if self.log is None else self.log.size_bytes
        return None if size_bytes is None else {("orders", 0): size_bytes}

    def _as_survey(self) -> Any:
        """The names of `penstock.streams.kafka.administration.survey.Survey`, two of which are fields here."""
        return _Survey(self)


class _Survey:
    def __init__(self, stream: FakeStream) -> None:
        self.topics = stream.topics
        self.starts = stream.starts
        self.ends = stream.ends
        self.configs = stream.configs
        self.groups = stream.groups
        self.members = stream.members_of
        self.committed = stream.committed_by
