"""The state of a system at one moment: topics, groups, dead letters, pipelines and captures. Pure data.

Everything that shows or evaluates a running system (the console, `penstock lag`, alerts, metrics) uses these facts, so
that all of them agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.model import Pointer


def total(counts: Iterable[int | None]) -> int | None:
    """The sum; None (unknown) if one of them is."""
    found = list(counts)
    return None if None in found else sum(each for each in found if each is not None)


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The records of a partition: from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: Pointer
    end: Pointer
    size_bytes: int | None = None
    """None if the stream does not report it."""
    is_counted: bool = True
    """Whether two pointers tell how many records lie between them, as `Feature.OFFSETS` says."""
    stored: int | None = None
    """How many records it has, by the stream's own count, where pointers do not tell. None: unknown."""

    @property
    def records(self) -> int | None:
        """How many records it has. None where pointers do not count records."""
        return max(0, self.end - self.start) if self.is_counted or self.end <= self.start else self.stored


@dataclass(frozen=True, slots=True)
class TopicFacts:
    name: str
    partitions: tuple[PartitionFacts, ...]
    is_internal: bool = False
    """Created by the system for itself, such as `__consumer_offsets`."""
    retention_ms: int | None = None
    """None: no limit by age, or unknown."""
    retention_bytes: int | None = None
    """For each partition. None: no limit by size."""
    is_compacted: bool = False
    is_retention_known: bool = True
    """Whether the stream told its retention; if not, the three above say nothing."""
    rate_per_s: float | None = None
    """Recent append rate, in records a second; None until there were two looks, and where nothing counts records."""

    @property
    def records(self) -> int | None:
        return total(each.records for each in self.partitions)

    @property
    def size_bytes(self) -> int | None:
        return total(each.size_bytes for each in self.partitions)


@dataclass(frozen=True, slots=True)
class ReaderFacts:
    """The progress of a group in one partition."""

    group: str
    topic: str
    partition: int
    committed: Pointer | None
    """Where it continues; None when it has committed nothing here."""
    start: Pointer
    end: Pointer
    member: str | None = None
    """The client id of the member that is assigned the partition."""
    lag_s: float | None = None
    """How long its oldest unread record has been waiting; 0 when it has read everything."""
    time_to_loss_s: float | None = None
    """When retention will overtake it at the recent rates; None: never."""
    lost: int = 0
    """Records that expired before it read them: `start` is that far beyond `committed`. Where records are not counted,
    1 stands for at least one."""
    is_counted: bool = True
    """See `PartitionFacts.is_counted`."""
    stored: int | None = None
    """See `PartitionFacts.stored`."""
    is_drained: bool = False
    """A read found no record between `committed` and `end`, in a stream whose pointers do not count records."""

    @property
    def is_behind(self) -> bool:
        """Whether there are records after what it has committed."""
        return self.committed is not None and not self.is_drained and self.end > max(self.committed, self.start)

    @property
    def lag(self) -> int | None:
        """Records after what it has committed. None when it has committed nothing (see `unread`), and when it
        `is_behind` in a stream that does not count records."""
        if self.committed is None:
            return None
        if self.is_counted:
            return max(0, self.end - max(self.committed, self.start))
        if not self.is_behind:
            return 0
        return self.stored if self.committed <= self.start else None

    @property
    def unread(self) -> int | None:
        """Records of a partition in which it has committed nothing; None where it is unknown. How many of them it will
        read depends on where it starts, which only its own program knows."""
        if self.committed is not None or self.end <= self.start:
            return 0
        return self.end - self.start if self.is_counted else self.stored


@dataclass(frozen=True, slots=True)
class GroupFacts:
    name: str
    state: str
    """Kafka's name of it: stable, empty, dead, preparing rebalance, completing rebalance."""
    members: int
    readers: tuple[ReaderFacts, ...]
    """Every partition of every topic that it reads, also those in which it has committed nothing."""
    is_library: bool = False
    """Whether it is a group of this library, with checkpoints that say more than an offset."""
    stores: tuple[str, ...] = ()
    """The stores of its checkpoints, for a group of this library."""
    rate_per_s: float | None = None
    time_to_drain_s: float | None = None
    """When it will have caught up at the recent rates; None: never, or unknown yet."""
    is_growing: bool = False
    """Whether its lag grows: more is appended than it reads."""

    @property
    def is_behind(self) -> bool:
        return any(each.is_behind for each in self.readers)

    @property
    def is_counted(self) -> bool:
        """Whether the stream counts records. If not, its `lag` is known only when it is 0."""
        return all(each.is_counted for each in self.readers)

    @property
    def lag(self) -> int | None:
        """The sum of the known lags; None if one of them is unknown (`ReaderFacts.lag`)."""
        return total(each.lag for each in self.readers if each.committed is not None)

    @property
    def unread(self) -> int | None:
        """Records in partitions in which it has committed nothing. They are not part of `lag`. None: unknown."""
        return total(each.unread for each in self.readers)

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
    spec: str
    """The name of the store: a topic, or sqlite:..., file:..., postgresql://... ."""
    waiting: int
    is_exact: bool = True
    """Whether `waiting` was counted; else it is the size of the topic, an upper bound, as counting would take long."""


