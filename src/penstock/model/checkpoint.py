"""Checkpoints, the stored progress of one group on one partition, and the leases that say who may write them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.model.record import Pointer

Runs = tuple[tuple[Pointer, Pointer], ...]
"""Ascending half-open intervals of pointers, `(first, end)`, that neither touch nor overlap.

They stand for every record of the partition whose pointer is in one of them. They may include pointers without a
record: a stream grows only at its end, so no record will ever appear there. A million records can be one pair of
numbers.
"""


class Status(StrEnum):
    """The state of a record in a group."""

    PENDING = "pending"
    IN_PROGRESS = "in progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """An attempt failed; there will be another."""
    EXHAUSTED = "exhausted"
    """It is not tried again; it became a dead letter."""
    IGNORED = "ignored"
    """Finished without a call of its handler: filtered out, a duplicate of a handled id, or meant for another group."""


@dataclass(frozen=True, slots=True)
class CheckpointKey:
    """What a checkpoint is about: a group, a topic and a partition."""

    group: str
    topic: str
    partition: int

    @property
    def lease_name(self) -> str:
        """The name, within the group, of the lease that the owner holds."""
        return f"partition:{self.topic}:{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} of group {self.group!r}"


@dataclass(frozen=True, slots=True)
class Lease:
    """Who may write. A store keeps one per (group, name) for ever: its epoch never decreases."""

    group: str
    name: str
    owner: str
    """"" if it is free."""
    epoch: int
    """Grows by one with each claim. Writes with an older epoch are refused."""
    beat: int
    """Grows by one with each renewal. If no lease of an owner changes for long enough, others may claim them."""


@dataclass(frozen=True, slots=True)
class Failing:
    """A record that has failed and is not finished, or that was in hand when an owner died."""

    pointer: Pointer
    attempts: int
    """How many have failed; 0 if it was only in hand, with others, when an owner died."""
    error: str
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Records from `first` up to, not including, `end`, of a partition that group members share record by record. One
    member is handling them, or they wait to be delivered again. Finished records among them do not count."""

    first: Pointer
    end: Pointer
    owner: str
    """"" if no member is handling them."""
    number: int
    """Tells claims of one owner apart. Extending a claim gives it a new number."""
    attempt: int
    """How often the records were delivered."""
    lasts_ms: int
    """If the claim does not change for this long, any member may take what is not finished."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything before `start` is finished, and so is what is in `finished`; reading continues at `next`."""

    start: Pointer
    next: Pointer
    """The pointer after the last record read. It is stored before any of these records is handled."""
    finished: Runs = ()
    """The finished runs between `start` and `next`; the first one begins after `start`."""
    failing: tuple[Failing, ...] = ()
    """Unfinished records that failed, in the order of their pointers."""
    restarts: int = 0
    """Owners that took over since `start` moved or an owner closed cleanly: a record may be killing them."""
    processed: int = 0
    """Calls of handlers."""
    delivered: int = 0
    """Calls that returned, so that their effect counts."""
    saved_ms: int = 0
    claims: tuple[Claim, ...] = ()
    """The claims of members that share the partition, in pointer order, without overlap."""

    def __post_init__(self) -> None:
        edges = [self.start, *(edge for run in self.finished for edge in run)]
        if any(map(operator.ge, edges, edges[1:])):
            raise ValueError(
                f"the runs {self.finished} after {self.start} must be ascending, not empty, and must not touch"
            )
        if edges[-1] > self.next:
            raise ValueError(f"{edges[-1]} is finished but lies after next, {self.next}")
        if any(left.end > right.first for left, right in itertools.pairwise(self.claims)):
            raise ValueError(f"the claims {self.claims} must be ascending and must not overlap")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One line of the tracker's history: the outcome of the records from `first` up to, not including, `end`.

    A run of records that succeeded at the first attempt is one entry, whatever its length. Each failed attempt, and
    each record that was exhausted or ignored, has its own entry.
    """

    first: Pointer
    end: Pointer
    status: Status
    attempt: int
    error: str
    """The class and text of the error; "" if there was none."""
    begun_ms: int
    ended_ms: int
    owner: str
    handler: str


@dataclass(frozen=True, slots=True)
class Handled:
    """An idempotency key whose record is finished, and when it finished."""

    id: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Change:
    """Everything that is saved in one atomic write."""

    checkpoint: Checkpoint
    history: tuple[HistoryEntry, ...] = ()
    """Entries to add to the history."""
    state: Mapping[bytes, bytes | None] = field(default_factory=dict)
    """Changed keyed state; None deletes a key."""
    handled: tuple[Handled, ...] = ()
    """Idempotency keys to store."""
    forget_handled_before_ms: int | None = None
    """Idempotency keys of the group and topic that were stored before this time may be deleted."""
    forget_history_before_ms: int | None = None
    """History entries of the partition that ended before this time may be deleted."""
