"""What is so at one moment: topics, who reads them, what was given up, and how pipelines get on. Pure data.

Everything that shows or judges a running system (the console, `penstock lag`, alerts, metrics) is fed from here, so
that all of them tell the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.model import Pointer


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """What a partition holds: from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: Pointer
    end: Pointer
    size_bytes: int | None = None
    """None where the stream does not tell."""

    @property
    def records(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a topic holds, and how long it keeps it."""

    name: str
    partitions: tuple[PartitionFacts, ...]
    is_internal: bool = False
    """Made by the system for itself, such as `__consumer_offsets`."""
    retention_ms: int | None = None
    """None: it keeps records whatever their age, or nobody could be asked."""
    retention_bytes: int | None = None
    """For each partition. None: of any size."""
    is_compacted: bool = False
    rate_per_s: float | None = None
    """Records appended in a second, of late; None until there were two looks at it."""

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)

    @property
    def size_bytes(self) -> int | None:
        sizes = [each.size_bytes for each in self.partitions]
        return None if None in sizes else sum(size for size in sizes if size is not None)


@dataclass(frozen=True, slots=True)
class ReaderFacts:
    """How far a group has come in one partition."""

    group: str
    topic: str
    partition: int
    committed: Pointer | None
    """Where it goes on; None when it has committed nothing here."""
    start: Pointer
    end: Pointer
    member: str | None = None
    """The client id of the member that has the partition."""
    lag_s: float | None = None
    """How long the oldest record that it has not read has been waiting; 0 when it has read everything."""
    time_to_loss_s: float | None = None
    """When retention will overtake it if both go on as of late; None: never, as things stand."""
    lost: int = 0
    """Records that expired before it read them: `start` is that far beyond `committed`."""

    @property
    def lag(self) -> int | None:
        return None if self.committed is None else max(0, self.end - max(self.committed, self.start))


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """How a group gets on."""

    name: str
    state: str
    """As Kafka says it: stable, empty, dead, preparing rebalance, completing rebalance."""
    members: int
    readers: tuple[ReaderFacts, ...]
    is_library: bool = False
    """Whether it is one of the library's, with checkpoints that say more than an offset."""
    rate_per_s: float | None = None
    """Records read in a second, of late."""
    time_to_drain_s: float | None = None
    """When it will have caught up if it and its producers go on as of late; None: never, or nobody knows yet."""
    is_growing: bool = False
    """Whether its lag grows: what comes in is more than it reads."""

    @property
    def lag(self) -> int:
        return sum(each.lag or 0 for each in self.readers)

    @property
    def lag_s(self) -> float | None:
        return max((each.lag_s for each in self.readers if each.lag_s is not None), default=None)

    @property
    def time_to_loss_s(self) -> float | None:
        return min((each.time_to_loss_s for each in self.readers if each.time_to_loss_s is not None), default=None)

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self.readers)


@dataclass(frozen=True, slots=True)
class LetterFacts:
    """Dead letters in one place."""

    spec: str
    """What names the place: a topic, or sqlite:..., file:..., postgresql://... ."""
    waiting: int
    is_exact: bool = True
    """Whether `waiting` was counted; else it is the size of the topic, an upper bound, as counting would take long."""


@dataclass(frozen=True, slots=True)
class QueryFacts:
    """One query of a pipeline, as it last told of itself (see `penstock.spark.progress`)."""

    query: str
    state: str
    batch_id: int
    rows_read: int
    rows_written: int
    rows_late: int
    restarts: int
    lag: int | None
    batch_s: float
    rows_per_s: float
    state_rows: int
    watermark: str | None
    error: str | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """One version of a pipeline."""

    name: str
    """With its version: usage, usage@v2."""
    folder: str
    is_running: bool
    queries: tuple[QueryFacts, ...]

    @property
    def lag(self) -> int | None:
        lags = [each.lag for each in self.queries]
        return None if not lags or None in lags else sum(lag for lag in lags if lag is not None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment."""

    at_ms: int
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    groups: Mapping[str, GroupFacts] = field(default_factory=dict)
    letters: Mapping[str, LetterFacts] = field(default_factory=dict)
    pipelines: Mapping[str, PipelineFacts] = field(default_factory=dict)
    problem: str | None = None
    """Why the stream could not be asked: what stands here is then what was last known, or nothing."""
    took_s: float = 0.0
