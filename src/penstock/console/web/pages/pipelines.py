"""The pipelines on Spark, by version: rates, lag and restarts; one of them, with its queries and their events."""

from __future__ import annotations

import time
from typing import Final

from nicegui import ui

from penstock.console.views import PipelineDetail
from penstock.console.web import charts, parts, tables, texts
from penstock.console.web.absence import Listing, loaded
from penstock.console.web.background import in_background
from penstock.console.web.frame import Console, frame, live
from penstock.errors import PenstockError
from penstock.observe.facts import DEAD, PipelineFacts, QueryFacts

SILENT_S: Final = 120.0
"""A running query that has not reported for this long is shown as silent."""
_COLUMNS: Final = (
    tables.Column("name", "Pipeline", "mono"),
    tables.Column("state", "State", "badge"),
    tables.Column("queries", "Queries", "number", on_phone=False),
    tables.Column("rate", "Rows", "number", text=texts.rate_text),
    tables.Column("lag", "Lag", "number", text=texts.number_text),
    tables.Column("watermark", "Watermark", "mono", on_phone=False),
    tables.Column("late", "Late rows", "number", on_phone=False, text=texts.number_text),
    tables.Column("restarts", "Restarts", "number", on_phone=False),
    tables.Column("told", "Last report", on_phone=False, text=texts.ago_text),
)


def register(console: Console) -> None:
    @ui.page("/pipelines")
    async def pipelines_page() -> None:
        with frame(console, "Pipelines", "pipelines"):
            parts.title("Pipelines", "Queries on Spark: rates, lag, watermarks, late rows and restarts.")
            trouble = parts.Problem()
            nothing = (
                "No pipeline has run here.",
                "A pipeline is found by its checkpoint folder, beside the log or where --pipelines says.",
                f"penstock run usage.py --url {console.service.url}",
            )
            listing = Listing(console, _COLUMNS, nothing, key="name", height="calc(100vh - 12rem)", sort_by="name")

            async def update() -> None:
                with trouble.told():
                    listing.show([_row(each) for each in await in_background(console.service.pipelines)])

            await update()
            live(update)

    @ui.page("/pipelines/{name:path}")
    async def pipeline_page(name: str) -> None:
        with frame(console, name, "pipelines"):
            detail = await loaded(name, "This pipeline cannot be shown.", lambda: console.service.pipeline(name))
            if detail is not None:
                await _Pipeline(console, detail).draw()


def state_of(facts: PipelineFacts) -> tuple[str, tables.Tone]:
    tones: dict[str, tables.Tone] = {
        "failed": "bad",
        DEAD: "bad",
        "waiting": "warn",
        "stopped": "plain",
        "running": "good",
        "starting": "good",
        "finished": "good",
    }
    return facts.state, tones[facts.state]


def query_tone(query: QueryFacts) -> tables.Tone:
    tones: dict[str, tables.Tone] = {
        "running": "good",
        "finished": "good",
        "failed": "bad",
        DEAD: "bad",
        "waiting": "warn",
    }
    return tones.get(query.state, "plain")


def _row(facts: PipelineFacts) -> tables.Row:
    state, tone = state_of(facts)
    told_ms = max((query.at_ms for query in facts.queries), default=None)
    is_silent = facts.is_running and told_ms is not None and time.time() - told_ms / 1000 > SILENT_S
    late = sum(query.rows_late for query in facts.queries)
    restarts = sum(query.restarts for query in facts.queries)
    rate = sum(query.rows_per_s for query in facts.queries) if facts.is_running else None
    return {
        "name": facts.name,
        "name_href": texts.path_to("pipelines", facts.name),
        "state": state,
        "state_tone": tone,
        "queries": len(facts.queries),
        "rate": rate,
        "lag": facts.lag,
        "watermark": min((query.watermark for query in facts.queries if query.watermark), default=None),
        "late": late,
        "late_tone": "warn" if late else "plain",
        "restarts": restarts,
        "restarts_tone": "warn" if restarts else "plain",
        "told": told_ms,
        "told_tone": "warn" if is_silent else "plain",
    }


_PLOTS: Final[tuple[tuple[str, str, charts.Unit], ...]] = (
    ("rows_per_s", "Rows a second", "/s"),
    ("lag", "Lag in records", ""),
    ("batch_s", "Duration of a batch", "s"),
    ("state_rows", "Rows of state", ""),
    ("rows_late", "Late rows", ""),
)
_QUERIES: Final = (
    tables.Column("query", "Query", "mono"),
    tables.Column("state", "State", "badge"),
    tables.Column("batch", "Batch", "number", on_phone=False),
    tables.Column("rate", "Rows", "number", text=texts.rate_text),
    tables.Column("batch_s", "Batch took", "number", on_phone=False, text=texts.duration_text),
    tables.Column("lag", "Lag", "number", text=texts.number_text),
    tables.Column("read", "Read", "number", on_phone=False, text=texts.number_text),
    tables.Column("written", "Written", "number", on_phone=False, text=texts.number_text),
    tables.Column("state_rows", "State rows", "number", on_phone=False, text=texts.number_text),
    tables.Column("late", "Late", "number", on_phone=False, text=texts.number_text),
    tables.Column("refused", "Refused", "number", on_phone=False, text=texts.number_text),
    tables.Column("bad", "Bad", "number", on_phone=False, text=texts.number_text),
    tables.Column("dropped", "Dropped", "number", on_phone=False, text=texts.number_text),
    tables.Column("restarts", "Restarts", "number", on_phone=False),
    tables.Column("watermark", "Watermark", "mono", on_phone=False),
    tables.Column("told", "Last report", on_phone=False, text=texts.ago_text),
)
_BAD_ROWS: Final = (
    tables.Column("query", "Query", "mono"),
    tables.Column("rule", "What they failed", "wide"),
    tables.Column("rows", "Rows", "number", text=texts.number_text),
    tables.Column("in_batch", "In the last batch", "number", text=texts.number_text),
)
_EVENTS: Final = (
    tables.Column("at", "Time (UTC)", text=texts.time_text),
    tables.Column("query", "Query", "mono"),
    tables.Column("what", "What", "badge"),
    tables.Column("batch", "After batch", "number", on_phone=False),
    tables.Column("error", "Error", "wide"),
)
_TONES: Final[dict[str, tables.Tone]] = {"failed": "bad", "restarted": "warn", "started": "good", "finished": "good"}


