"""Dead letters: the places in which records wait that were given up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from nicegui import ui

from penstock.console.jobs import DONE, Job
from penstock.console.web import parts
from penstock.console.web.absence import Nothing
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.pages.group_words import spark
from penstock.console.web.pages.looks import Trouble, draw_sparks, wear_details
from penstock.observe.facts import LetterFacts
from penstock.streams.url import without_password

TREND_S: Final = 86_400
_TREND_POINTS: Final = 60
_COLUMNS: Final = (
    parts.Column("spec", "Place", "mono"),
    parts.Column("waiting", "Waiting", "number"),
    parts.Column("trend", "Last day", is_sortable=False),
    parts.Column("job", "Under way", "text", on_phone=False),
)


def register(console: Console) -> None:
    @ui.page("/letters")
    async def letters_page() -> None:
        wear_details()
        with frame(console, "Dead letters", "letters"):
            parts.title("Dead letters", "Records that were given up, to be looked at, redriven or discarded.")
            trouble = Trouble()
            with parts.panel() as empty:
                nothing = Nothing(
                    console,
                    "There is no place for dead letters here yet.",
                    "A handler gets one when it gives up its first record. Letters outside the stream are found when "
                    "the console is told of them:",
                    f"penstock console --url {console.service.url} --dead-letters sqlite:./letters.db",
                )
            with parts.panel() as panel:
                table = parts.table(
                    _COLUMNS, (), key="spec", height="calc(100vh - 12rem)", sort_by="waiting", is_descending=True
                )
                draw_sparks(table, "trend")

            def found() -> tuple[list[LetterFacts], list[str], Sequence[Job]]:
                places = list(console.service.letter_places())
                since_ms = int((time.time() - TREND_S) * 1000)
                trends = [
                    spark(console.service.series("letters", each.spec, "waiting", since_ms, _TREND_POINTS))
                    for each in places
                ]
                return places, trends, console.service.jobs()

            async def update() -> None:
                with trouble.told():
                    places, trends, jobs = await parts.in_background(found)
                    running = {job.spec: job for job in jobs if not job.is_done}
                    table.show(
                        [
                            _row(place, trend, running.get(place.spec))
                            for place, trend in zip(places, trends, strict=True)
                        ]
                    )
                    panel.set_visibility(bool(places))
                    empty.set_visibility(not places)
                    nothing.show(not places)

            await update()
            live(update)


def place_name(spec: str) -> str:
    """A place as it is shown and addressed: without the password that a database's URL may have in it."""
    return without_password(spec)


def spec_of(name: str, places: Sequence[LetterFacts]) -> str:
    """The place that is shown by this name."""
    return next((each.spec for each in places if name in (each.spec, place_name(each.spec))), name)


def waiting_text(facts: LetterFacts) -> str:
    """How many wait; what was not counted is an upper bound, and says so."""
    return parts.number_text(facts.waiting) if facts.is_exact else f"≤ {parts.number_text(facts.waiting)}"


def _row(facts: LetterFacts, trend: str, job: Job | None) -> parts.Row:
    return {
        "spec": place_name(facts.spec),
        "spec_href": parts.path_to("letters", place_name(facts.spec)),
        "waiting": facts.waiting,
        "waiting_text": waiting_text(facts),
        "waiting_tone": "bad" if facts.waiting else "good",
        "trend": trend,
        "job": None if job is None else f"by {job.by.name}: {parts.number_text(job.done)} {DONE[job.kind]}",
    }
