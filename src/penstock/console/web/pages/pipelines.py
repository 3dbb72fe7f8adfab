"""The pipelines on Spark, each version of its own: how fast they run, how far behind, how often they had to restart."""

from __future__ import annotations

import time
from typing import Final

from nicegui import ui

from penstock.console.web import parts
from penstock.console.web.absence import Nothing
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.pages.looks import Trouble, wear_details
from penstock.observe.facts import PipelineFacts, QueryFacts

SILENT_S: Final = 120.0
"""A query that runs and has told nothing for so long is shown as silent."""
_COLUMNS: Final = (
    parts.Column("name", "Pipeline", "mono"),
    parts.Column("state", "State", "badge"),
    parts.Column("queries", "Queries", "number", on_phone=False),
    parts.Column("rate", "Rows", "number"),
    parts.Column("lag", "Lag", "number"),
    parts.Column("watermark", "Watermark", "mono", on_phone=False),
    parts.Column("late", "Late rows", "number", on_phone=False),
    parts.Column("restarts", "Restarts", "number", on_phone=False),
    parts.Column("told", "Last told", on_phone=False),
)


def register(console: Console) -> None:
    @ui.page("/pipelines")
    async def pipelines_page() -> None:
        wear_details()
        with frame(console, "Pipelines", "pipelines"):
            parts.title("Pipelines", "Queries on Spark: rates, lag, watermarks, late rows and restarts.")
            trouble = Trouble()
            with parts.panel() as empty:
                nothing = Nothing(
                    console,
                    "No pipeline has run here.",
                    "A pipeline is found by its checkpoint folder, beside the log or where --pipelines says.",
                    f"penstock run usage.py --url {console.service.url}",
                )
            with parts.panel() as panel:
                table = parts.table(_COLUMNS, (), key="name", height="calc(100vh - 12rem)", sort_by="name")

            async def update() -> None:
                with trouble.told():
                    found = await parts.in_background(console.service.pipelines)
                    table.show([_row(each) for each in found])
                    panel.set_visibility(bool(found))
                    empty.set_visibility(not found)
                    nothing.show(not found)

            await update()
            live(update)


def state_of(facts: PipelineFacts) -> tuple[str, parts.Tone]:
    """The worst that is so of any of its queries."""
    states = {query.state for query in facts.queries}
    if "failed" in states:
        return "failed", "bad"
    if not facts.is_running:
        return ("finished", "good") if states == {"finished"} else ("stopped", "plain")
    return ("restarting", "warn") if "waiting" in states else ("running", "good")


def query_tone(query: QueryFacts) -> parts.Tone:
    tones: dict[str, parts.Tone] = {"running": "good", "finished": "good", "failed": "bad", "waiting": "warn"}
    return tones.get(query.state, "plain")


def _row(facts: PipelineFacts) -> parts.Row:
    state, tone = state_of(facts)
    told_ms = max((query.at_ms for query in facts.queries), default=None)
    is_silent = facts.is_running and told_ms is not None and time.time() - told_ms / 1000 > SILENT_S
    late = sum(query.rows_late for query in facts.queries)
    restarts = sum(query.restarts for query in facts.queries)
    rate = sum(query.rows_per_s for query in facts.queries) if facts.is_running else None
    return {
        "name": facts.name,
        "name_href": parts.path_to("pipelines", facts.name),
        "state": state,
        "state_tone": tone,
        "queries": len(facts.queries),
        "rate": rate,
        "rate_text": parts.rate_text(rate),
        "lag": facts.lag,
        "lag_text": parts.number_text(facts.lag),
        "watermark": min((query.watermark for query in facts.queries if query.watermark), default=None),
        "late": late,
        "late_text": parts.number_text(late),
        "late_tone": "warn" if late else "plain",
        "restarts": restarts,
        "restarts_tone": "warn" if restarts else "plain",
        "told": told_ms,
        "told_text": parts.ago_text(told_ms),
        "told_tone": "warn" if is_silent else "plain",
    }
