"""The report as a page: one file without scripts, in the reader's light or dark theme.

Charts are plain SVG, so that the report needs only a browser; its style sheet sets their colours.
"""

from __future__ import annotations

import datetime
import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from penstock import __version__
from penstock.demo.checking import Check, Latencies, Outcome, delay_text, merged
from penstock.demo.generator import WindowTotals
from penstock.demo.live import Sample
from penstock.errors import PenstockError

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


PAGE: Final = "report.html"


def check_folder(folder: Path) -> None:
    """Raise PenstockError at once when a report could not be written there. Creates nothing."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise PenstockError(f"the report cannot be written to {folder}: choose another folder with --report")


def write_report(outcome: Outcome) -> Path:
    """Write the report into the chosen folder, over an older one, and return its file."""
    folder = outcome.settings.report
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / PAGE
        file.write_text(page_of(outcome), "utf-8")
    except OSError as error:
        raise PenstockError(
            f"the report cannot be written to {folder}: {error.strerror}; choose another folder with --report"
        ) from error
    return file


_STYLE: Final = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #16202c; --soft: #5d6b7c; --rule: #e3e7ec;
  --sent: #8a97a8; --judged: #0f7fb8; --lag: #c2570c; --good: #15803d; --good-soft: #dcf5e4; --bad: #b91c1c;
  --bad-soft: #fde3e3; --outage: #c2570c; --third: #7a5bd0; }
@media (prefers-color-scheme: dark) { :root { --page: #0e141b; --card: #161e28; --ink: #e6ebf1; --soft: #93a1b2;
  --rule: #263241; --sent: #76869a; --judged: #41b3ea; --lag: #f59554; --good: #4ade80; --good-soft: #12351f;
  --bad: #f87171; --bad-soft: #421a1a; --outage: #f59554; --third: #a78bfa; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 36px 20px 48px; }
header { display: flex; flex-wrap: wrap; gap: 10px 16px; align-items: center; margin-bottom: 6px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 0; color: var(--soft); }
.badge { padding: 4px 12px; border-radius: 999px; font-weight: 600; background: var(--good-soft); color: var(--good); }
.badge.bad { background: var(--bad-soft); color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(148px, 1fr)); gap: 12px; margin: 22px 0 14px; }
.tile, section { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; }
.tile { padding: 14px 16px; }
.tile b { display: block; font-size: 25px; line-height: 1.2; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
section { padding: 18px 20px; margin-bottom: 14px; }
svg { display: block; width: 100%; height: auto; margin-top: 8px; font: 11px system-ui, sans-serif; }
.legend { display: inline-flex; gap: 14px; float: right; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 6px;
  vertical-align: middle; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line.sent { stroke: var(--sent); } .line.judged { stroke: var(--judged); } .line.lag { stroke: var(--lag); }
.line.third { stroke: var(--third); }
.area { opacity: 0.16; stroke: none; } .area.lag { fill: var(--lag); }
.bar.generator { fill: var(--sent); } .bar.consumers { fill: var(--judged); } .bar.spark { fill: var(--third); }
.grid { stroke: var(--rule); } .tick { fill: var(--soft); }
.outage { fill: var(--outage); opacity: 0.13; } .outage-name { fill: var(--outage); font-weight: 600; }
table { border-collapse: collapse; width: 100%; margin-top: 8px; }
td { padding: 7px 10px 7px 0; border-top: 1px solid var(--rule); vertical-align: top; }
tr:first-child td { border-top: 0; }
td.value { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; font-weight: 600; }
td.mark { width: 70px; } td.note { color: var(--soft); }
.ok { color: var(--good); font-weight: 600; } .wrong { color: var(--bad); font-weight: 700; }
td.time { color: var(--soft); white-space: nowrap; width: 70px; font-variant-numeric: tabular-nums; }
code { background: var(--page); border: 1px solid var(--rule); border-radius: 6px; padding: 1px 6px; font-size: 13px; }
footer { color: var(--soft); font-size: 13px; margin-top: 18px; }
@media (max-width: 640px) { td.note { display: none; } .legend { float: none; display: flex; }
  section { overflow-x: auto; } svg { min-width: 640px; } }
"""

_COLOURS: Final = {"sent": "--sent", "judged": "--judged", "lag": "--lag", "third": "--third"}


def page_of(outcome: Outcome) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Penstock demo</title><style>{_STYLE}</style></head><body><main>"
        f"{_head(outcome)}{_tiles(outcome)}{_charts(outcome)}{_table(outcome)}{_story(outcome)}{_foot(outcome)}"
        "</main></body></html>\n"
    )


def _head(outcome: Outcome) -> str:
    badge = '<span class="badge">nothing lost, every total right</span>'
    if outcome.wrong:
        badge = '<span class="badge bad">not as promised</span>'
    settings = outcome.settings
    with_spark = "with a pipeline on Spark" if outcome.parts.spark else "without Spark"
    killed = [each.mark.removesuffix(" killed") for each in outcome.live.events if each.mark.endswith("killed")]
    return (
        f"<header><h1>Penstock demo</h1>{badge}</header>"
        f"<p>{outcome.account.sent:,} events in {settings.seconds:g} s, {with_spark}. Killed with SIGKILL on the way: "
        f"{escape(', '.join(killed) or 'nothing')}.</p>"
    )


def _tiles(outcome: Outcome) -> str:
    checks = {each.name: each.value for each in outcome.checks}
    first = "-" if outcome.live.first_result_s is None else f"{outcome.live.first_result_s:.1f} s"
    tiles = [
        (checks["events sent"], "events sent"),
        (checks["lost"], "lost"),
        (checks["judged again"], "judged again"),
        (checks["dead letters"], "dead letters"),
        (delay_text(outcome.typical.p50), "append to verdict, p50"),
        (first, "to the first result"),
    ]
    cells = "".join(f'<div class="tile"><b>{escape(value)}</b><span>{name}</span></div>' for value, name in tiles)
    return f'<div class="tiles">{cells}</div>'


def _charts(outcome: Outcome) -> str:
    series = series_of(outcome)
    rates = [Line("sent", series.sent, "sent"), Line("judged", series.judged, "judged")]
    delays = [Line("p50", series.p50, "judged"), Line("p99", series.p99, "third")]
    lag = [Line("waiting", series.lag, "lag", filled=True)]
    return "".join(
        (
            _section(
                "Transactions a second",
                "The backlog of each outage is worked off afterwards.",
                line_chart(rates, series.outages, series.end_s, text_of=number_text),
                [(line.name, _COLOURS[line.style]) for line in rates],
            ),
            _section(
                "Lag",
                "Transactions that are in the log and not judged yet.",
                line_chart(lag, series.outages, series.end_s, text_of=number_text, height=180),
                [],
            ),
            _section(
                "From append to verdict",
                "By the log's own clock, for the transactions appended in each second.",
                line_chart(delays, series.outages, series.end_s, text_of=delay_text, log=True),
                [(line.name, _COLOURS[line.style]) for line in delays],
            ),
            _section(
                "Page events per 10 seconds",
                "The generator's own count, and what was counted exactly once from the log.",
                bar_chart(series.windows),
                [("generator", "--sent"), ("consumers, in SQLite", "--judged")]
                + ([("pipeline on Spark", "--third")] if outcome.parts.spark else []),
            ),
        )
    )


def _section(title: str, text: str, chart: str, legend: list[tuple[str, str]]) -> str:
    keys = "".join(f'<span><i style="background:var({colour})"></i>{escape(name)}</span>' for name, colour in legend)
    above = f'<div class="legend">{keys}</div>' if keys else ""
    return f"<section>{above}<h2>{title}</h2><p>{text}</p>{chart}</section>"


def _table(outcome: Outcome) -> str:
    rows = "".join(_row(each) for each in (*outcome.checks, *outcome.figures()))
    return (
        "<section><h2>What was checked</h2><p>Everything was read back from the log and compared with what the "
        f"generator says it sent.</p><table>{rows}</table></section>"
    )


def _row(check: Check) -> str:
    mark = {True: '<span class="ok">ok</span>', False: '<span class="wrong">WRONG</span>', None: ""}[check.holds]
    return (
        f'<tr><td>{escape(check.name)}</td><td class="value">{escape(check.value)}</td><td class="mark">{mark}</td>'
        f'<td class="note">{escape(check.note)}</td></tr>'
    )


def _story(outcome: Outcome) -> str:
    rows = "".join(
        f'<tr><td class="time">{each.at_s:.1f} s</td><td>{escape(each.text)}</td></tr>' for each in outcome.live.events
    )
    return f"<section><h2>What happened</h2><table>{rows}</table></section>"


def _foot(outcome: Outcome) -> str:
    began = datetime.datetime.fromtimestamp(outcome.began_ms / 1000, datetime.UTC)
    settings = outcome.settings
    again = f"penstock demo --seed {settings.seed} --seconds {settings.seconds:g} --rate {settings.rate}"
    return (
        f"<footer>{began:%Y-%m-%d %H:%M} UTC · Penstock {__version__} · Python {platform.python_version()} · "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores · acks=all with fsync<br>"
        f"Again: <code>{escape(again)}</code></footer>"
    )
