"""The overview: what flows, what is behind, what failed, at a glance and live."""

from __future__ import annotations

import time
from typing import Final

from nicegui import ui

from penstock.console.web import parts
from penstock.console.web.absence import Nothing
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.pages import glance

SPAN_S: Final = 3600
PLOTS_EVERY_S: Final = 10.0
_WHAT_IS_BEHIND: Final = (
    f"One is when a record has waited for it for {parts.duration_text(glance.WORRYING_LAG_S)}, or its lag grows."
)
_FIGURES: Final = (
    ("in", "In", "/topics"),
    ("out", "Read", "/groups"),
    ("lag", "Lag", "/groups"),
    ("letters", "Dead letters", "/letters"),
    ("alerts", "Alerts", "/alerts"),
    ("topics", "Topics, records", "/topics"),
)
_GROUPS: Final = (
    parts.Column("name", "Group", "mono"),
    parts.Column("lag", "Lag", "number"),
    parts.Column("lag_s", "Lag, time", "number"),
    parts.Column("drain", "Drained in", "number", on_phone=False),
    parts.Column("loss", "Loss in", "number"),
)
_TOPICS: Final = (
    parts.Column("name", "Topic", "mono"),
    parts.Column("rate", "In", "number"),
    parts.Column("records", "Records", "number"),
)
_ALERTS: Final = (
    parts.Column("severity", "Severity", "badge"),
    parts.Column("text", "What is so", "sentence"),
    parts.Column("since", "Since", "number"),
)
_LETTERS: Final = (parts.Column("spec", "Place", "mono"), parts.Column("waiting", "Waiting", "number"))
_PIPELINES: Final = (
    parts.Column("name", "Pipeline", "mono"),
    parts.Column("state", "State", "badge"),
    parts.Column("rows", "Rows", "number"),
    parts.Column("lag", "Lag", "number"),
)


def register(console: Console) -> None:
    @ui.page("/")
    async def overview_page() -> None:
        with frame(console, "Overview", "overview"):
            await _Overview(console).draw()


class _Listing:
    """A panel with a short table, or with what to do while there is nothing to show."""

    def __init__(
        self,
        console: Console,
        title: str,
        columns: tuple[parts.Column, ...],
        nothing: tuple[str, str, str],
        *,
        needs_stream: bool = True,
    ) -> None:
        with parts.panel(title):
            self._nothing = Nothing(console, *nothing, needs_stream=needs_stream)
            self._table = parts.table(columns, ())

    def show(self, rows: list[parts.Row]) -> None:
        self._table.show(rows)
        self._table.element.set_visibility(bool(rows))
        self._nothing.show(not rows)


class _Overview:
    """One open overview."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._service = console.service
        self._plotted_s = 0.0

    async def draw(self) -> None:
        url = self._service.url
        with parts.stats():
            self._figures = {name: parts.stat(label, parts.NOTHING, href=href) for name, label, href in _FIGURES}
        with ui.element("div").classes("columns"):
            with parts.panel("Records a second", "last hour"):
                self._flow = parts.line_chart((parts.Line("In", ()), parts.Line("Read", ())), unit="/s", span_s=SPAN_S)
            with parts.panel("Lag", "records that groups have not read, last hour"):
                self._lag = parts.line_chart((parts.Line("Lag", ()),), span_s=SPAN_S)
        with ui.element("div").classes("columns"):
            self._groups = _Listing(
                self._console, "Groups that are behind", _GROUPS, ("No group is behind.", _WHAT_IS_BEHIND, "")
            )
            self._alerts = _Listing(
                self._console,
                "Alerts that fire",
                _ALERTS,
                ("No alert fires.", "Rules are made on the page Alerts.", ""),
                needs_stream=False,
            )
        with ui.element("div").classes("columns"):
            self._topics = _Listing(
                self._console,
                "Busiest topics",
                _TOPICS,
                (
                    "There are no topics yet.",
                    "Send the first record:",
                    f"echo hello | penstock produce hello --url {url}",
                ),
            )
            self._pipelines = _Listing(
                self._console,
                "Pipelines",
                _PIPELINES,
                (
                    "No pipeline is known.",
                    "Tell the console where pipelines keep their checkpoints:",
                    f"penstock console --url {url} --pipelines DIR",
                ),
            )
            self._letters = _Listing(
                self._console,
                "Dead letters",
                _LETTERS,
                (
                    "No dead letters are known.",
                    "Name the places where they go, or topics that end in .dlq are found by themselves:",
                    f"penstock console --url {url} --dead-letters SPEC",
                ),
            )
        await self._update()
        live(self._update)

    async def _update(self) -> None:
        snapshot, alerts = self._service.snapshot(), self._service.alerts()
        for name, figure in glance.figures(snapshot, alerts, is_known=self._service.is_known).items():
            self._figures[name].show(figure.value, note=figure.note, tone=figure.tone)
        self._groups.show(glance.groups_behind(snapshot))
        self._alerts.show(glance.firing_alerts(alerts, int(time.time() * 1000)))
        self._topics.show(glance.busiest_topics(snapshot))
        self._pipelines.show(glance.pipelines(snapshot))
        self._letters.show(glance.letter_places(snapshot))
        if time.monotonic() - self._plotted_s >= PLOTS_EVERY_S:
            self._plotted_s = time.monotonic()
            appended, read, lag = await parts.in_background(self._series)
            self._flow.show((parts.Line("In", appended), parts.Line("Read", read)))
            self._lag.show((parts.Line("Lag", lag),))

    def _series(self) -> tuple[parts.Points, parts.Points, parts.Points]:
        since_ms = int((time.time() - SPAN_S) * 1000)
        return (
            self._service.series("system", "", "rate_per_s", since_ms),
            self._service.series("system", "", "read_per_s", since_ms),
            self._service.series("system", "", "lag", since_ms),
        )
