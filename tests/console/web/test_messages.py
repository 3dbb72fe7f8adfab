"""Messages: browsing, searching, following, and text that would like to be more than text, in a real browser."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from penstock.streams import connect
from tests.console.web.conftest import EVIL, is_marked
from tests.console.web.console_process import ConsoleProcess

pytestmark = pytest.mark.xdist_group("chromium")


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_label(label, exact=True).click()
    page.get_by_role("option", name=option, exact=True).click()


def test_messages_are_browsed_searched_and_filtered(page: Page, console: ConsoleProcess) -> None:
    page.goto(f"{console.address}/topics/orders")
    expect(page.get_by_text("100 messages.")).to_be_visible()
    choose(page, "Show", "1000")
    expect(page.get_by_text("1,000 messages.")).to_be_visible()
    page.get_by_label("Search in key, value and headers").fill("t-777")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 message found")).to_be_visible()
    expect(page.locator(".q-virtual-scroll__content tr:visible")).to_contain_text('"number":777')
    page.get_by_label("Search in key, value and headers").fill("")
    page.get_by_label("Filter, such as").fill("value.amount > 95")
    page.keyboard.press("Enter")
    expect(page.get_by_text("12 messages found")).to_be_visible()
    page.get_by_label("Filter, such as").fill("value.amount >")
    page.keyboard.press("Enter")
    expect(page.locator(".q-field--error")).to_be_visible()


def test_a_message_is_shown_whole_and_downloaded_as_a_file(page: Page, console: ConsoleProcess) -> None:
    page.goto(f"{console.address}/topics/orders?partition=0&pointer=5")
    page.locator(".q-virtual-scroll__content tr", has_text="5").first.click()
    drawer = page.locator(".drawer")
    expect(drawer.get_by_role("heading", name="0 : 5")).to_be_visible()
    expect(drawer.locator("pre").last).to_contain_text('"customer"')
    expect(drawer).to_contain_text("trace")
    with page.expect_download() as downloading:
        drawer.get_by_text("Download value").click()
    assert downloading.value.suggested_filename == "orders-0-5.value"
    assert "customer" in json.loads(downloading.value.path().read_bytes())
    drawer.get_by_role("button", name="The next message").click()
    expect(drawer.get_by_role("heading", name="0 : 6")).to_be_visible()


def test_text_of_records_never_becomes_more_than_text(page: Page, console: ConsoleProcess) -> None:
    page.goto(f"{console.address}/topics/evil")
    rows = page.locator(".q-virtual-scroll__content tr:visible")
    expect(rows).to_have_count(3)
    expect(rows.filter(has_text="{{ 7 * 7 }}")).to_have_count(1)
    for at in range(3):
        rows.nth(at).click()
        expect(page.locator(".drawer")).to_be_visible()
        assert not is_marked(page)
        page.get_by_role("button", name="Close").click()
        expect(page.locator(".drawer")).to_be_hidden()
    page.get_by_label("Filter, such as").fill(EVIL)
    page.keyboard.press("Enter")
    expect(page.locator(".q-field--error")).to_be_visible()
    assert not is_marked(page)


def test_an_inline_handler_that_got_into_the_page_could_not_run(
    context: BrowserContext, console: ConsoleProcess
) -> None:
    page = context.new_page()
    page.goto(f"{console.address}/topics")
    expect(page.locator(".q-virtual-scroll__content tr").first).to_be_visible()
    refused = page.evaluate(
        """() => new Promise((done) => {
            document.addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
            document.body.insertAdjacentHTML("beforeend", "<img src='data:,' onerror='document.body.dataset.evil=1'>");
        })"""
    )
    assert refused == "script-src-attr"
    assert not is_marked(page)


def test_what_is_produced_is_seen_by_who_follows(page: Page, console: ConsoleProcess, filled_log: str) -> None:
    page.goto(f"{console.address}/topics/empty")
    expect(page.get_by_text("No messages here.")).to_be_visible()
    page.get_by_role("button", name="Follow").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    with connect(filled_log) as stream:
        stream.send("empty", "seen while following", "k").result(timeout=30)
    expect(page.get_by_role("cell", name="seen while following")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Produce", exact=True).click()
    page.locator(".dialog").get_by_label("Value", exact=True).fill('{"by": "hand"}')
    page.locator(".dialog").get_by_role("button", name="Produce").click()
    expect(page.locator(".notice")).to_contain_text("Written to partition 0")
    expect(page.get_by_role("cell", name='{"by":"hand"}')).to_be_visible()
