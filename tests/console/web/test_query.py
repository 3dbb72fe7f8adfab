"""SQL on its page, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.console.web.console_process import ConsoleProcess

pytestmark = pytest.mark.xdist_group("chromium")


def test_a_query_shows_its_rows_and_a_mistake_is_explained(page: Page, console: ConsoleProcess) -> None:
    page.goto(f"{console.address}/query")
    query = page.get_by_label("Query")
    run = page.get_by_role("button", name="Run")
    query.fill('select \'<img src=x onerror="document.body.dataset.evil=1">\' as "<b>odd", 40 + 2 as answer')
    run.click()
    expect(page.locator("td", has_text="42")).to_be_visible()
    expect(page.locator("th", has_text="<b>odd")).to_be_visible()
    assert page.evaluate("document.body.dataset.evil") is None
    query.fill("drop table x")
    run.click()
    expect(page.get_by_text("DROP is not allowed: queries only read topics")).to_be_visible()
    query.fill("show tables")
    run.click()
    expect(page.locator("td", has_text="orders").first).to_be_visible()
    expect(page.get_by_text("DROP is not allowed")).to_be_hidden()
