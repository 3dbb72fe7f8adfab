"""The curves of the report: what was counted at moments, as rates, delays and totals over time."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.cli.demo.account import WindowTotals
from penstock.cli.demo.checking import Latencies, merged
from penstock.cli.demo.live import Sample
from penstock.cli.demo.outcome import Outcome

Points = list[tuple[float, float]]
"""Seconds since the demo began, and what was so then."""

_OUTAGES: Final = (
    ("consumer killed", "taken over", "consumer down"),
    ("broker killed", "broker back", "broker down"),
    ("driver killed", "driver back", "Spark driver down"),
)
_RATE_OVER_S: Final = 2.0
_REST_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Outage:
    """A part was away from `begin_s` to `end_s`."""

    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class WindowBars:
    """The totals of one window, as each side counts them."""

    name: str
    """The time of day, UTC."""
    generator: int
    consumers: int
    spark: int | None


@dataclass(frozen=True, slots=True)
class Series:
    sent: Points
    judged: Points
    lag: Points
    p50: Points
    p99: Points
    outages: list[Outage]
    windows: list[WindowBars]
    end_s: float


def series_of(outcome: Outcome) -> Series:
    end_s = _end_s(outcome)
    samples = [each for each in outcome.samples if each.at_s <= end_s]
    latencies = _latencies(outcome)
    return Series(
        sent=_rates(samples, [each.to_judge for each in samples]),
        judged=_rates(samples, [each.verdicts for each in samples]),
        lag=[(each.at_s, float(each.lag)) for each in samples],
        p50=[(at_s, each.p50) for at_s, each in latencies],
        p99=[(at_s, each.p99) for at_s, each in latencies],
        outages=_outages(outcome),
        windows=_windows(outcome),
        end_s=end_s,
    )


def _rates(samples: Sequence[Sample], counts: Sequence[int]) -> Points:
    """Between each moment and the last one that is far enough before it to make a smooth curve."""
    points: Points = []
    before = 0
    for index, sample in enumerate(samples):
        while before < index and sample.at_s - samples[before + 1].at_s >= _RATE_OVER_S:
            before += 1
        passed_s = sample.at_s - samples[before].at_s
        if passed_s > 0:
            points.append((sample.at_s, (counts[index] - counts[before]) / passed_s))
    return points


def _latencies(outcome: Outcome) -> list[tuple[float, Latencies]]:
    seconds: dict[int, list[int]] = {}
    for appended_ms, took_ms in outcome.results.latencies:
        seconds.setdefault((appended_ms - outcome.began_ms) // 1000, []).append(took_ms)
    return [(second + 0.5, Latencies.of(values)) for second, values in sorted(seconds.items())]


def _end_s(outcome: Outcome) -> float:
    """When the last thing happened that is worth looking at: nobody needs to see how long a curve stays at 0."""
    busy = [each.at_s for each in outcome.samples if each.lag]
    marked = [each.at_s for each in outcome.happenings if each.mark]
    return min(outcome.took_s, max(busy + marked, default=outcome.took_s) + _REST_S)


def _outages(outcome: Outcome) -> list[Outage]:
    at = {each.mark: each.at_s for each in outcome.happenings if each.mark}
    return [Outage(name, at[killed], at.get(back, outcome.took_s)) for killed, back, name in _OUTAGES if killed in at]


def _windows(outcome: Outcome) -> list[WindowBars]:
    sides = [_by_window(outcome.account.windows), _by_window(outcome.results.counted)]
    spark = _by_window(merged(outcome.results.added_up, outcome.results.late)) if outcome.parts.spark else None
    starts = sorted(set().union(*sides, spark or {}))
    return [
        WindowBars(
            datetime.datetime.fromtimestamp(start, datetime.UTC).strftime("%H:%M:%S"),
            sides[0].get(start, 0),
            sides[1].get(start, 0),
            None if spark is None else spark.get(start, 0),
        )
        for start in starts
    ]


def _by_window(totals: WindowTotals) -> dict[int, int]:
    """All pages of a window together."""
    found: dict[int, int] = {}
    for name, count in totals.items():
        start = int(name.partition(" ")[0])
        found[start] = found.get(start, 0) + count
    return found
