"""Dead letters: the stores with failed records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from nicegui import ui

from penstock.console.jobs import DONE, Job
from penstock.console.web import parts, tables, texts
from penstock.console.web.absence import Listing
from penstock.console.web.background import from_disk
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.pages.group_words import spark
from penstock.observe.facts import LetterFacts
from penstock.streams.url import without_password

TREND_S: Final = 86_400
_TREND_POINTS: Final = 60
_COLUMNS: Final = (
    tables.Column("spec", "Place", "mono"),
    tables.Column("waiting", "Waiting", "number"),
    tables.Column("trend", "Last day", is_sortable=False),
    tables.Column("job", "Running", "text", on_phone=False),
)


def register(console: Console) -> None:
    @ui.page("/letters")
    async def letters_page() -> None:
        with frame(console, "Dead letters", "letters"):
            parts.title("Dead letters", "Records that were given up, to be looked at, redriven or discarded.")
            trouble = parts.Problem()
            nothing = (
                "There are no dead-letter stores yet.",
                "One is created when a handler gives up its first record. Name stores outside the stream:",
                f"penstock console --url {console.service.url} --dead-letters sqlite:./letters.db",
            )
            height = "calc(100vh - 12rem)"
            listing = Listing(
                console, _COLUMNS, nothing, key="spec", height=height, sort_by="waiting", is_descending=True
            )
            listing.table.draw_sparks("trend")

            def found() -> list[tables.Row]:
                since_ms = int((time.time() - TREND_S) * 1000)
                running = {job.spec: job for job in console.service.jobs() if not job.is_done}
                rows = []
                for place in console.service.dead_letter_stores():
                    past = console.service.series("letters", place.spec, "waiting", since_ms, _TREND_POINTS)
                    rows.append(_row(place, spark(past), running.get(place.spec)))
                return rows

            async def update() -> None:
                with trouble.told():
                    listing.show(await from_disk(found))

            await update()
            live(update)


def place_name(spec: str) -> str:
    """The name of a store in pages and addresses: without a password that its URL may contain."""
    return without_password(spec)


def spec_of(name: str, places: Sequence[LetterFacts]) -> str:
    return next((each.spec for each in places if name in (each.spec, place_name(each.spec))), name)


def waiting_text(facts: LetterFacts) -> str:
    """How many wait; an estimate is marked as an upper bound."""
    return texts.number_text(facts.waiting) if facts.is_exact else f"≤ {texts.number_text(facts.waiting)}"


def _row(facts: LetterFacts, trend: str, job: Job | None) -> tables.Row:
    return {
        "spec": place_name(facts.spec),
        "spec_href": texts.path_to("letters", place_name(facts.spec)),
        "waiting": facts.waiting,
        "waiting_text": waiting_text(facts),
        "waiting_tone": "bad" if facts.waiting else "good",
        "trend": trend,
        "job": None if job is None else f"by {job.by.name}: {texts.number_text(job.done)} {DONE[job.kind]}",
    }
