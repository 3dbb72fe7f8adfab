"""A broker that takes seconds over every answer: pages come at once, say that they wait, and fill by themselves."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest
from playwright.sync_api import BrowserContext, Page, expect

import penstock as ps
from penstock.streams import connect
from penstock.testing import TcpProxy
from tests.clients.waiting import eventually
from tests.console.web.console_process import ConsoleProcess
from tests.servers import Penstock

pytestmark = pytest.mark.xdist_group("chromium")

DELAY_S: Final = 5.0
"""NiceGUI gives up a page that is not sent after 3 s."""
LESS_S: Final = 0.3
"""For what takes many answers in turn."""
AT_ONCE_S: Final = 3.0
FILLED_MS: Final = 120_000
WAITING: Final = re.compile(r"Waiting for the broker: \d+ s")
WAITING_LONG: Final = re.compile(r"Waiting for the broker: ([4-9]|\d\d+) s")
"""Longer than NiceGUI would wait."""


@dataclass(frozen=True, slots=True)
class Slow:
    proxy: TcpProxy
    console: ConsoleProcess


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    folder = tmp_path_factory.mktemp("slow")
    with TcpProxy(0) as proxy, Penstock(folder / "broker", "--advertise", proxy.address) as server:
        proxy.server = ("127.0.0.1", server.port)
        url = f"kafka://{proxy.address}"
        with connect(url) as stream:
            stream.create_topic("tea", 2)
            for number in range(20):
                stream.send("tea", {"number": number}, partition=number % 2)
            stream.flush(30)
        app = ps.App(url, group="house")
        app.handle("tea", end="latest", retry=ps.Retry(1), dead_letters="tea.dlq")(_serve)
        app.run()
        with ConsoleProcess(folder / "console", url) as console:
            yield Slow(proxy, console)


def _serve(order: dict[str, int]) -> None:
    if order["number"] == 7:
        raise ps.Reject("no seven")


@pytest.fixture
def console(slow: Slow, page: Page) -> Iterator[ConsoleProcess]:
    """The console, which has looked at everything once, and whose broker has become slow."""
    slow.proxy.delay_s = 0.0
    page.goto(slow.console.address)
    expect(page.get_by_text("tea", exact=True).first).to_be_visible()
    slow.proxy.delay_s = DELAY_S
    yield slow.console
    slow.proxy.delay_s = 0.0


def opened(context: BrowserContext, address: str) -> Page:
    """A page in a tab of its own, which must come at once."""
    tab = context.new_page()
    began_s = time.monotonic()
    answer = tab.goto(address, wait_until="commit")
    assert time.monotonic() - began_s < AT_ONCE_S, address
    assert answer is not None
    assert answer.status == 200, address
    return tab


ASKING: Final = {
    "/topics/tea": "20 messages.",
    "/topics/tea?tab=config": "retention.ms",
    "/groups/house": "It has read everything.",
    "/consumers": "house",
    "/consumers/house": "Checkpoints in kafka:",
    "/letters/tea.dlq": "no seven",
}
"""Pages that ask the broker, and what stands on them once it has answered."""
AT_HAND: Final = {
    "/": "Busiest topics",
    "/topics": "tea.dlq",
    "/groups": "house",
    "/letters": "tea.dlq",
    "/pipelines": "pipeline",
    "/alerts": "Alerts",
    "/audit": "Nothing has been changed",
}
"""Pages that show what is known already."""


def test_every_page_comes_at_once_and_is_filled_when_the_broker_has_answered(
    context: BrowserContext, slow: Slow, console: ConsoleProcess
) -> None:
    asking = {path: opened(context, console.address + path) for path in ASKING}
    for path, tab in asking.items():
        expect(tab.locator(".waiting"), path).to_have_text(WAITING)
    for path, text in AT_HAND.items():
        expect(opened(context, console.address + path).get_by_text(text).first, path).to_be_visible()
    for path, tab in asking.items():
        expect(tab.locator(".waiting"), path).to_have_text(WAITING_LONG)
    slow.proxy.delay_s = 0.0  # what is held back goes at once
    slow.proxy.delay_s = LESS_S
    for path, text in ASKING.items():
        expect(asking[path].get_by_text(text).first, path).to_be_visible(timeout=FILLED_MS)


def test_a_slow_broker_is_called_slow_and_not_away(page: Page, slow: Slow, console: ConsoleProcess) -> None:
    slow.proxy.delay_s = 1.0  # a look at everything takes ten answers, and is slow from 5 s on
    page.goto(f"{console.address}/topics")
    expect(page.get_by_text("The broker answers slowly: looking at everything took")).to_be_visible(timeout=FILLED_MS)
    expect(page.locator(".problem")).to_be_hidden()
    expect(page.locator(".dot-slow")).to_be_visible()


def test_a_dialog_shows_that_it_waits_and_then_what_it_asked_for(
    page: Page, slow: Slow, console: ConsoleProcess
) -> None:
    slow.proxy.delay_s = 0.0
    page.goto(f"{console.address}/groups/house")
    page.get_by_role("button", name="Reset offsets").click()
    slow.proxy.delay_s = LESS_S
    dialog = page.locator(".dialog")
    dialog.get_by_role("button", name="Dry run").click()
    expect(page.locator(".waiting")).to_have_text(WAITING)
    expect(dialog).to_contain_text("2 partitions would move", timeout=FILLED_MS)
    expect(dialog.get_by_role("button", name="Move 2 partitions")).to_be_enabled()


def test_a_page_whose_broker_is_gone_says_so_and_can_be_asked_again(
    page: Page, slow: Slow, console: ConsoleProcess
) -> None:
    slow.proxy.delay_s = 0.0
    page.goto(f"{console.address}/topics/nothing-of-this-name")
    expect(page.get_by_text("there is no topic", exact=False).first).to_be_visible(timeout=FILLED_MS)
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


def test_who_leaves_a_page_waits_for_nothing_any_more(
    page: Page, context: BrowserContext, slow: Slow, console: ConsoleProcess
) -> None:
    """Many pages are opened and left; another one is filled as soon as its own answer is there."""
    for _ in range(20):
        opened(context, f"{console.address}/topics/tea").close()
    tab = opened(context, f"{console.address}/audit")
    expect(tab.get_by_text("Nothing has been changed").first).to_be_visible()
    slow.proxy.delay_s = 0.0
    fresh = opened(context, f"{console.address}/consumers/house")
    expect(fresh.get_by_text("Checkpoints in kafka:")).to_be_visible(timeout=FILLED_MS)


def test_the_console_may_be_started_while_its_broker_is_slow(
    page: Page, slow: Slow, tmp_path_factory: pytest.TempPathFactory
) -> None:
    slow.proxy.delay_s = LESS_S / 2
    try:
        folder = tmp_path_factory.mktemp("late")
        with ConsoleProcess(folder, f"kafka://{slow.proxy.address}") as console:
            page.goto(f"{console.address}/topics/tea")
            expect(page.get_by_text(WAITING).first).to_be_visible()
            expect(page.get_by_text("20 messages.").first).to_be_visible(timeout=FILLED_MS)
            eventually("nothing went wrong", lambda: "Traceback" not in console.process.output())
    finally:
        slow.proxy.delay_s = 0.0
