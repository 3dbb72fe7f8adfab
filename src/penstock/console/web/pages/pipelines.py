"""The pipelines on Spark, by version: rates, lag and restarts."""

from __future__ import annotations

import time
from typing import Final

from nicegui import ui

from penstock.console.web import parts, tables, texts
from penstock.console.web.absence import Listing
from penstock.console.web.background import in_background
from penstock.console.web.frame import Console, frame, live
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
