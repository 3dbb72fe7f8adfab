"""The overview: what it says about a snapshot, and how it looks after it in a browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from penstock.console.web.pages import overview as glance
from penstock.observe.facts import (
    CaptureFacts,
    GroupFacts,
    LetterFacts,
    PartitionFacts,
    ReaderFacts,
    Snapshot,
    TopicFacts,
)
from tests.console.web.console_process import ConsoleProcess

pytestmark = pytest.mark.xdist_group("chromium")


def group(name: str, *, lag_s: float | None, is_growing: bool = False, loss_s: float | None = None) -> GroupFacts:
    reader = ReaderFacts(name, "orders", 0, 10, 0, 110, lag_s=lag_s, time_to_loss_s=loss_s)
    return GroupFacts(name, "stable", 1, (reader,), is_growing=is_growing)


def test_who_will_lose_records_first_stands_first() -> None:
    groups = [
        group("keeps-up", lag_s=0.5),
        group("slow", lag_s=600.0),
        group("grows", lag_s=1.0, is_growing=True),
        group("in-danger", lag_s=90.0, loss_s=1800.0),
    ]
    rows = glance.groups_behind(Snapshot(1, groups={each.name: each for each in groups}))
    assert [row["name"] for row in rows] == ["in-danger", "slow", "grows"]
    assert rows[0]["loss_text"] == "30 min"


def test_the_capture_that_will_lose_changes_first_stands_first() -> None:
    facts = [
        CaptureFacts("fine", "postgresql://db/a", "streaming", 1),
        CaptureFacts("dead", "postgresql://db/b", "dead", 1, time_to_loss_s=1800.0, behind_bytes=2048),
        CaptureFacts("lost", "postgresql://db/c", "failed", 1, is_lost=True),
        CaptureFacts("waits", "sqlite:d.db", "waiting", 1),
    ]
    rows = glance.captures(Snapshot(1, captures={each.name: each for each in facts}))
    assert [(row["name"], row["loss_text"], row["loss_tone"]) for row in rows] == [
        ("lost", "lost", "bad"),
        ("dead", "30 min", "bad"),
        ("waits", "–", "plain"),
        ("fine", "–", "plain"),
    ]


def test_the_figures_leave_out_what_is_internal_and_what_nobody_knows() -> None:
    topics = {
        "orders": TopicFacts("orders", (PartitionFacts("orders", 0, 0, 5, 100),), rate_per_s=2.0),
        "__offsets": TopicFacts("__offsets", (PartitionFacts("__offsets", 0, 0, 9, 9),), True, rate_per_s=100.0),
    }
    figures = glance.figures(Snapshot(1, topics, letters={"dlq": LetterFacts("dlq", 3)}), ())
    assert figures["in"].value == "2/s"
    assert figures["out"].value == "–"
    assert (figures["topics"].value, figures["topics"].note) == ("1", "5, 100 B")
    assert (figures["letters"].value, figures["letters"].tone) == ("3", "warn")


def test_a_password_in_the_name_of_a_place_is_shown_to_nobody() -> None:
    spec = "postgresql://app:secret@db.example/letters"
    [row] = glance.dead_letter_rows(Snapshot(1, letters={spec: LetterFacts(spec, 3)}))
    assert "secret" not in str(row)
    assert "db.example" in row["spec"]


def test_an_overview_shows_the_stream_and_follows_it(page: Page, console: ConsoleProcess) -> None:
    page.goto(console.address)
    topics = page.locator(".panel", has_text="Busiest topics")
    expect(topics.get_by_role("link", name="orders")).to_be_visible()
    expect(page.locator(".stat", has_text="Lag")).to_contain_text("1.2k")
    expect(page.locator(".chart svg")).to_have_count(2)
    topics.get_by_role("link", name="orders").click()
    expect(page.get_by_role("heading", name="orders")).to_be_visible()
