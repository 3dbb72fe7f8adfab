"""Optional administration of a stream: topics with their settings, the stream's own groups, and queries about many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from penstock.model import Pointer, Position
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


class Admin(Protocol):
    """Administration of topics. Each request waits for its answer; those that change nothing are retried while the
    stream is unavailable. A request that the stream does not support is a ConfigError that names what is missing."""

    def all(self) -> Sequence[TopicSummary]:
        """All topics, including internal ones, by name."""

    def require(self, topic: str) -> TopicSummary:
        """The topic of this name. Raises UnknownTopicError that names the existing topics."""

    def describe(self, topic: str) -> TopicSummary:
        """The topic, with its id if it has one. Raises UnknownTopicError."""

    def partitions_of(self, topic: str) -> Sequence[int]: ...

    def create(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> None:
        """Raises TopicExistsError, InvalidTopicError, ConfigError."""

    def provide(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> int:
        """Create a topic unless it exists, and return how many partitions it has."""

    def delete(self, topic: str) -> None:
        """Delete a topic and all of its records. Raises UnknownTopicError."""

    def add_partitions(self, topic: str, total: int) -> None:
        """Increase the number of partitions to `total`."""

    def config(self, topic: str) -> Sequence[ConfigValue]:
        """All settings of a topic, by name."""

    def change_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Change settings of a topic; None resets one to its default."""

    def delete_before(self, topic: str, pointers: Mapping[int, Pointer]) -> None:
        """Delete the records of each partition before a pointer."""

    def spans(self, partitions: Iterable[PartitionId]) -> Mapping[PartitionId, Span]:
        """The readable range of each partition. Missing partitions are left out."""

    def sizes(self) -> Mapping[PartitionId, int]:
        """The size of each partition in bytes. Raises StreamError if it is not known."""

    def earliest(self, topic: str, partitions: Iterable[int]) -> Offsets: ...

    def latest(self, topic: str, partitions: Iterable[int]) -> Offsets:
        """The offset after the last readable record, which is not part of an open transaction."""

    def ends(self, topic: str, partitions: Iterable[int]) -> Offsets:
        """The offset after the last record, including open transactions."""

    def at_time(self, topic: str, time_ms: int, partitions: Iterable[int]) -> Offsets:
        """The first offset at or after a time; if there is none, the latest."""

    def locate(self, topic: str, position: Position, partitions: Iterable[int]) -> Offsets: ...


class GroupAdmin(Protocol):
    """Administration of the groups that the stream itself keeps."""

    def all(self) -> Sequence[GroupSummary]:
        """All groups, by name."""

    def describe(self, group: str) -> GroupDescription:
        """Raises GroupError if there is no such group."""

    def committed(self, group: str) -> Mapping[PartitionId, int]: ...

    def move(self, group: str, offsets: Mapping[PartitionId, int], *, is_checkpointed: bool = False) -> None:
        """Commit these offsets for a group. Raises GroupError if it has members."""

    def delete(self, group: str) -> None:
        """Delete a group and its committed offsets. Raises GroupError if it has members."""


class Survey(Protocol):
    """Queries about many topics and groups at once, for callers that ask every few seconds.

    Requests are not retried. What is missing or not ready is left out; a stream that does not answer is a
    BrokerUnavailableError.
    """

    def topics(self) -> Sequence[TopicSummary]: ...

    def starts(self, places: Iterable[PartitionId]) -> Mapping[PartitionId, int]: ...

    def ends(self, places: Iterable[PartitionId]) -> Mapping[PartitionId, int]: ...

    def configs(self, topics: Iterable[str]) -> Mapping[str, Mapping[str, str | None]]: ...

    def groups(self) -> Sequence[GroupSummary]: ...

    def members(self, groups: Iterable[str]) -> Mapping[str, GroupMembers]: ...

    def committed(self, groups: Iterable[str]) -> Mapping[str, Mapping[PartitionId, int]]: ...


@runtime_checkable
class CountingSurvey(Protocol):
    """A `Survey` of a stream that counts records though its pointers do not."""

    def record_counts(self, places: Iterable[PartitionId]) -> Mapping[PartitionId, RecordCounts]:
        """Partitions whose records are not counted are left out."""


class RecordTimes(Protocol):
    """Looks up the timestamps of single records."""

    def first_from(
        self, pointers: Mapping[PartitionId, int], timeout_s: float
    ) -> Mapping[PartitionId, RecordTime | None]:
        """For each partition, the first record at or after the pointer; None if there is none. Partitions are left out
        if nothing is known after `timeout_s`, or if the pointer is out of range."""

    def close(self) -> None: ...


@runtime_checkable
class HasAdmin(Protocol):
    """A stream with `Feature.ADMIN`."""

    def admin(self, timeout_s: float | None = None) -> Admin:
        """`timeout_s`: how long a request may take."""

    def group_admin(self, timeout_s: float | None = None) -> GroupAdmin: ...

    def survey(self, timeout_s: float) -> Survey: ...

    def record_times(self) -> RecordTimes: ...
