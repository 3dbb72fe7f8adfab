"""The report as one picture, for places that take no page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from penstock.cli.demo.outcome import Outcome
from penstock.cli.demo.series import Points, Series, series_of

_GREY: Final = "#8a97a8"
_BLUE: Final = "#0f7fb8"
_ORANGE: Final = "#c2570c"
_VIOLET: Final = "#7a5bd0"
_MOST_NAMES: Final = 12
_INK: Final = "#16202c"


def draw(outcome: Outcome, file: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    series = series_of(outcome)
    figure = Figure(figsize=(11, 8.5), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    rates, lag, delays, windows = figure.subplots(4, 1, height_ratios=(3, 2, 3, 3))
    verdict = "not as promised" if outcome.wrong else "nothing lost, every total right"
    figure.suptitle(f"Penstock demo: {outcome.account.sent:,} events, {verdict}", color=_INK, fontweight="bold")
    _lines(rates, "transactions a second", [("sent", series.sent, _GREY), ("judged", series.judged, _BLUE)], series)
    _lines(lag, "lag, transactions", [("", series.lag, _ORANGE)], series)
    lag.fill_between(*_columns(series.lag), color=_ORANGE, alpha=0.16, linewidth=0)
    _lines(delays, "append to verdict, ms", [("p50", series.p50, _BLUE), ("p99", series.p99, _VIOLET)], series)
    delays.set_yscale("log")
    _name_outages(rates, series)
    _bars(windows, series)
    figure.savefig(file)


def _columns(points: Points) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _lines(axes: Any, title: str, lines: Sequence[tuple[str, Points, str]], series: Series) -> None:
    for name, points, colour in lines:
        axes.plot(*_columns(points), color=colour, linewidth=1.8, label=name or None)
    for outage in series.outages:
        axes.axvspan(outage.begin_s, outage.end_s, color=_ORANGE, alpha=0.13, linewidth=0)
    axes.set_xlim(0, series.end_s)
    _dress(axes, title, has_legend=any(name for name, _, _ in lines))


def _name_outages(axes: Any, series: Series) -> None:
    for outage in series.outages:
        axes.annotate(
            outage.name, (outage.begin_s, 1.02), xycoords=("data", "axes fraction"), color=_ORANGE, fontsize=8
        )


def _bars(axes: Any, series: Series) -> None:
    sides: list[tuple[str, str, list[int]]] = [
        ("generator", _GREY, [each.generator for each in series.windows]),
        ("consumers, in SQLite", _BLUE, [each.consumers for each in series.windows]),
    ]
    if any(each.spark is not None for each in series.windows):
        sides.append(("pipeline on Spark", _VIOLET, [each.spark or 0 for each in series.windows]))
    width = 0.8 / len(sides)
    for number, (name, colour, counts) in enumerate(sides):
        places = [index + (number - (len(sides) - 1) / 2) * width for index in range(len(counts))]
        axes.bar(places, counts, width * 0.92, color=colour, label=name)
    axes.set_ylim(0, 1.3 * max((each.generator for each in series.windows), default=1))
    named = range(0, len(series.windows), -(-len(series.windows) // _MOST_NAMES))
    axes.set_xticks(named, [series.windows[index].name for index in named])
    _dress(axes, "page events per 10 s", has_legend=True)


def _dress(axes: Any, title: str, *, has_legend: bool) -> None:
    axes.set_ylabel(title, color=_INK, fontsize=9)
    axes.tick_params(colors="#5d6b7c", labelsize=8)
    axes.grid(axis="y", color="#e3e7ec")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c5ccd5")
    if has_legend:
        axes.legend(loc="upper right", fontsize=8, frameon=False, ncols=3)
