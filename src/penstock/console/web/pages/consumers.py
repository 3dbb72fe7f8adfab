"""The consumers of the library: groups with checkpoints, which say more than an offset."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from penstock.console.views import ConsumerFacts
from penstock.console.web import parts, tables, texts
from penstock.console.web.absence import Listing
from penstock.console.web.background import in_background
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.parts import Chosen

EVERY_S: Final = 5.0
_COLUMNS: Final = (
    tables.Column("group", "Group", "mono"),
    tables.Column("topics", "Topics", "mono", on_phone=False),
    tables.Column("partitions", "Partitions", "number", on_phone=False),
    tables.Column("in_flight", "In flight", "number", text=texts.number_text),
    tables.Column("failing", "Failing", "number", text=texts.number_text),
    tables.Column("processed", "Processed", "number", on_phone=False, text=texts.number_text),
    tables.Column("delivered", "Delivered", "number", on_phone=False, text=texts.number_text),
    tables.Column("restarts", "Restarts", "number", on_phone=False),
    tables.Column("saved", "Saved"),
)


def register(console: Console) -> None:
    @ui.page("/consumers")
    async def consumers_page() -> None:
        with frame(console, "Consumers", "consumers"):
            parts.title(
                "Consumers", "Groups of the library: what is in flight, failing, and how often handlers were called."
            )
            chosen = Chosen("/consumers")
            with parts.toolbar():
                text = parts.filter_field(chosen)
            trouble = parts.Problem()
            nothing = (
                "No consumer of the library has saved a checkpoint here.",
                "One appears with the first app that handles records, and stays when that stops.",
                "penstock init my-app",
            )
            height = "calc(100vh - 12.5rem)"
            listing = Listing(
                console, _COLUMNS, nothing, key="group", height=height, sort_by="failing", is_descending=True
            )
            parts.filtering(text, listing.table, chosen)

            async def update() -> None:
                with trouble.told():
                    listing.show([_row(each) for each in await in_background(console.service.consumers)])

            await update()
            live(update, every_s=EVERY_S)


def _row(facts: ConsumerFacts) -> tables.Row:
    return {
        "group": facts.group,
        "group_href": texts.path_to("consumers", facts.group),
        "topics": ", ".join(facts.topics),
        "partitions": facts.partitions,
        "in_flight": facts.in_flight,
        "failing": facts.failing,
        "failing_tone": "bad" if facts.failing else "plain",
        "processed": facts.processed,
        "delivered": facts.delivered,
        "restarts": facts.restarts,
        "restarts_tone": "warn" if facts.restarts > 1 else "plain",
        "saved": facts.saved_ms,
        "saved_text": texts.ago_text(facts.saved_ms or None),
    }
