"""Groups: how far behind they are and what becomes of it, and moving them, in a real browser."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

import penstock as ps
from penstock.streams import connect
from tests.console.web.worked_log import CUPS, EVIL_GROUP, Worked

pytestmark = pytest.mark.xdist_group("chromium")


def test_groups_are_listed_and_filtered_and_what_a_reset_of_one_of_the_library_would_move_is_shown(
    page: Page, worked: Worked
) -> None:
    page.goto(f"{worked.address}/groups")
    rows = page.locator(".q-virtual-scroll__content tr")
    expect(rows.filter(has_text="billing")).to_contain_text("1,170")
    page.get_by_label("Filter").fill("hous")
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="house").click()
    expect(page.get_by_text("It has read everything.")).to_be_visible()
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.locator(".dialog")
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog).to_contain_text("would move")


def test_a_reset_is_shown_before_it_is_done_and_moves_only_what_is_ticked(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/groups/report")
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.locator(".dialog")
    move = dialog.get_by_role("button", name="Move")
    expect(move).to_be_disabled()
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.locator("td", has_text="-5")).to_have_count(2)
    expect(dialog).to_contain_text("2 partitions would move; 10 records are read again.")
    dialog.locator("tr", has=page.locator("td", has_text="-5")).nth(1).locator(".q-checkbox").click()
    expect(dialog).to_contain_text("1 partition would move; 5 records are read again.")
    dialog.get_by_role("button", name="Move 1 partition").click()
    expect(page.locator(".notice")).to_contain_text("Moved report in 1 partition: the Kafka group's offsets.")
    with connect(worked.url) as stream:
        progress = stream.group_admin().describe("report").progress
    assert {each.partition: each.committed for each in progress} == {0: 0, 1: 5}
    assert '"reset"' in (worked.console.folder / "state" / "audit.jsonl").read_text()


def test_an_app_that_was_reset_handles_its_records_again(page: Page, worked: Worked) -> None:
    checkpoints = f"sqlite:{worked.folder / 'checkpoints.db'}"

    def handled() -> list[int]:
        app = ps.App(worked.url, group="again", checkpoints=checkpoints)
        got: list[int] = []

        @app.handle("tea", end="latest")
        def note(order: dict[str, Any]) -> None:
            got.append(order["number"])

        app.run()
        return sorted(got)

    assert handled() == list(range(CUPS))
    page.goto(f"{worked.address}/groups/again")
    expect(page.get_by_text(f"Continues at its checkpoints in {checkpoints}")).to_be_visible()
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.locator(".dialog")
    expect(dialog).to_contain_text(f"Moves its checkpoints in {checkpoints}")
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog).to_contain_text(f"2 partitions would move; {CUPS} records are read again.")
    dialog.get_by_role("button", name="Move 2 partitions").click()
    expect(page.locator(".notice")).to_contain_text(
        f"Moved again in 2 partitions: checkpoints in {checkpoints}, the Kafka group's offsets."
    )
    expect(page.get_by_text(f"and {CUPS} records wait")).to_be_visible()
    assert handled() == list(range(CUPS))


def test_a_place_that_cannot_be_understood_is_said_in_the_dialog(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/groups/report")
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.locator(".dialog")
    dialog.get_by_label("Move to").click()
    page.get_by_role("option", name="A pointer").click()
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog).to_contain_text("Say where to")
    dialog.get_by_label("Pointer").fill("not a number")
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.get_by_role("alert")).to_contain_text("is not an offset of")


def test_a_group_of_any_name_has_a_page_and_is_deleted_once_its_name_is_typed(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/groups/{quote(EVIL_GROUP, safe='')}")
    expect(page.get_by_role("heading", name=EVIL_GROUP)).to_be_visible()
    assert page.evaluate("document.body.dataset.evil") is None
    page.get_by_role("button", name="Delete group").click()
    page.get_by_label("confirmation").fill(EVIL_GROUP)
    page.locator(".dialog").get_by_role("button", name="Delete").click()
    expect(page).to_have_url(f"{worked.address}/groups")
    with connect(worked.url) as stream:
        assert EVIL_GROUP not in {each.name for each in stream.group_admin().all()}
