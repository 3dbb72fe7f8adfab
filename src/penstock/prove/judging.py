"""What became of every record when processes were killed, held against what the guarantee promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

Name = int | tuple[int, int]
"""What a record is told by: its number, or the run that sent it and its number there."""

N = TypeVar("N", int, tuple[int, int])

_TOLD: Final = 10
"""So many records are named in a sentence."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Which records had which fate. Some of it is a broken promise, some the price of the guarantee: see `broken`."""

    guarantee: str
    records: int
    lost: Collection[Name] = ()
    """Neither handled (or stored, or with an effect, whichever counts) nor among the dead letters."""
    repeated: Collection[Name] = ()
    """Handled, or stored, more than once."""
    not_once: Collection[Name] = ()
    """Good records whose effect, or their being given up in place of it, did not happen exactly once."""
    out_of_order: Collection[Name] = ()
    """First came after one that must not be ahead of them."""
    given_up: Collection[Name] = ()
    """Good records that became dead letters because too many processes died with them in hand. Nothing is lost."""
    strange: Collection[Name] = ()
    """Came out and never went in."""

    @property
    def broken(self) -> list[str]:
        """A sentence for each promise that was not kept."""
        return [
            f"{self.guarantee}: {len(found)} of {self.records} records {told}, such as {sorted(found)[:_TOLD]}"
            for found, told in self._forbidden()
            if found
        ]

    def _forbidden(self) -> list[tuple[Collection[Name], str]]:
        always = [(self.out_of_order, "were out of order"), (self.strange, "came out and never went in")]
        match self.guarantee:
            case "at-most-once":
                return [(self.repeated, "were handled more than once"), *always]
            case "at-least-once":
                return [(self.lost, "were lost"), *always]
            case "exactly-once":
                return [(self.lost, "were lost"), (self.not_once, "did not count exactly once"), *always]
            case _:
                raise ValueError(f"{self.guarantee!r} is no guarantee")


@dataclass(frozen=True, slots=True)
class Traces:
    """What consumers left behind, all of them that died and the one that came to the end."""

    handled: list[int]
    """The record of each call of the handler that did its work, in turn."""
    effects: Counter[int] = field(default_factory=Counter)
    """How often each record had its effect, for a guarantee that has effects."""
    letters: Counter[int] = field(default_factory=Counter)
    """The dead letters, of any kind."""
    given_up: Counter[int] = field(default_factory=Counter)
    """Good records among the dead letters, there by right: too many processes died with them in hand."""


def judge_consumers(
    guarantee: str, good: Collection[int], bad: Collection[int], traces: Traces, lane: Callable[[int], Hashable] | None
) -> Judgement:
    """Good records must come through, unless they were given up; bad ones, whose handler always raises, must end as
    dead letters. `lane` tells which records must be handled in the order of their numbers; None: there is no order."""
    counts = Counter(traces.handled)
    done = traces.effects if guarantee == "exactly-once" else counts
    outcomes = traces.effects + traces.given_up
    through = done.keys() | traces.given_up.keys()
    return Judgement(
        guarantee,
        len(good) + len(bad),
        lost=(set(good) - through) | (set(bad) - traces.letters.keys()),
        repeated={number for number, times in counts.items() if times > 1},
        not_once={number for number in good if outcomes[number] != 1} if guarantee == "exactly-once" else (),
        out_of_order=_overtaken(traces.handled, lane) if lane is not None else (),
        given_up=traces.given_up.keys(),
        strange=(counts.keys() | traces.effects.keys()) - set(good),
    )


def judge_producers(
    taken: Collection[tuple[int, int]],
    sizes: Mapping[int, int],
    stored: Mapping[str, Iterable[tuple[str, int, int]]],
) -> Judgement:
    """Exactly once, in order per key: of what `send` has taken, as (run, number), nothing is missing; of all that is
    stored, as (key, run, number) for each topic in turn, nothing is there twice. `sizes` tells how many records each
    run tried to send: what was not taken when it died may be there or not."""
    counts: Counter[Name] = Counter()
    overtaken: set[Name] = set()
    for records in stored.values():
        keys: dict[str, list[tuple[int, int]]] = {}
        for key, run, number in records:
            counts[run, number] += 1
            keys.setdefault(key, []).append((run, number))
        for ours in keys.values():
            overtaken |= _overtaken(ours, lambda _: None)
    repeated = {record for record, times in counts.items() if times > 1}
    lost = set(taken) - counts.keys()
    possible = {(run, number) for run, size in sizes.items() for number in range(size)}
    return Judgement(
        "exactly-once",
        len(counts.keys() | lost),
        lost=lost,
        repeated=repeated,
        not_once=lost | repeated,
        out_of_order=overtaken,
        strange=counts.keys() - possible,
    )


def _overtaken(records: Iterable[N], lane: Callable[[N], Hashable]) -> set[Name]:
    """Those that came for the first time after a later one of their lane."""
    seen: set[Name] = set()
    latest: dict[Hashable, N] = {}
    overtaken: set[Name] = set()
    for record in records:
        if record in seen:
            continue
        seen.add(record)
        ahead = latest.get(lane(record))
        if ahead is not None and record < ahead:
            overtaken.add(record)
        else:
            latest[lane(record)] = record
    return overtaken
