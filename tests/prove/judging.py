"""The outcome of every record after processes were killed, compared with the guarantee."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

Name = int | tuple[int, int]
"""The identity of a record: its number, or the run that sent it and its number there."""

N = TypeVar("N", int, tuple[int, int])

_TOLD: Final = 10
"""How many records a sentence names."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Which records had which outcome. Some are violations, some the price of the guarantee: see `broken`."""

    guarantee: str
    records: int
    lost: Collection[Name] = ()
    """Neither handled (or stored, or with an effect, whichever counts) nor among the dead letters."""
    repeated: Collection[Name] = ()
    """Handled, or stored, more than once."""
    not_once: Collection[Name] = ()
    """Good records whose effect, or giving up in its place, did not happen exactly once."""
    out_of_order: Collection[Name] = ()
    """First arrived after one that must come later."""
    given_up: Collection[Name] = ()
    """Good records that became dead letters because too many processes died with them. Nothing is lost."""
    strange: Collection[Name] = ()
    """In the output, but never in the input."""

    @property
    def broken(self) -> list[str]:
        """A sentence for each broken promise."""
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
                raise ValueError(f"{self.guarantee!r} is not a guarantee")


@dataclass(frozen=True, slots=True)
class Traces:
    """What all consumers left behind, those that died and the one that finished."""

    handled: list[int]
    """The record of each handler call that did its work, in order."""
    effects: Counter[int] = field(default_factory=Counter)
    """How often each record had its effect, for a guarantee that has effects."""
    letters: Counter[int] = field(default_factory=Counter)
    """The dead letters, of any kind."""
    given_up: Counter[int] = field(default_factory=Counter)
    """Good records that are rightly among the dead letters: too many processes died with them."""


def judge_consumers(
    guarantee: str, good: Collection[int], bad: Collection[int], traces: Traces, lane: Callable[[int], Hashable] | None
) -> Judgement:
    """Good records must be handled, unless they were given up; bad ones, whose handler always raises, must end as dead
    letters. `lane` says which records must be handled in the order of their numbers; None: no order."""
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
    """Exactly once, in order per key: of what `send` has accepted, as (run, number), nothing is missing; of all that is
    stored, as (key, run, number) for each topic in order, nothing is repeated. `sizes` is how many records each run
    tried to send: what was not accepted when it died may be stored or not."""
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
    """Those that first arrived after a later one of their lane."""
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
