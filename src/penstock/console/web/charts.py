"""Plots. They are drawn as SVG, so that the style sheet gives their texts the colours of the theme."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nicegui import ui

Points = Sequence[tuple[int, float]]
Unit = Literal["", "/s", "s", "bytes"]

COLOURS: Final = ("#2b8fb5", "#c9772e", "#5f9a4c", "#9a6fc0", "#c25a6a", "#7d8a99")
"""Each has a contrast of 3:1 with the surface in both themes, and they differ for the colour-blind."""
_GRID: Final = "rgba(128, 140, 150, 0.22)"
# How values are written at the axis and in the tip. They are numbers of our own; no name of a user goes in here.
_FORMATS: Final = {
    "": "value => Intl.NumberFormat('en', {notation: 'compact', maximumFractionDigits: 1}).format(value)",
    "/s": "value => Intl.NumberFormat('en', {notation: 'compact', maximumFractionDigits: 1}).format(value) + '/s'",
    "s": "value => value >= 3600 ? (value / 3600).toFixed(1) + ' h' : value >= 60 ? (value / 60).toFixed(1) + ' min'"
    " : Number(value.toPrecision(3)) + ' s'",
    "bytes": "value => { const n = ['B', 'KB', 'MB', 'GB', 'TB']; let i = 0; while (value >= 1024 && i < 4)"
    " { value /= 1024; i += 1 } return Number(value.toPrecision(3)) + ' ' + n[i] }",
}


_SHORTEST_SPAN_S: Final = 300


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot: times in milliseconds with values."""

    name: str
    points: Points


class LineChart:
    """A plot over time. `show` sends new points only when they differ."""

    def __init__(self, lines: Sequence[Line], *, unit: Unit = "", height_px: int = 180, span_s: float = 3600) -> None:
        self._shown = list(lines)
        self._span_s = span_s
        options = _frame_of(unit, has_legend=len(lines) > 1)
        options["xAxis"] = {
            "type": "time",
            "axisLine": {"lineStyle": {"color": _GRID}},
            "axisTick": {"show": False},
            "splitLine": {"show": False},
            "axisLabel": {"hideOverlap": True, "fontSize": 11},
            **self._span(self._shown),
        }
        options["series"] = [_line(each, index) for index, each in enumerate(lines)]
        self.element = ui.echart(options, renderer="svg").classes("chart").style(f"height: {height_px}px")

    def show(self, lines: Sequence[Line]) -> None:
        fresh = list(lines)
        if fresh == self._shown:
            return
        self._shown = fresh
        self.element.options["xAxis"].update(self._span(fresh))
        self.element.options["series"] = [_line(each, index) for index, each in enumerate(fresh)]
        self.element.update()

    def _span(self, lines: Sequence[Line]) -> dict[str, int]:
        """As long as was asked for; shorter while there is little to show, which would be a stroke at the edge."""
        now_ms = int(time.time() * 1000)
        first_ms = min((line.points[0][0] for line in lines if line.points), default=now_ms)
        shown_ms = max(now_ms - first_ms, _SHORTEST_SPAN_S * 1000)
        return {"min": now_ms - int(min(self._span_s * 1000, shown_ms)), "max": now_ms}


class BarChart:
    """Values side by side, such as the sizes of partitions."""

    def __init__(self, names: Sequence[str], values: Sequence[float], *, unit: Unit = "", height_px: int = 180) -> None:
        self._shown = (list(names), list(values))
        options = _frame_of(unit, has_legend=False)
        options["tooltip"]["axisPointer"] = {"type": "shadow", "shadowStyle": {"color": _GRID}}
        options["xAxis"] = {
            "type": "category",
            "data": list(names),
            "axisLine": {"lineStyle": {"color": _GRID}},
            "axisTick": {"show": False},
            "axisLabel": {"hideOverlap": True, "fontSize": 11},
        }
        options["series"] = [_bars(values)]
        self.element = ui.echart(options, renderer="svg").classes("chart").style(f"height: {height_px}px")

    def show(self, names: Sequence[str], values: Sequence[float]) -> None:
        fresh = (list(names), list(values))
        if fresh == self._shown:
            return
        self._shown = fresh
        self.element.options["xAxis"]["data"] = fresh[0]
        self.element.options["series"] = [_bars(values)]
        self.element.update()


def line_chart(lines: Sequence[Line], *, unit: Unit = "", height_px: int = 180, span_s: float = 3600) -> LineChart:
    """A plot over the last `span_s` seconds, drawn where this is called."""
    return LineChart(lines, unit=unit, height_px=height_px, span_s=span_s)


def bar_chart(names: Sequence[str], values: Sequence[float], *, unit: Unit = "", height_px: int = 180) -> BarChart:
    return BarChart(names, values, unit=unit, height_px=height_px)


def _frame_of(unit: Unit, *, has_legend: bool) -> dict[str, Any]:
    return {
        "animation": False,
        "useUTC": True,
        "color": list(COLOURS),
        "grid": {"left": 8, "right": 12, "top": 30 if has_legend else 12, "bottom": 4, "containLabel": True},
        "legend": {"show": has_legend, "left": 0, "top": 0, "icon": "roundRect", "itemWidth": 10, "itemHeight": 4},
        "tooltip": {
            "trigger": "axis",
            "confine": True,
            "className": "chart-tip",
            ":valueFormatter": _FORMATS[unit],
            "axisPointer": {"lineStyle": {"color": "rgba(128, 140, 150, 0.6)"}},
        },
        "yAxis": {
            "type": "value",
            "min": 0,
            "minInterval": 1 if unit == "" else 0,
            "splitNumber": 3,
            "splitLine": {"lineStyle": {"color": _GRID}},
            "axisLabel": {":formatter": _FORMATS[unit], "fontSize": 11},
        },
    }


def _line(line: Line, index: int) -> dict[str, Any]:
    return {
        "type": "line",
        "name": line.name,
        "data": [[at_ms, value] for at_ms, value in line.points],
        "showSymbol": len(line.points) == 1,
        "symbolSize": 4,
        "lineStyle": {"width": 1.75},
        "areaStyle": {"opacity": 0.10} if index == 0 else None,
        "emphasis": {"disabled": True},
    }


def _bars(values: Sequence[float]) -> dict[str, Any]:
    return {"type": "bar", "data": list(values), "barMaxWidth": 36, "itemStyle": {"borderRadius": [2, 2, 0, 0]}}
