"""Checkpoints: the persisted truth about one group on one partition, and the leases that say who may write it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.model.record import Pointer

Runs = tuple[tuple[Pointer, Pointer], ...]
"""Half-open intervals of pointers, `(first, end)`, ascending, that neither touch nor overlap.

Every record of the partition whose pointer is in one of them is meant. Pointers without a record may lie in them, too:
none will ever appear there, as a stream only grows at its end. So a million records are one pair of numbers.
"""


class Status(StrEnum):
    """Where a record stands with a group."""

    PENDING = "pending"
    IN_PROGRESS = "in progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """An attempt failed; there will be another."""
    EXHAUSTED = "exhausted"
    """It will not be tried again, and is with the dead letters."""
    IGNORED = "ignored"
    """Finished without its handler: filtered out, handled before under the same id, or meant for another group."""

    @property
    def is_final(self) -> bool:
        return self in (Status.SUCCEEDED, Status.EXHAUSTED, Status.IGNORED)


@dataclass(frozen=True, slots=True)
class CheckpointKey:
    """Whose checkpoint it is."""

    group: str
    topic: str
    partition: int

    @property
    def lease_name(self) -> str:
        """The name of the lease, within the group, that its owner holds."""
        return f"partition:{self.topic}:{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} of group {self.group!r}"


@dataclass(frozen=True, slots=True)
class Lease:
    """Who may write. A store keeps one for each (group, name), for ever: its epoch never goes back."""

    group: str
    name: str
    owner: str
    """"" when nobody holds it."""
    epoch: int
    """Grows by one with each claim. It fences: what an older owner writes is refused."""
    beat: int
    """Grows by one with each renewal. Who sees all leases of an owner stand still for long enough may claim them."""


@dataclass(frozen=True, slots=True)
class Failing:
    """A record that has failed and is not finished."""

    pointer: Pointer
    attempts: int
    error: str
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Records from `first` up to, not including, `end`, of a partition that members of a group share record by record:
    one of them has them in hand, or they wait to be handed out again. What of them is finished is not meant."""

    first: Pointer
    end: Pointer
    owner: str
    """"" when nobody has them in hand."""
    number: int
    """Tells claims of one owner apart. A claim that is extended gets a new one."""
    attempt: int
    """How often they have been handed out."""
    lasts_ms: int
    """Whoever sees the claim stand still for so long may take what is not finished."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything before `start` is finished, and so is what is in `finished`; reading goes on at `next`."""

    start: Pointer
    next: Pointer
    """Behind the last record that was read. It is stored before any of them is handled."""
    finished: Runs = ()
    """What is finished between `start` and `next`; the first run begins behind `start`."""
    failing: tuple[Failing, ...] = ()
    """Unfinished records that failed, in the order of their pointers."""
    restarts: int = 0
    """How many owners took over since `start` moved, or since one of them ended well: a record may be killing them."""
    processed: int = 0
    """How often a handler has been called."""
    delivered: int = 0
    """How often one has returned, so that its effect counts."""
    saved_ms: int = 0
    claims: tuple[Claim, ...] = ()
    """Where members share the partition: who has what in hand, in the order of the pointers, without overlap."""

    def __post_init__(self) -> None:
        edges = [self.start, *(edge for run in self.finished for edge in run)]
        if any(map(operator.ge, edges, edges[1:])):
            raise ValueError(f"the runs {self.finished} behind {self.start} are not in order, empty, or touch")
        if edges[-1] > self.next:
            raise ValueError(f"{edges[-1]} is finished but lies behind next, {self.next}")
        if any(left.end > right.first for left, right in itertools.pairwise(self.claims)):
            raise ValueError(f"the claims {self.claims} are not in order, or overlap")


@dataclass(frozen=True, slots=True)
class Happening:
    """A line of the tracker's history: what became of the records from `first` up to, not including, `end`.

    A run of records that succeeded at their first attempt is one line, whatever its length. An attempt that failed, and
    a record that was given up or ignored, has a line of its own.
    """

    first: Pointer
    end: Pointer
    status: Status
    attempt: int
    error: str
    """The error and its text, "" when there was none."""
    begun_ms: int
    ended_ms: int
    owner: str
    handler: str


@dataclass(frozen=True, slots=True)
class Handled:
    """An idempotency key whose record is finished, and when that was."""

    id: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Change:
    """What is saved at once: all of it or nothing."""

    checkpoint: Checkpoint
    happenings: tuple[Happening, ...] = ()
    """Lines to add to the history."""
    state: Mapping[bytes, bytes | None] = field(default_factory=dict)
    """Keyed state that changed; None where it is gone."""
    handled: tuple[Handled, ...] = ()
    """Idempotency keys to remember."""
    forget_handled_before_ms: int | None = None
    """Idempotency keys of the group and topic, remembered before this time, may go."""
    forget_happenings_before_ms: int | None = None
    """Lines of the partition's history that ended before this time may go."""
