"""What every page has around it, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.console.web.console_process import ConsoleProcess

pytestmark = pytest.mark.xdist_group("chromium")


def test_the_search_is_a_key_away_and_leads_to_what_is_chosen_by_keys(page: Page, console: ConsoleProcess) -> None:
    page.goto(console.address)
    expect(page.locator(".dot-good")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("bill")
    expect(page.locator(".palette-item")).to_have_count(1)
    page.get_by_role("searchbox").fill("or")
    expect(page.locator(".palette-item.is-chosen")).to_contain_text("orders")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{console.address}/topics/orders")


def test_two_keys_lead_to_a_page_and_a_question_mark_lists_them(page: Page, console: ConsoleProcess) -> None:
    page.goto(console.address)
    expect(page.locator(".side .is-active")).to_have_text(re.compile("Overview"))
    page.keyboard.press("?")
    expect(page.locator("dialog.keys")).to_contain_text("Dead letters")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page).to_have_url(f"{console.address}/topics")


def test_keys_that_are_typed_into_a_field_stay_there(page: Page, console: ConsoleProcess) -> None:
    page.goto(f"{console.address}/topics")
    page.get_by_label("Filter").click()
    page.keyboard.type("g/t?")
    expect(page.get_by_label("Filter")).to_have_value("g/t?")
    expect(page.locator("dialog")).to_have_count(0)


def test_the_theme_is_that_of_the_system_until_it_is_chosen_and_then_remembered(
    context: BrowserContext, page: Page, console: ConsoleProcess
) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(console.address)
    expect(page.locator("body.body--dark")).to_be_attached()
    page.locator("[data-theme-now]").click()
    expect(page.locator("body.body--light")).to_be_attached()
    page.reload()
    expect(page.locator("body.body--light")).to_be_attached()
    assert {"name": "penstock-theme", "value": "light"}.items() <= dict(context.cookies()[0]).items()


def test_at_phone_width_the_navigation_is_at_the_bottom_and_nothing_overflows(
    page: Page, console: ConsoleProcess
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("/", "/topics", "/topics/orders"):
        page.goto(console.address + path)
        expect(page.locator(".bottom .is-active").last).to_be_visible()
        expect(page.locator(".side")).to_be_hidden()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    page.locator("[data-more]").click()
    page.get_by_role("menu").get_by_text("Audit").click()
    expect(page).to_have_url(f"{console.address}/audit")


def test_an_address_at_which_there_is_no_page_leads_back(console: ConsoleProcess) -> None:
    for accepted, told in (("text/html", "There is no such page"), ("application/json", "Not Found")):
        with pytest.raises(HTTPError) as missing:
            urlopen(Request(f"{console.address}/nowhere/at/all", headers={"accept": accepted}), timeout=30)
        assert missing.value.code == 404
        assert told in missing.value.read().decode()


def test_a_console_without_a_stream_says_so_and_goes_on(page: Page, tmp_path: Path) -> None:
    with ConsoleProcess(tmp_path, "kafka://127.0.0.1:1") as console:
        page.goto(console.address)
        expect(page.get_by_role("alert")).to_contain_text(re.compile("Away since .* Nothing was known before"))
        expect(page.locator(".dot-bad")).to_be_visible()
        expect(page.locator(".stat", has_text="Topics, records")).to_contain_text("not known yet")
        expect(page.locator(".panel", has_text="Busiest topics")).to_contain_text("Not known yet.")
        page.goto(f"{console.address}/topics/orders")
        expect(page.get_by_text("This topic cannot be shown.")).to_be_visible()
        assert "Traceback" not in console.process.output()
