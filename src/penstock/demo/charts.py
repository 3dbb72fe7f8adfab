"""Charts as plain SVG, so that the report needs only a browser; its style sheet sets their colours."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from penstock.demo.checking import Latencies, Outcome, merged
from penstock.demo.generator import WindowTotals
from penstock.demo.live import Sample

Points = list[tuple[float, float]]
"""Seconds since the demo began, and the value."""

_OUTAGES: Final = (
    ("consumer killed", "taken over", "consumer down"),
    ("broker killed", "broker back", "broker down"),
    ("driver killed", "driver back", "Spark driver down"),
)
_RATE_OVER_S: Final = 2.0
_REST_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Outage:
    """A part was down from `begin_s` to `end_s`."""

    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class WindowBars:
    """The totals of one window, by counting side."""

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
    samples = [each for each in outcome.live.samples if each.at_s <= end_s]
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
    """Rates between each sample and the last one that is far enough before it for a smooth curve."""
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
    """The end of the time axis: shortly after the last activity."""
    busy = [each.at_s for each in outcome.live.samples if each.lag]
    marked = [each.at_s for each in outcome.live.events if each.mark]
    return min(outcome.took_s, max(busy + marked, default=outcome.took_s) + _REST_S)


def _outages(outcome: Outcome) -> list[Outage]:
    at = {each.mark: each.at_s for each in outcome.live.events if each.mark}
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
    found: dict[int, int] = {}
    for name, count in totals.items():
        start = int(name.partition(" ")[0])
        found[start] = found.get(start, 0) + count
    return found


_WIDTH: Final = 960
_LEFT: Final = 62
_RIGHT: Final = 14
_TOP: Final = 34
_BOTTOM: Final = 26
_MOST_TICKS: Final = 5
_NAME_ROOM: Final = 120
_MOST_NAMES: Final = 12


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Points
    style: str
    """Its class in the style sheet."""
    filled: bool = False


def number_text(value: float) -> str:
    return f"{value:,.0f}"


def line_chart(
    lines: Sequence[Line],
    outages: Sequence[Outage],
    end_s: float,
    *,
    text_of: Callable[[float], str],
    height: int = 210,
    log: bool = False,
) -> str:
    """Lines over seconds, with outages behind them."""
    highest = max((y for line in lines for _, y in line.points), default=1.0)
    scale = _Scale(max(highest * (1.0 if log else 1.08), 1.0), height, log)

    def across(x: float) -> float:
        return _LEFT + (x / max(end_s, 1e-9)) * (_WIDTH - _LEFT - _RIGHT)

    parts = [_outage(each, across, height, row) for each, row in zip(outages, _rows(outages, across), strict=True)]
    parts += [_grid_line(scale.y(value), text_of(value)) for value in scale.ticks()]
    parts += [_second(second, across(second), height) for second in _steps(end_s, _MOST_TICKS * 2)]
    for line in lines:
        # No line where nothing was measured for a while, as during an outage.
        path = " ".join(
            f"{'L' if index and x - line.points[index - 1][0] < 5 else 'M'}{across(x):.1f},{scale.y(y):.1f}"
            for index, (x, y) in enumerate(line.points)
        )
        if line.filled and line.points:
            first, last = across(line.points[0][0]), across(line.points[-1][0])
            floor = scale.y(0.0)
            area = path.replace("M", "L")[1:]
            parts.append(
                f'<path class="area {line.style}" d="M{first:.1f},{floor:.1f} L{area} L{last:.1f},{floor:.1f}Z"/>'
            )
        parts.append(f'<path class="line {line.style}" d="{path}"/>')
    return _svg(parts, height, f"{', '.join(line.name for line in lines)} over time")


def bar_chart(windows: Sequence[WindowBars], *, height: int = 210) -> str:
    """A bar per window and counting side."""
    scale = _Scale(max((each.generator for each in windows), default=1) * 1.08, height, False)
    room = (_WIDTH - _LEFT - _RIGHT) / max(1, len(windows))
    named = math.ceil(len(windows) / _MOST_NAMES)
    parts = [_grid_line(scale.y(value), number_text(value)) for value in scale.ticks()]
    for index, window in enumerate(windows):
        sides = [("generator", window.generator), ("consumers", window.consumers)]
        if window.spark is not None:
            sides.append(("spark", window.spark))
        width = min(34.0, room * 0.78 / len(sides))
        middle = _LEFT + room * (index + 0.5)
        for number, (side, count) in enumerate(sides):
            x, y = middle + (number - len(sides) / 2) * width, scale.y(count)
            parts.append(
                f'<rect class="bar {side}" x="{x + 1:.1f}" y="{y:.1f}" width="{width - 2:.1f}" '
                f'height="{scale.y(0) - y:.1f}" rx="2"><title>{escape(side)}: {count:,}</title></rect>'
            )
        if index % named == 0:
            parts.append(
                f'<text class="tick" x="{middle:.1f}" y="{height - 8}" text-anchor="middle">{window.name}</text>'
            )
    return _svg(parts, height, "page events by window, as each side counted them")


class _Scale:
    """Maps a value to its height in the chart."""

    def __init__(self, highest: float, height: int, log: bool) -> None:
        self._log = log
        self._highest = 10 ** math.ceil(math.log10(max(highest, 10.0))) if log else highest
        self._floor = height - _BOTTOM
        self._room = height - _BOTTOM - _TOP

    def y(self, value: float) -> float:
        return self._floor - self._share(value) * self._room

    def _share(self, value: float) -> float:
        if self._log:
            return math.log10(max(value, 1.0)) / math.log10(self._highest)
        return value / self._highest

    def ticks(self) -> list[float]:
        if self._log:
            return [10.0**power for power in range(round(math.log10(self._highest)) + 1)]
        return _steps(self._highest, _MOST_TICKS)


def _steps(highest: float, most: int) -> list[float]:
    """Round numbers from 0 up to `highest`, at most `most` of them besides the 0."""
    rough = highest / most
    power = 10 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [step * number for number in range(int(highest / step) + 1)]


def _grid_line(y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    )


def _second(second: float, x: float, height: int) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{second:g} s</text>'


def _rows(outages: Sequence[Outage], across: Callable[[float], float]) -> list[int]:
    """The row of each name: one that would overlap its neighbour is a row higher."""
    rows: list[int] = []
    for before, outage in zip([None, *outages], outages, strict=False):
        is_close = before is not None and across(outage.begin_s) - across(before.begin_s) < _NAME_ROOM
        rows.append(1 - rows[-1] if is_close else 0)
    return rows


def _outage(outage: Outage, across: Callable[[float], float], height: int, row: int) -> str:
    begin, end = across(outage.begin_s), across(outage.end_s)
    return (
        f'<rect class="outage" x="{begin:.1f}" y="{_TOP - 6}" width="{max(2.0, end - begin):.1f}" '
        f'height="{height - _BOTTOM - _TOP + 6}"/>'
        f'<text class="outage-name" x="{begin:.1f}" y="{_TOP - 10 - row * 13}">{escape(outage.name)}</text>'
    )


def _svg(parts: Sequence[str], height: int, label: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
