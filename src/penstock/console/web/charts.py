"""Charts, drawn as SVG, so that the style sheet sets the colours of their texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nicegui import ui

from penstock.console.web.background import from_disk

Points = Sequence[tuple[int, float]]
Unit = Literal["", "/s", "s", "bytes"]

COLOURS: Final = ("#2b8fb5", "#c9772e", "#5f9a4c", "#9a6fc0", "#c25a6a", "#7d8a99")
"""Each has a contrast of 3:1 with the surface in both themes, and they are distinguishable for the colour-blind."""
_GRID: Final = "rgba(128, 140, 150, 0.22)"
# The format of values at the axis and in the tooltip: numbers only, never a name of a user.
_FORMATS: Final = {
    "": "value => Intl.NumberFormat('en', {notation: 'compact', maximumFractionDigits: 1}).format(value)",
    "/s": "value => Intl.NumberFormat('en', {notation: 'compact', maximumFractionDigits: 1}).format(value) + '/s'",
    "s": "value => value >= 3600 ? (value / 3600).toFixed(1) + ' h' : value >= 60 ? (value / 60).toFixed(1) + ' min'"
    " : Number(value.toPrecision(3)) + ' s'",
    "bytes": "value => { const n = ['B', 'KB', 'MB', 'GB', 'TB']; let i = 0; while (value >= 1024 && i < 4)"
    " { value /= 1024; i += 1 } return Number(value.toPrecision(3)) + ' ' + n[i] }",
}


_SHORTEST_SPAN_S: Final = 300
RANGES_S: Final = {"15 min": 900, "1 h": 3_600, "6 h": 21_600, "24 h": 86_400, "7 d": 604_800}
PLOTS_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Points


class LineChart:
    """A chart over time. `show` sends new points only when they differ."""

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
        """The requested span; shorter while there is little to show."""
        now_ms = int(time.time() * 1000)
        first_ms = min((line.points[0][0] for line in lines if line.points), default=now_ms)
        shown_ms = max(now_ms - first_ms, _SHORTEST_SPAN_S * 1000)
        return {"min": now_ms - int(min(self._span_s * 1000, shown_ms)), "max": now_ms}


class BarChart:
    """Bars for values such as the sizes of partitions."""

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


class Plots:
    """A chart for each metric over a range of time that the user chooses. Call `draw` once, then `update` often."""

    def __init__(
        self,
        metrics: Sequence[tuple[str, str, Unit]],
        names: Sequence[str],
        lines: Callable[[str, int], list[Line]],
        height_px: int,
    ) -> None:
        """`metrics` are names, labels and units; `names` those of the lines; `lines` reads a metric since a time in
        milliseconds."""
        self._metrics = metrics
        self._names = names
        self._lines = lines
        self._height_px = height_px
        self._charts: dict[str, LineChart] = {}
        self._fed_at_s = 0.0
        self._range = ui.toggle(list(RANGES_S), value="1 h").props("no-caps dense flat").classes("choices")
        self._range.on_value_change(self.draw)
        self._element = ui.element("div").classes("plots")

    async def draw(self) -> None:
        self._element.clear()
        lines = [Line(name, ()) for name in self._names]
        with self._element:
            for metric, label, unit in self._metrics:
                with ui.element("div").classes("plot"):
                    ui.label(label).classes("about")
                    chart = LineChart(lines, unit=unit, height_px=self._height_px, span_s=self._span_s)
                    self._charts[metric] = chart
        await self._feed()

    async def update(self) -> None:
        if time.monotonic() - self._fed_at_s >= PLOTS_EVERY_S:
            await self._feed()

    @property
    def _span_s(self) -> int:
        return RANGES_S[str(self._range.value)]

    async def _feed(self) -> None:
        self._fed_at_s = time.monotonic()
        since_ms = int((time.time() - self._span_s) * 1000)
        for metric, chart in list(self._charts.items()):
            chart.show(await from_disk(self._lines, metric, since_ms))


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
