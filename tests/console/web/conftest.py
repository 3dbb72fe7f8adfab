"""A real log with records in it, a real console on it, and a real Chromium, each started once.

Tests that use `page` belong to one group, so that pytest-xdist runs them in one worker: put
`pytestmark = pytest.mark.xdist_group("chromium")` into their module.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Dialog,
    Page,
    Response,
    ViewportSize,
    expect,
    sync_playwright,
)

from penstock.streams import connect
from tests import real_parts
from tests.console.web.console_process import ConsoleProcess
from tests.console.web.worked_log import worked
from tests.servers import Penstock

__all__ = ["worked"]  # a fixture, too

ORDERS: Final = 1_200
EVIL: Final = "<img src=x onerror=\"document.body.dataset.evil='1'\"><script>document.body.dataset.evil='1'</script>"
"""What would leave a mark on a page, and open no dialog that could be missed, if it came through as HTML."""
DESKTOP: Final[ViewportSize] = {"width": 1280, "height": 860}
WAIT_MS: Final = 20_000
"""How long a page is given to show something; a machine that is busy takes its time."""


@pytest.fixture(scope="session")
def filled_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a log with topics `orders` (3 partitions), `evil` and `empty`, and the group `billing`, which is
    behind."""
    with Penstock(tmp_path_factory.mktemp("log")) as server:
        url = f"kafka://{server.bootstrap}"
        with connect(url) as stream:
            stream.create_topic("orders", 3)
            stream.create_topic("evil", 1)
            stream.create_topic("empty", 1)
            for number in range(ORDERS):
                order = {"number": number, "customer": f"c-{number % 50}", "amount": number % 97}
                stream.send("orders", json.dumps(order), f"c-{number % 50}", headers={"trace": f"t-{number}"})
            stream.send("evil", EVIL, EVIL, headers={EVIL: EVIL})
            stream.send("evil", json.dumps({"text": EVIL, EVIL: [EVIL]}), "{{ 7 * 7 }} ${7 * 7}")
            stream.send("evil", bytes(range(256)) * 4, b"\xff\xfe")
            stream.flush(30)
            stream.group_admin().move("billing", {("orders", partition): 10 for partition in range(3)})
        yield url


@pytest.fixture(scope="session")
def console(filled_log: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    """A console that may change things."""
    with ConsoleProcess(tmp_path_factory.mktemp("console"), filled_log) as process:
        yield process


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for a module: while playwright runs, no other test in this process could run an event loop."""
    program = real_parts.chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield started
        finally:
            started.close()


READY: Final = "() => document.readyState !== 'loading' && (!document.getElementById('app') || window.did_handshake)"
"""True for pages that NiceGUI has no part in, such as the login."""


@pytest.fixture(scope="module")
def shared_context(browser: Browser) -> Iterator[BrowserContext]:
    """One for a module: what pages load is fetched and compiled once. Who has asked for less motion waits for none."""
    fresh = browser.new_context(viewport=DESKTOP, reduced_motion="reduce")
    fresh.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    try:
        yield fresh
    finally:
        fresh.close()


@pytest.fixture
def context(shared_context: BrowserContext) -> Iterator[BrowserContext]:
    """Without anything that another test has left in it."""
    try:
        yield shared_context
    finally:
        for page in shared_context.pages:
            page.close()
        shared_context.clear_cookies()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page on which nothing may go wrong: no script fails, nothing is loaded from elsewhere, no dialog comes up."""
    fresh = context.new_page()
    wrong: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        wrong.append(f"a dialog came up: {dialog.message}")
        dialog.dismiss()

    go = fresh.goto

    def go_and_wait(url: str, **options: Any) -> Response | None:
        """What is clicked before the page has found the server is lost, as a person would see: nothing happens."""
        answer = go(url, wait_until="commit", **options)
        fresh.wait_for_function(READY)
        return answer

    fresh.goto = go_and_wait  # type: ignore[method-assign]
    fresh.on("dialog", dismiss)
    fresh.on("pageerror", lambda error: wrong.append(f"a script failed: {error}"))
    fresh.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    fresh.on("request", lambda request: None if _is_here(request.url) else wrong.append(f"{request.url} was asked for"))
    yield fresh
    assert not wrong, "\n".join(wrong)


def _is_here(address: str) -> bool:
    return address.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:"))


def is_marked(page: Page) -> bool:
    """Whether `EVIL` has come through anywhere on the page."""
    return bool(page.evaluate("document.body.dataset.evil === '1'")) or page.locator("img[src='x']").count() > 0
