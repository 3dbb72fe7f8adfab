"""Charts as SVG, drawn by hand so that the report needs nothing but a browser; its style sheet has their colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from penstock.cli.demo.series import Outage, Points, WindowBars

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
    """Lines over seconds, with what was away behind them."""
    highest = max((y for line in lines for _, y in line.points), default=1.0)
    scale = _Scale(max(highest * (1.0 if log else 1.08), 1.0), height, log)

    def across(x: float) -> float:
        return _LEFT + (x / max(end_s, 1e-9)) * (_WIDTH - _LEFT - _RIGHT)

    parts = [_outage(each, across, height, row) for each, row in zip(outages, _rows(outages, across), strict=True)]
    parts += [_grid_line(scale.y(value), text_of(value)) for value in scale.ticks()]
    parts += [_second(second, across(second), height) for second in _steps(end_s, _MOST_TICKS * 2)]
    for line in lines:
        # Where nothing was measured for a while, such as during an outage, there is no line.
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
    """For each window a bar for each side that counted it."""
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
    """From a value to its height in the picture."""

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
    """Round numbers from 0 up to `highest`, not more than `most` of them beside the 0."""
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
    """In which of two rows each name stands: one that would run into its neighbour is a row higher."""
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
