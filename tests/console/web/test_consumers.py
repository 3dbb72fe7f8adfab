"""Consumers of the library: what is in flight and failing, and what happened to a record, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.console.web.worked_log import Worked

pytestmark = pytest.mark.xdist_group("chromium")


def test_consumers_are_listed_the_failing_ones_first(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/consumers")
    rows = page.locator(".q-virtual-scroll__content tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("stuck")
    expect(rows.filter(has_text="house")).to_contain_text("48")


def test_a_consumer_shows_its_window_and_a_click_tells_a_records_history(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/consumers/stuck")
    expect(page.locator(".window-finished")).to_have_count(1)
    expect(page.locator(".window-failing")).to_have_count(1)
    expect(page.locator(".stat", has_text="Delivered")).to_contain_text("29")
    page.locator("td", has_text="ConnectionError: no answer <img").click()
    expect(page.locator(".happening")).to_have_count(3)
    expect(page.locator(".happening").first).to_contain_text("attempt 3")
    expect(page.locator(".happening").first).to_contain_text("took 40 ms")
    expect(page.locator("tr", has_text="partition:tea:0")).to_contain_text("host-1")
    assert page.evaluate("document.body.dataset.evil") is None


def test_a_record_without_history_is_said_to_be_unread_in_progress_or_finished(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/consumers/stuck")
    found = page.locator(".timeline")
    for pointer, told in (("41", "has not been read yet"), ("35", "no attempt at it has ended"), ("3", "is finished")):
        page.get_by_label("Pointer").fill(pointer)
        page.get_by_role("button", name="Look up").click()
        expect(found).to_contain_text(told)
    page.get_by_label("Pointer").fill("12<b>")
    page.get_by_role("button", name="Look up").click()
    expect(page.get_by_text("is not an offset of")).to_be_visible()


def test_a_group_that_keeps_no_checkpoints_is_said_to_be_none_of_the_library(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/consumers/report")
    expect(page.get_by_text("it is not one of this library")).to_be_visible()
