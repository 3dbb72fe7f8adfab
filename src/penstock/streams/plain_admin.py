"""Administration of streams without `abc.HasAdmin`, by the members of `abc.Stream` alone.

With it, the commands and the console work on any stream. Settings, sizes and groups raise ConfigError, or are empty
where the user did not ask for them by name.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Final, NoReturn, Protocol, runtime_checkable

from penstock.abc import CountsRecords, Feature, HasRetention, Stream, TopicStream
from penstock.errors import ConfigError, GroupError, OffsetOutOfRangeError, StreamError, UnknownTopicError
from penstock.model import Position, Record
from penstock.model.administration import (
    ConfigValue,
    GroupDescription,
    GroupMembers,
    GroupSummary,
    Offsets,
    PartitionId,
    RecordCounts,
    RecordTime,
    Span,
    TopicSummary,
)
from penstock.streams.capability import capability
from penstock.streams.declared import provide_topic
from penstock.streams.url import without_password


@runtime_checkable
class DeletesTopics(Protocol):
    """A stream that can delete topics without having all of `abc.Admin`."""

    def delete_topic(self, topic: str) -> None: ...


class PlainAdmin:
    """`abc.Admin` of any stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._url = without_password(stream.url)

    def all(self) -> list[TopicSummary]:
        found = []
        for name in sorted(self._stream.topics()):
            with contextlib.suppress(UnknownTopicError):  # it was deleted since
                found.append(self.describe(name))
        return found

    def require(self, topic: str) -> TopicSummary:
        names = sorted(self._stream.topics())
        if topic not in names:
            raise UnknownTopicError(f"there is no topic {topic!r}; there are: {', '.join(names) or 'none yet'}")
        return self.describe(topic)

    def describe(self, topic: str) -> TopicSummary:
        return TopicSummary(topic, self.partitions_of(topic), False)

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        with self._opened(topic) as opened:
            return tuple(opened.partitions())

    def create(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> None:
        if config:
            raise ConfigError(f"{min(config)} means nothing to {self._url}: its topics have no settings")
        self._stream.create_topic(topic, partitions)

    def provide(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> int:
        """Create a topic unless it exists, without the settings, which its topics do not have."""
        return provide_topic(self._stream, topic, partitions)

    def delete(self, topic: str) -> None:
        if isinstance(self._stream, DeletesTopics):
            self._stream.delete_topic(topic)
        else:
            self._refuse("delete topics")

    def add_partitions(self, topic: str, total: int) -> None:
        self._refuse("add partitions")

    def delete_before(self, topic: str, pointers: Mapping[int, int]) -> None:
        self._refuse("delete records")

    def config(self, topic: str) -> list[ConfigValue]:
        return []

    def change_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        self._refuse("change the settings of topics")

    def spans(self, partitions: Iterable[PartitionId]) -> dict[PartitionId, Span]:
        found = {}
        for topic, places in itertools.groupby(sorted(partitions), lambda place: place[0]):
            with self._opened(topic) as opened:
                for place in places:
                    with contextlib.suppress(UnknownTopicError):
                        found[place] = Span(*opened.span(place[1]))
        return found

    def sizes(self) -> dict[PartitionId, int]:
        raise StreamError(f"the sizes of topics are not known: {self._url} has no {Feature.ADMIN}")

    def earliest(self, topic: str, partitions: Iterable[int]) -> Offsets:
        with self._opened(topic) as opened:
            return {partition: opened.span(partition)[0] for partition in partitions}

    def latest(self, topic: str, partitions: Iterable[int]) -> Offsets:
        with self._opened(topic) as opened:
            return {partition: opened.span(partition)[1] for partition in partitions}

    def ends(self, topic: str, partitions: Iterable[int]) -> Offsets:
        """Without transactions, the same as `latest`."""
        return self.latest(topic, partitions)

    def at_time(self, topic: str, time_ms: int, partitions: Iterable[int]) -> Offsets:
        return self.locate(topic, Position.at_time(time_ms), partitions)

    def locate(self, topic: str, position: Position, partitions: Iterable[int]) -> Offsets:
        with self._opened(topic) as opened:
            return {partition: opened.locate(partition, position) for partition in partitions}

    def _opened(self, topic: str) -> contextlib.closing[TopicStream]:
        return contextlib.closing(self._stream.open_topic(topic))

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigError(f"{self._url} cannot {what}: it has no {Feature.ADMIN}")


class NoGroups:
    """`abc.GroupAdmin` of a stream without groups. The library's own groups keep their checkpoints elsewhere."""

    def __init__(self, stream: Stream) -> None:
        self._why = f"{without_password(stream.url)} has no {Feature.GROUPS}"

    def all(self) -> list[GroupSummary]:
        return []

    def describe(self, group: str) -> GroupDescription:
        raise GroupError(f"there is no group {group!r}: {self._why}")

    def committed(self, group: str) -> dict[PartitionId, int]:
        return {}

    def move(self, group: str, offsets: Mapping[PartitionId, int], *, is_checkpointed: bool = False) -> None:
        raise GroupError(f"group {group!r} could not be moved: {self._why}")

    def delete(self, group: str) -> None:
        raise GroupError(f"group {group!r} could not be deleted: {self._why}")


class PlainSurvey:
    """`abc.Survey` of any stream, topic by topic."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._admin = PlainAdmin(stream)
        self._retention = capability(stream, HasRetention)
        self._spans: dict[PartitionId, Span] = {}
        """Spans of the last call of `ends`: some systems limit how often they may be asked."""

    def topics(self) -> list[TopicSummary]:
        return self._admin.all()

    def starts(self, places: Iterable[PartitionId]) -> dict[PartitionId, int]:
        """Return the starts that the last call of `ends` found; ask for the others."""
        wanted = list(places)
        known = {place: self._spans[place].start for place in wanted if place in self._spans}
        asked = self._admin.spans(place for place in wanted if place not in known)
        return known | {place: span.start for place, span in asked.items()}

    def ends(self, places: Iterable[PartitionId]) -> dict[PartitionId, int]:
        self._spans = self._admin.spans(places)
        return {place: span.end for place, span in self._spans.items()}

    def record_counts(self, places: Iterable[PartitionId]) -> dict[PartitionId, RecordCounts]:
        found = {}
        for topic, partitions in itertools.groupby(sorted(places), lambda place: place[0]):
            with contextlib.closing(self._stream.open_topic(topic)) as opened:
                if not isinstance(opened, CountsRecords):
                    continue
                for place in partitions:
                    with contextlib.suppress(UnknownTopicError):
                        found[place] = opened.record_counts(place[1])
        return found

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str | None]]:
        """The retention of topics that have one, by Kafka's name. Of the others nothing is known."""
        if self._retention is None:
            return {}
        found: dict[str, dict[str, str | None]] = {}
        for topic in topics:
            with contextlib.suppress(UnknownTopicError):
                retention_s = self._retention.retention_s(topic)
                if retention_s is not None:
                    found[topic] = {"retention.ms": str(round(1000 * retention_s))}
        return found

    def groups(self) -> list[GroupSummary]:
        return []

    def members(self, groups: Iterable[str]) -> dict[str, GroupMembers]:
        return {}

    def committed(self, groups: Iterable[str]) -> dict[str, dict[PartitionId, int]]:
        return {}


_RECORD_S: Final = 1.0
"""How long to wait for a record that should be there. Kinesis may answer without any at first."""


def _first_record(opened: TopicStream, partition: int, pointer: int, wait_s: float) -> tuple[Record | None, bool]:
    """The first record from a pointer on, and whether others before it have expired."""
    is_after_loss = False
    try:
        records = opened.read(partition, pointer, 1, wait_s).records
    except OffsetOutOfRangeError as error:
        is_after_loss = pointer < error.start
        records = opened.read(partition, error.start, 1, wait_s).records
    return (records[0] if records else None), is_after_loss


class PlainRecordTimes:
    """`abc.RecordTimes` of any stream, by reading one record of each partition."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def first_from(self, pointers: Mapping[PartitionId, int], timeout_s: float) -> dict[PartitionId, RecordTime | None]:
        found: dict[PartitionId, RecordTime | None] = {}
        until_s = time.monotonic() + timeout_s
        for (topic, partition), pointer in pointers.items():
            wait_s = min(_RECORD_S, until_s - time.monotonic())
            if wait_s <= 0:
                break
            with contextlib.closing(self._stream.open_topic(topic)) as opened:
                try:
                    record, is_after_loss = _first_record(opened, partition, pointer, wait_s)
                except (UnknownTopicError, OffsetOutOfRangeError):
                    continue
            if record is None:
                found[topic, partition] = None
            elif record.timestamp_ms is not None:
                found[topic, partition] = RecordTime(record.offset, record.timestamp_ms, is_after_loss)
        return found

    def close(self) -> None:
        """Nothing is kept open."""