@dataclass(frozen=True, slots=True)
class QueryFacts:
    """One query of a pipeline, as it last reported (see `penstock.spark.run.progress`)."""

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
    batch_at_ms: int | None = None
    """When its last batch was finished; None: none yet, or it was written by a version that did not report this."""
    error_file: str | None = None
    rows_refused: int = 0
    """Rows of this run that a target cannot take: they are with the dead letters."""
    rows_bad: int = 0
    """Rows of this run that failed in a function or did not meet an expectation: they are with the dead letters."""
    rows_dropped: int = 0
    """Rows of this run that did not meet an expectation whose rows are dropped."""
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    """The rows of both kinds by what they failed, such as `expectation positive`."""
    batch_rows_bad: int = 0
    """`rows_bad` of the last batch, and so on."""
    batch_rows_dropped: int = 0
    batch_bad_rows: Mapping[str, int] = field(default_factory=dict)


DEAD: Final = "dead"
"""The state of a query or a capture whose process ended without reporting it."""


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    name: str
    """With its version: usage, usage@v2."""
    folder: str
    is_running: bool
    queries: tuple[QueryFacts, ...]

    @property
    def state(self) -> str:
        """The worst state of its queries: failed, waiting (for the next attempt), starting or running; finished or
        stopped when it has ended; dead when its process ended without reporting it."""
        states = {query.state for query in self.queries}
        if not states:
            return "running" if self.is_running else "stopped"
        if states <= {"finished", "stopped"}:
            return "finished" if states == {"finished"} else "stopped"
        return next((state for state in ("failed", DEAD, "waiting", "starting") if state in states), "running")

    @property
    def lag(self) -> int | None:
        return total(each.lag for each in self.queries) if self.queries else None


RUNNING_PHASES: Final = frozenset({"starting", "snapshot", "streaming"})
"""Phases in which a capture makes progress."""


@dataclass(frozen=True, slots=True)
class CaptureFacts:
    """A capture of a database (`penstock cdc`), as it last reported."""

    name: str
    source: str
    """The URL of the database, without a password."""
    phase: str
    """starting, snapshot, streaming or stopped; waiting for the database or the stream; failed; dead when it has not
    reported for a while."""
    at_ms: int
    """When it reported."""
    behind_bytes: int | None = None
    """The database's log after the last change that it has confirmed; None where it is unknown."""
    room_bytes: int | None = None
    """How much the database may write until it removes changes that are not captured; None where it is unknown."""
    time_to_loss_s: float | None = None
    """When that happens if it goes on as now; for one that does not run, at the rate at which the database wrote. None:
    never, or unknown."""
    is_lost: bool = False
    """Whether changes are lost."""
    tables: int = 0
    changes: int = 0
    """Changes that it has stored since it was started."""
    last_change_ms: int | None = None
    """When the last of them was committed in the database."""
    position: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    at_ms: int
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    groups: Mapping[str, GroupFacts] = field(default_factory=dict)
    letters: Mapping[str, LetterFacts] = field(default_factory=dict)
    pipelines: Mapping[str, PipelineFacts] = field(default_factory=dict)
    problem: str | None = None
    """Why the stream could not be asked: the facts are then the last known ones, or none."""
    took_s: float = 0.0
    is_counted: bool = True
    """Whether the stream's pointers count records, as `Feature.OFFSETS` says."""
    has_groups: bool = True
    """Whether the stream keeps groups itself, as `Feature.GROUPS` says."""
    has_store: bool = True
    """Whether it is known where apps keep their checkpoints: the store was named, or the stream has a default."""
    captures: Mapping[str, CaptureFacts] = field(default_factory=dict)
