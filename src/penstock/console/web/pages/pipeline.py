"""One pipeline: how each of its queries gets on, over time, and what happened to them."""

from __future__ import annotations

import time
from typing import Final

from nicegui import ui

from penstock.console.views import PipelineDetail
from penstock.console.web import parts
from penstock.console.web.absence import draw_failure
from penstock.console.web.charts import Unit
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.pages.group import PLOTS_EVERY_S, RANGES_S
from penstock.console.web.pages.looks import wear_details
from penstock.console.web.pages.pipelines import query_tone, state_of
from penstock.errors import PenstockError
from penstock.observe.facts import QueryFacts

_PLOTS: Final[tuple[tuple[str, str, Unit], ...]] = (
    ("rows_per_s", "Rows a second", "/s"),
    ("lag", "Lag in records", ""),
    ("batch_s", "Duration of a batch", "s"),
    ("state_rows", "Rows of state", ""),
    ("rows_late", "Late rows", ""),
)
_QUERIES: Final = (
    parts.Column("query", "Query", "mono"),
    parts.Column("state", "State", "badge"),
    parts.Column("batch", "Batch", "number", on_phone=False),
    parts.Column("rate", "Rows", "number"),
    parts.Column("batch_s", "Batch took", "number", on_phone=False),
    parts.Column("lag", "Lag", "number"),
    parts.Column("read", "Read", "number", on_phone=False),
    parts.Column("written", "Written", "number", on_phone=False),
    parts.Column("state_rows", "State rows", "number", on_phone=False),
    parts.Column("late", "Late", "number", on_phone=False),
    parts.Column("restarts", "Restarts", "number", on_phone=False),
    parts.Column("watermark", "Watermark", "mono", on_phone=False),
    parts.Column("told", "Last told", on_phone=False),
)
_HAPPENINGS: Final = (
    parts.Column("at", "Time (UTC)"),
    parts.Column("query", "Query", "mono"),
    parts.Column("what", "What", "badge"),
    parts.Column("batch", "After batch", "number", on_phone=False),
    parts.Column("error", "Error", "wide"),
)
_TONES: Final[dict[str, parts.Tone]] = {"failed": "bad", "restarted": "warn", "started": "good", "finished": "good"}


def register(console: Console) -> None:
    @ui.page("/pipelines/{name:path}")
    async def pipeline_page(name: str) -> None:
        wear_details()
        with frame(console, name, "pipelines"):
            try:
                detail = await parts.in_background(console.service.pipeline, name)
            except PenstockError as error:
                draw_failure(name, "This pipeline cannot be shown.", error, lambda: console.service.pipeline(name))
                return
            await _Pipeline(console, detail).draw()


class _Pipeline:
    """The page of one pipeline."""

    def __init__(self, console: Console, detail: PipelineDetail) -> None:
        self._service = console.service
        self._detail = detail
        self._charts: dict[str, parts.LineChart] = {}
        self._fed_at_s = 0.0

    async def draw(self) -> None:
        with parts.toolbar():
            parts.title(self._detail.facts.name, f"Checkpoints in {self._detail.facts.folder}")
            self._state = parts.badge("")
        self._errors = ui.element("div").classes("alerts")
        with parts.panel("Queries"):
            self._queries = parts.table(_QUERIES, (), key="query", sort_by="query")
        with parts.panel("Over time"):
            self._range = ui.toggle(list(RANGES_S), value="1 h").props("no-caps dense flat").classes("choices")
            self._range.on_value_change(self._draw_charts)
            self._plots = ui.element("div").classes("plots")
        with parts.panel("What happened", "Starts, restarts and errors, newest first."):
            self._happenings = parts.table(_HAPPENINGS, (), height="50vh", sort_by="at", is_descending=True)
            self._quiet = parts.label("Nothing was noted yet.").classes("about")
        self._told_errors: tuple[tuple[str, str], ...] | None = None
        self._show()
        await self._draw_charts()
        live(self._update)

    async def _update(self) -> None:
        try:
            self._detail = await parts.in_background(self._service.pipeline, self._detail.facts.name)
        except PenstockError:
            return  # its folder is gone or cannot be read now; what was known stays
        self._show()
        if time.monotonic() - self._fed_at_s >= PLOTS_EVERY_S:
            await self._feed_charts()

    def _show(self) -> None:
        facts = self._detail.facts
        state, tone = state_of(facts)
        self._state.set_text(state)
        self._state.classes(replace=f"badge tone-{tone}")
        self._queries.show([_query_row(query) for query in facts.queries])
        self._happenings.show(
            [
                {
                    "id": str(index),
                    "at": each.at_ms,
                    "at_text": parts.time_text(each.at_ms),
                    "query": each.query,
                    "what": each.what,
                    "what_tone": _TONES.get(each.what, "plain"),
                    "batch": each.batch_id if each.batch_id >= 0 else None,
                    "error": each.error or "",
                }
                for index, each in enumerate(self._detail.happenings)
            ]
        )
        self._happenings.element.set_visibility(bool(self._detail.happenings))
        self._quiet.set_visibility(not self._detail.happenings)
        self._show_errors()

    def _show_errors(self) -> None:
        fresh = tuple((query.query, query.error) for query in self._detail.facts.queries if query.error)
        if fresh == self._told_errors:
            return
        self._told_errors = fresh
        self._errors.clear()
        with self._errors:
            for query, error in fresh:
                with ui.element("div").classes("notice-inline tone-warn"):
                    parts.label(f"The last error of {query}: {error}")

    async def _draw_charts(self) -> None:
        self._plots.clear()
        span_s = RANGES_S[str(self._range.value)]
        with self._plots:
            for metric, label, unit in _PLOTS:
                with ui.element("div").classes("plot"):
                    parts.label(label).classes("about")
                    self._charts[metric] = parts.line_chart(
                        [parts.Line(query.query, ()) for query in self._detail.facts.queries] or [parts.Line("", ())],
                        unit=unit,
                        height_px=170,
                        span_s=span_s,
                    )
        await self._feed_charts()

    async def _feed_charts(self) -> None:
        self._fed_at_s = time.monotonic()
        since_ms = int((time.time() - RANGES_S[str(self._range.value)]) * 1000)
        for metric, chart in list(self._charts.items()):
            chart.show(await parts.in_background(self._lines, metric, since_ms))

    def _lines(self, metric: str, since_ms: int) -> list[parts.Line]:
        facts = self._detail.facts
        return [
            parts.Line(query.query, self._service.series("query", f"{facts.name}/{query.query}", metric, since_ms))
            for query in facts.queries
        ]


def _query_row(query: QueryFacts) -> parts.Row:
    return {
        "query": query.query,
        "state": query.state,
        "state_tone": query_tone(query),
        "batch": query.batch_id,
        "rate": query.rows_per_s,
        "rate_text": parts.rate_text(query.rows_per_s),
        "batch_s": query.batch_s,
        "batch_s_text": parts.duration_text(query.batch_s),
        "lag": query.lag,
        "lag_text": parts.number_text(query.lag),
        "read": query.rows_read,
        "read_text": parts.number_text(query.rows_read),
        "written": query.rows_written,
        "written_text": parts.number_text(query.rows_written),
        "state_rows": query.state_rows,
        "state_rows_text": parts.number_text(query.state_rows),
        "late": query.rows_late,
        "late_text": parts.number_text(query.rows_late),
        "late_tone": "warn" if query.rows_late else "plain",
        "restarts": query.restarts,
        "restarts_tone": "warn" if query.restarts else "plain",
        "watermark": query.watermark,
        "told": query.at_ms,
        "told_text": parts.ago_text(query.at_ms),
    }