class _Pipeline:
    def __init__(self, console: Console, detail: PipelineDetail) -> None:
        self._service = console.service
        self._detail = detail

    async def draw(self) -> None:
        with parts.toolbar():
            parts.title(self._detail.facts.name, f"Checkpoints in {self._detail.facts.folder}")
            self._state = parts.badge("")
        self._errors = ui.element("div").classes("alerts")
        with parts.panel("Queries"):
            self._queries = tables.Table(_QUERIES, (), key="query", sort_by="query")
        with parts.panel("Bad rows", "Rows of this run that failed, by what they failed."):
            self._bad_rows = tables.Table(_BAD_ROWS, (), sort_by="rows", is_descending=True)
            self._none_bad = parts.label("No rows failed.").classes("about")
        with parts.panel("Over time"):
            names = [query.query for query in self._detail.facts.queries] or [""]
            self._plots = charts.Plots(_PLOTS, names, self._lines, height_px=170)
        with parts.panel("What happened", "Starts, restarts and errors, newest first."):
            self._events = tables.Table(_EVENTS, (), height="50vh", sort_by="at", is_descending=True)
            self._quiet = parts.label("No events yet.").classes("about")
        self._told_errors: tuple[tuple[str, str], ...] | None = None
        self._show()
        await self._plots.draw()
        live(self._update)

    async def _update(self) -> None:
        try:
            self._detail = await in_background(self._service.pipeline, self._detail.facts.name)
        except PenstockError:
            return  # its folder is gone or cannot be read now; the known facts stay
        self._show()
        await self._plots.update()

    def _show(self) -> None:
        facts = self._detail.facts
        state, tone = state_of(facts)
        self._state.set_text(state)
        self._state.classes(replace=f"badge tone-{tone}")
        self._queries.show([_query_row(query) for query in facts.queries])
        bad = [
            {
                "id": f"{query.query} {rule}",
                "query": query.query,
                "rule": rule,
                "rows": count,
                "in_batch": query.batch_bad_rows.get(rule, 0),
            }
            for query in facts.queries
            for rule, count in query.bad_rows.items()
            if count
        ]
        self._bad_rows.show(bad)
        self._bad_rows.element.set_visibility(bool(bad))
        self._none_bad.set_visibility(not bad)
        self._events.show(
            [
                {
                    "id": str(index),
                    "at": each.at_ms,
                    "query": each.query,
                    "what": each.what,
                    "what_tone": _TONES.get(each.what, "plain"),
                    "batch": each.batch_id if each.batch_id >= 0 else None,
                    "error": each.error or "",
                }
                for index, each in enumerate(self._detail.events)
            ]
        )
        self._events.element.set_visibility(bool(self._detail.events))
        self._quiet.set_visibility(not self._detail.events)
        self._show_errors()

    def _show_errors(self) -> None:
        fresh = tuple(
            (query.query, f"{query.error} (with tracebacks in {query.error_file})" if query.error_file else query.error)
            for query in self._detail.facts.queries
            if query.error
        )
        if fresh == self._told_errors:
            return
        self._told_errors = fresh
        self._errors.clear()
        with self._errors:
            for query, error in fresh:
                with ui.element("div").classes("notice-inline tone-warn"):
                    parts.label(f"The last error of {query}: {error}")

    def _lines(self, metric: str, since_ms: int) -> list[charts.Line]:
        facts = self._detail.facts
        return [
            charts.Line(query.query, self._service.series("query", f"{facts.name}/{query.query}", metric, since_ms))
            for query in facts.queries
        ]


def _query_row(query: QueryFacts) -> tables.Row:
    return {
        "query": query.query,
        "state": query.state,
        "state_tone": query_tone(query),
        "batch": query.batch_id,
        "rate": query.rows_per_s,
        "batch_s": query.batch_s,
        "lag": query.lag,
        "read": query.rows_read,
        "written": query.rows_written,
        "state_rows": query.state_rows,
        "late": query.rows_late,
        "late_tone": "warn" if query.rows_late else "plain",
        "refused": query.rows_refused,
        "refused_tone": "warn" if query.rows_refused else "plain",
        "bad": query.rows_bad,
        "bad_tone": "warn" if query.rows_bad else "plain",
        "dropped": query.rows_dropped,
        "restarts": query.restarts,
        "restarts_tone": "warn" if query.restarts else "plain",
        "watermark": query.watermark,
        "told": query.at_ms,
    }
