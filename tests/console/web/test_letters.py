"""Dead letters: finding those that belong together, comparing, redriving and discarding them, in a real browser."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from penstock.dead_letters import open_dead_letters
from penstock.model import DeadLetterFilter, LetterState
from tests.console.web.worked_log import CAKES, Worked

pytestmark = pytest.mark.xdist_group("chromium")


def rows_of(page: Page) -> Locator:
    return page.locator(".q-virtual-scroll__content tr")


def in_bin(worked: Worked, *states: LetterState) -> int:
    """How many letters of the bin are in one of these states."""
    return count(worked.bin, *states)


def count(place: str, *states: LetterState) -> int:
    letters = open_dead_letters(place)
    try:
        return letters.count(DeadLetterFilter(states=frozenset(states)))
    finally:
        letters.close()


def test_places_are_listed_with_what_waits_in_them(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/letters")
    expect(rows_of(page)).to_have_count(3)
    page.get_by_role("link", name="tea.dlq").click()
    expect(page.locator(".stat")).to_contain_text(str(CAKES))


def test_letters_are_filtered_by_their_error_and_looked_into(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/letters/tea.dlq")
    expect(rows_of(page)).to_have_count(CAKES)
    page.locator(".bar", has_text="Reject").click()
    expect(rows_of(page)).to_have_count(1)
    page.locator(".bar", has_text="Reject").click()
    page.get_by_label("Error holds").fill("no price")
    expect(rows_of(page)).to_have_count(CAKES - 1)
    rows_of(page).first.locator("td").nth(3).click()
    drawer = page.locator(".drawer")
    expect(drawer.locator("pre.form-json")).to_contain_text('"item": "cake"')
    expect(drawer).to_contain_text("no price for cake: <img src=x onerror=")
    expect(drawer.locator(".happening")).to_have_count(3)
    with page.expect_download() as downloading:
        drawer.get_by_text("Download value").click()
    assert json.loads(downloading.value.path().read_bytes())["item"] == "cake"
    assert page.evaluate("document.body.dataset.evil") is None


def test_two_letters_are_compared_side_by_side(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/letters/tea.dlq")
    compare = page.get_by_role("button", name="Compare")
    expect(compare).to_be_disabled()
    rows_of(page).nth(0).locator(".q-checkbox").click()
    rows_of(page).nth(1).locator(".q-checkbox").click()
    compare.click()
    dialog = page.locator(".dialog")
    expect(dialog.get_by_text("value.number")).to_be_visible()
    expect(dialog.locator(".versus-lines .versus-left").first).to_contain_text('"number"')
    assert page.evaluate("document.body.dataset.evil") is None


def test_a_redrive_shows_its_progress_to_everybody_refuses_a_second_and_is_cancelled(
    page: Page, context: BrowserContext, worked: Worked
) -> None:
    address = f"{worked.address}/letters/{quote(worked.bin, safe='')}"
    page.goto(address)
    page.get_by_role("button", name="Redrive all that match").click()
    dialog = page.locator(".dialog")
    expect(dialog).to_contain_text("letters match, as of now.")
    dialog.get_by_label("At most, letters/s").fill("0.1")
    dialog.get_by_role("button", name="Redrive").click()
    expect(page.locator(".redrive")).to_contain_text("Redrive by local")
    other = context.new_page()
    other.goto(address)
    expect(other.locator(".redrive")).to_contain_text("Redrive by local")
    other.get_by_role("button", name="Redrive all that match").click()
    other.locator(".dialog").get_by_role("button", name="Redrive").click()
    expect(other.locator(".dialog").get_by_role("alert")).to_contain_text("is redriving")
    page.locator(".redrive").get_by_role("button", name="Cancel").click()
    expect(page.locator(".redrive")).to_contain_text("was cancelled")
    expect(other.locator(".redrive")).to_contain_text("was cancelled")
    assert in_bin(worked, LetterState.TAKEN) == 0
    assert in_bin(worked, LetterState.REDRIVEN) < CAKES


def test_letters_are_discarded_with_a_reason_and_can_still_be_looked_at(page: Page, worked: Worked) -> None:
    before = in_bin(worked, LetterState.DISCARDED)
    page.goto(f"{worked.address}/letters/{quote(worked.bin, safe='')}")
    expect(page.get_by_role("button", name="Discard all that match")).to_be_enabled()
    rows_of(page).last.locator(".q-checkbox").click()
    page.get_by_role("button", name="Discard 1").click()
    discard = page.locator(".dialog").get_by_role("button", name="Discard")
    expect(discard).to_be_disabled()
    page.get_by_label("Reason").fill("a test's cake")
    discard.click()
    expect(page.locator(".notice")).to_contain_text("1 letter discarded")
    assert in_bin(worked, LetterState.DISCARDED) == before + 1
    assert "a test's cake" in (worked.console.folder / "state" / "audit.jsonl").read_text()
    page.get_by_label("State").click()
    page.get_by_role("option", name="Discarded").click()
    expect(rows_of(page)).to_have_count(before + 1)
    for name in ("Redrive all that match", "Discard all that match"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()


def test_all_letters_that_match_are_discarded_while_the_page_tells_how_far_it_came(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/letters/{quote(worked.spare, safe='')}?error=KeyError")
    expect(rows_of(page)).to_have_count(2)
    page.get_by_role("button", name="Discard all that match").click()
    expect(page.locator(".dialog")).to_contain_text("Discard 2 letters?")
    page.get_by_label("Reason").fill("they are as they should be")
    page.locator(".dialog").get_by_role("button", name="Discard").click()
    expect(page.locator(".redrive", has_text="2 of 2 discarded")).to_be_visible()
    expect(page.get_by_text("No letter matches.")).to_be_visible()
    assert (count(worked.spare, LetterState.DISCARDED), count(worked.spare, LetterState.WAITING)) == (2, 4)


def test_a_place_that_the_console_was_not_told_of_is_not_opened(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/letters/{quote('file:/etc/hostname', safe='')}")
    expect(page.get_by_text("is not a dead-letter store that this console knows")).to_be_visible()
