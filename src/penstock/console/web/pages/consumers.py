"""The consumers of the library: groups with checkpoints, which tell more than an offset."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from penstock.console.views import ConsumerFacts
from penstock.console.web import parts
from penstock.console.web.absence import Nothing
from penstock.console.web.chosen import Chosen
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.pages.looks import Trouble, wear_details

EVERY_S: Final = 5.0
_COLUMNS: Final = (
    parts.Column("group", "Group", "mono"),
    parts.Column("topics", "Topics", "mono", on_phone=False),
    parts.Column("partitions", "Partitions", "number", on_phone=False),
    parts.Column("in_flight", "In flight", "number"),
    parts.Column("failing", "Failing", "number"),
    parts.Column("processed", "Processed", "number", on_phone=False),
    parts.Column("delivered", "Delivered", "number", on_phone=False),
    parts.Column("restarts", "Restarts", "number", on_phone=False),
    parts.Column("saved", "Saved"),
)


def register(console: Console) -> None:
    @ui.page("/consumers")
    async def consumers_page() -> None:
        wear_details()
        with frame(console, "Consumers", "consumers"):
            parts.title(
                "Consumers", "Groups of the library: what is in flight, failing, and how often handlers were called."
            )
            chosen = Chosen("/consumers")
            with parts.toolbar():
                text = parts.filter_field(chosen)
            trouble = Trouble()
            with parts.panel() as empty:
                nothing = Nothing(
                    console,
                    "No consumer of the library has saved a checkpoint here.",
                    "One appears with the first app that handles records, and stays when that stops.",
                    "penstock init my-app",
                )
            with parts.panel() as panel:
                table = parts.table(
                    _COLUMNS, (), key="group", height="calc(100vh - 12.5rem)", sort_by="failing", is_descending=True
                )
            parts.filtering(text, table, chosen)

            async def update() -> None:
                with trouble.told():
                    found = await parts.in_background(console.service.consumers)
                    table.show([_row(each) for each in found])
                    panel.set_visibility(bool(found))
                    empty.set_visibility(not found)
                    nothing.show(not found)

            empty.set_visibility(False)
            panel.set_visibility(False)
            await update()
            live(update, every_s=EVERY_S)


def _row(facts: ConsumerFacts) -> parts.Row:
    return {
        "group": facts.group,
        "group_href": parts.path_to("consumers", facts.group),
        "topics": ", ".join(facts.topics),
        "partitions": facts.partitions,
        "in_flight": facts.in_flight,
        "in_flight_text": parts.number_text(facts.in_flight),
        "failing": facts.failing,
        "failing_text": parts.number_text(facts.failing),
        "failing_tone": "bad" if facts.failing else "plain",
        "processed": facts.processed,
        "processed_text": parts.number_text(facts.processed),
        "delivered": facts.delivered,
        "delivered_text": parts.number_text(facts.delivered),
        "restarts": facts.restarts,
        "restarts_tone": "warn" if facts.restarts > 1 else "plain",
        "saved": facts.saved_ms,
        "saved_text": parts.ago_text(facts.saved_ms or None),
    }
