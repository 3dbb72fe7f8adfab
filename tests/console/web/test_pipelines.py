"""Pipelines: how their queries got on, and what happened to them, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from tests.console.web.worked_log import EVIL, Worked

pytestmark = pytest.mark.xdist_group("chromium")

CLICKS = 5
PATIENCE_MS = 4_000


def follow(page: Page, link: Locator) -> None:
    """Click as a person does: again, where nothing happened. A table that is drawn for the first time measures its
    rows, and a row that is drawn again between the press and the release takes the click with it."""
    before = page.url
    for _ in range(CLICKS - 1):
        link.click()
        try:
            page.wait_for_url(lambda url: url != before, wait_until="commit", timeout=PATIENCE_MS)
        except PlaywrightTimeoutError:
            continue
        return
    link.click()


def test_a_pipeline_shows_its_queries_its_last_error_and_its_history(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/pipelines")
    row = page.locator(".q-virtual-scroll__content tr", has_text="usage")
    expect(row).to_contain_text("failed")
    follow(page, row.get_by_role("link"))
    expect(page.get_by_text(f"The last error of spend: QueryError: {EVIL}")).to_be_visible()
    expect(page.locator("tr", has_text="12,345")).to_contain_text("4,000")
    expect(page.locator("tr", has_text="12,345")).to_contain_text("29")
    expect(page.locator("tr", has_text=f"function {EVIL}")).to_contain_text("1,108")
    expect(page.locator("tr", has_text=f"function {EVIL}")).to_contain_text("21")
    expect(page.locator("tr", has_text="expectation positive")).to_contain_text("6")
    expect(page.locator(".chart svg")).to_have_count(5)
    expect(page.locator(".badge", has_text="started")).to_be_visible()
    assert page.evaluate("document.body.dataset.evil") is None


def test_a_pipeline_that_is_not_there_is_said_to_be_so(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/pipelines/nowhere")
    expect(page.get_by_text("there is no pipeline 'nowhere'")).to_be_visible()
