"""The audit log on its page, and a console that only looks, in a real browser."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from penstock.console.audit import AuditLog
from penstock.console.views import Person
from penstock.console.web.parts import READ_ONLY
from penstock.model.clock import SystemClock
from tests.console.web.console_process import ConsoleProcess
from tests.console.web.worked_log import EVIL, Worked

pytestmark = pytest.mark.xdist_group("chromium")

PAGES = (
    "/groups", "/groups/report", "/consumers", "/consumers/stuck", "/letters", "/letters/tea.dlq", "/pipelines",
    "/pipelines/usage", "/alerts", "/audit",
)  # fmt: skip


def test_changes_are_listed_newest_first_filtered_and_opened(page: Page, worked: Worked) -> None:
    log = AuditLog(worked.console.folder / "state" / "audit.jsonl", SystemClock())
    log.begin(Person("anna", "10.0.0.7"), "delete_topic", {"name": EVIL}).end(False, f"UnknownTopicError: {EVIL}")
    page.goto(f"{worked.address}/audit")
    rows = page.locator(".q-virtual-scroll__content tr")
    page.get_by_label("Filter").fill("anna")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("failed")
    rows.first.click()
    expect(page.locator(".dialog")).to_contain_text(f"UnknownTopicError: {EVIL}")
    assert page.evaluate("document.body.dataset.evil") is None


def test_at_phone_width_no_page_is_wider_than_the_screen(page: Page, worked: Worked) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for path in PAGES:
        page.goto(worked.address + path)
        expect(page.locator(".page h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_a_console_that_only_looks_offers_no_change_but_dry_runs(page: Page, worked: Worked, tmp_path: Path) -> None:
    place = f"sqlite:{worked.folder / 'bin.db'}"
    with ConsoleProcess(tmp_path, worked.url, "--read-only", "--dead-letters", place) as console:
        page.goto(f"{console.address}/letters/{quote(place, safe='')}")
        page.locator(".q-virtual-scroll__content tr").first.locator(".q-checkbox").click()
        for name in ("Redrive 1", "Discard 1"):
            expect(page.get_by_role("button", name=name)).to_be_disabled()
            expect(page.get_by_role("button", name=name)).to_have_attribute("title", READ_ONLY)
        page.goto(f"{console.address}/alerts")
        expect(page.get_by_role("button", name="Add rule")).to_be_disabled()
        page.goto(f"{console.address}/groups/report")
        expect(page.get_by_role("button", name="Delete group")).to_be_disabled()
        page.get_by_role("button", name="Reset offsets").click()
        page.locator(".dialog").get_by_role("button", name="Dry run").click()
        expect(page.locator(".dialog")).to_contain_text("This console is read-only.")
        expect(page.locator(".dialog").get_by_role("button", name="Move")).to_be_disabled()
