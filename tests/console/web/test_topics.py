"""Topics: finding, making, changing and deleting them, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from penstock.streams import connect
from tests.console.web.conftest import READY
from tests.console.web.console_process import ConsoleProcess

pytestmark = pytest.mark.xdist_group("chromium")


def test_topics_are_listed_and_filtered(page: Page, console: ConsoleProcess) -> None:
    page.goto(f"{console.address}/topics")
    rows = page.locator(".q-virtual-scroll__content tr")
    expect(rows.filter(has_text="orders")).to_contain_text("1,200")
    page.get_by_label("Filter").fill("evi")
    expect(rows).to_have_count(1)


def test_a_topic_is_made_changed_and_deleted_and_each_is_written_down(
    page: Page, console: ConsoleProcess, filled_log: str
) -> None:
    page.goto(f"{console.address}/topics")
    page.get_by_role("button", name="New topic").click()
    page.get_by_label("Name").fill("brand-new")
    page.get_by_label("Partitions").fill("4")
    page.get_by_role("button", name="Create").click()
    expect(page).to_have_url(f"{console.address}/topics/brand-new")
    page.get_by_role("tab", name="Config").click()
    page.locator("td", has_text=re.compile(r"^retention\.ms$")).click()
    page.get_by_label("Value").fill("3600000")
    page.get_by_role("button", name="Set").click()
    expect(page.get_by_role("row", name=re.compile(r"^retention\.ms 3600000"))).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    delete = page.locator(".dialog").get_by_role("button", name="Delete")
    expect(delete).to_be_disabled()
    page.get_by_label("confirmation").fill("brand-old")
    expect(delete).to_be_disabled()
    page.get_by_label("confirmation").fill("brand-new")
    delete.click()
    expect(page).to_have_url(f"{console.address}/topics")
    with connect(filled_log) as stream:
        assert "brand-new" not in stream.topics()
    audit = (console.folder / "state" / "audit.jsonl").read_text()
    assert [action for action in ("create_topic", "alter_topic", "delete_topic") if action not in audit] == []


def test_a_name_that_cannot_be_is_refused_in_words(page: Page, console: ConsoleProcess) -> None:
    page.goto(f"{console.address}/topics")
    page.get_by_role("button", name="New topic").click()
    page.get_by_label("Name").fill("no spaces <b>please</b>")
    page.get_by_role("button", name="Create").click()
    notice = page.locator(".notice")
    expect(notice).to_contain_text("<b>please</b>")
    assert notice.evaluate("each => getComputedStyle(each).color") == page.evaluate(
        "getComputedStyle(document.body).color"
    ), "it can be read: the colour that notices have by themselves is white, on white"


def test_a_topic_shows_its_partitions_and_who_reads_it(page: Page, console: ConsoleProcess) -> None:
    page.goto(f"{console.address}/topics/orders?tab=partitions")
    expect(page.locator(".q-virtual-scroll__content tr:visible")).to_have_count(3)
    page.get_by_role("tab", name="Groups").click()
    expect(page.get_by_role("link", name="billing")).to_be_visible()


def test_a_topic_that_is_not_there_is_said_to_be_so_and_shown_once_it_is(
    page: Page, console: ConsoleProcess, filled_log: str
) -> None:
    page.goto(f"{console.address}/topics/made-later")
    expect(page.get_by_text("This topic cannot be shown.")).to_be_visible()
    with connect(filled_log) as stream:
        stream.create_topic("made-later", 1)
    expect(page.get_by_text("No messages here.")).to_be_visible()


def test_what_is_chosen_is_kept_in_the_address_for_going_back_and_for_others(
    page: Page, console: ConsoleProcess
) -> None:
    page.goto(f"{console.address}/topics")
    page.get_by_label("Filter").fill("orde")
    expect(page).to_have_url(f"{console.address}/topics?filter=orde")
    page.get_by_role("link", name="orders").click()
    page.wait_for_url("**/topics/orders")
    page.wait_for_function(READY)
    page.get_by_label("Search in key, value and headers").fill("t-777")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 message found")).to_be_visible()
    page.locator(".q-virtual-scroll__content tr:visible").first.click()
    expect(page.locator(".drawer")).to_contain_text('"number": 777')
    expect(page).to_have_url(re.compile(r"/topics/orders\?search=t-777&message=\d%3A\d+$"))
    page.reload()
    expect(page.locator(".drawer")).to_contain_text('"number": 777')
    page.get_by_role("button", name="Close").click()
    expect(page).to_have_url(f"{console.address}/topics/orders?search=t-777")
    page.get_by_role("tab", name="Config").click()
    expect(page).to_have_url(f"{console.address}/topics/orders?search=t-777&tab=config")
    page.go_back()
    expect(page.get_by_label("Filter")).to_have_value("orde")
    expect(page.locator(".q-virtual-scroll__content tr")).to_have_count(1)


def test_a_hidden_tab_asks_for_nothing_and_is_brought_up_to_date_when_it_is_shown(
    page: Page, console: ConsoleProcess, filled_log: str
) -> None:
    page.goto(f"{console.address}/topics")
    rows = page.locator(".q-virtual-scroll__content tr")
    expect(rows.filter(has_text="orders")).to_be_visible()
    _set_hidden(page, True)
    with connect(filled_log) as stream:
        stream.create_topic("made-while-hidden", 1)
    page.request.get(f"{console.address}/topics/made-while-hidden")  # which makes the console look at once
    page.wait_for_function(
        """async () => (await (await fetch("/api/names")).json()).some((each) => each.name === "made-while-hidden")"""
    )
    expect(rows.filter(has_text="made-while-hidden")).to_have_count(0)
    _set_hidden(page, False)
    expect(rows.filter(has_text="made-while-hidden")).to_be_visible()


def _set_hidden(page: Page, is_hidden: bool) -> None:
    page.wait_for_function("window.did_handshake")
    page.evaluate(
        """(value) => {
            Object.defineProperty(document, "hidden", { value, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )
