"""The pages of the console on Redis, whose pointers are no offsets, in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.clients.worked_stream import GROUP, LETTERS, TOPIC, work
from tests.console.web.console_process import ConsoleProcess
from tests.redis_server import RedisServer

REDIS_ID = re.compile(r"\d{13}-\d+")
LONG_NUMBER = re.compile(r"\d{17,}|\d{1,3}(,\d{3}){5,}")


@pytest.fixture(scope="module")
def redis_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    folder = tmp_path_factory.mktemp("redis-console")
    with RedisServer(folder / "redis") as server:
        work(server.url)
        with ConsoleProcess(folder / "console", server.url) as process:
            yield process
            assert "Traceback" not in process.process.output()


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/", "records are not counted"),
        ("/topics", TOPIC),
        (f"/topics/{TOPIC}", "bad"),
        (f"/topics/{TOPIC}?tab=partitions", "Start"),
        (f"/topics/{TOPIC}?tab=config", "does not tell the settings"),
        (f"/topics/{TOPIC}?tab=groups", GROUP),
        ("/groups", "known in time only"),
        (f"/groups/{GROUP}", "do not count records"),
        ("/consumers", GROUP),
        (f"/consumers/{GROUP}", "all finished"),
        ("/letters", LETTERS),
        (f"/letters/{LETTERS}", "ValueError"),
        ("/alerts", "Alerts"),
    ],
)
def test_a_page_shows_no_pointer_as_a_number(redis_console: ConsoleProcess, page: Page, path: str, shown: str) -> None:
    page.goto(redis_console.address + path)
    expect(page.locator("body")).to_contain_text(shown)
    assert not LONG_NUMBER.search(page.inner_text("body"))


def test_pointers_are_shown_in_the_form_of_redis_and_messages_are_stepped_through(
    redis_console: ConsoleProcess, page: Page
) -> None:
    page.goto(f"{redis_console.address}/topics/{TOPIC}")
    expect(page.locator(".q-table tbody").get_by_text("w2")).to_be_visible()
    newest = page.locator(".q-table tbody tr", has_text="w2")
    expect(newest).to_contain_text(REDIS_ID)
    newest.click()
    head = page.locator(".drawer h1")
    expect(head).to_contain_text(REDIS_ID)
    before = head.inner_text()
    page.get_by_label("The message before").click()
    expect(head).not_to_have_text(before)
    expect(page.locator(".drawer")).to_contain_text("w1")
    page.get_by_label("The next message").click()
    expect(head).to_have_text(before)


def test_a_reset_is_tried_with_pointers_in_the_form_of_redis(redis_console: ConsoleProcess, page: Page) -> None:
    page.goto(f"{redis_console.address}/groups/{GROUP}")
    page.get_by_role("button", name="Reset offsets").click()
    page.get_by_role("button", name="Dry run").click()
    row = page.locator(".q-dialog .q-table tbody tr", has_text=TOPIC)
    expect(row).to_contain_text(REDIS_ID)
    expect(row).to_contain_text("back")
