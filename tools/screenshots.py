"""Takes the pictures of the console that stand in the docs: `python -m tools.screenshots [FOLDER]`.

A sample stream (`tools.sample_stream`) is filled in a temporary folder, a console is started on it, and every page is
opened in Chromium: in light and dark, and some at phone width.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Browser, Page, sync_playwright

from tools import parts, sample_stream

LARGEST_BYTES: Final = 200 * 1024
WIDTH, HEIGHT = 1280, 820
PHONE_WIDTH, PHONE_HEIGHT = 390, 844
WATCHED_MS: Final = 20_000
"""So long the console watches before the first picture."""
RATES_MS: Final = 120_000
"""Rates are known after two looks, which are further apart on a machine that is busy."""
Look = Literal["light", "dark", "phone"]


def _nothing(page: Page) -> None:
    """The page as it comes."""


def _open_message(page: Page) -> None:
    page.locator(".q-virtual-scroll__content tr").nth(3).click()
    page.locator(".drawer").wait_for()


def _search(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("ship")
    page.locator(".palette-item").first.wait_for()


@dataclass(frozen=True, slots=True)
class Picture:
    """One page, and what is done on it before the picture is taken."""

    name: str
    path: str
    act: Callable[[Page], None] = _nothing
    looks: tuple[Look, ...] = ("light",)


PICTURES: Final = (
    Picture("overview", "/", looks=("light", "dark", "phone")),
    Picture("topics", "/topics", looks=("light", "phone")),
    Picture("messages", "/topics/orders", looks=("light", "dark", "phone")),
    Picture("message", "/topics/orders", _open_message, looks=("light", "dark")),
    Picture("partitions", "/topics/orders?tab=partitions"),
    Picture("search", "/topics", _search),
    Picture("groups", "/groups", looks=("light", "phone")),
    Picture("group", "/groups/billing", looks=("light", "dark")),
    Picture("consumers", "/consumers"),
    Picture("consumer", "/consumers/fraud", looks=("light", "dark")),
    Picture("letters", "/letters"),
    Picture("letter-place", "/letters/card-transactions.dlq", looks=("light", "dark", "phone")),
    Picture("pipelines", "/pipelines"),
    Picture("pipeline", "/pipelines/usage", looks=("light", "dark")),
    Picture("alerts", "/alerts", looks=("light", "phone")),
    Picture("audit", "/audit"),
)


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-pictures-") as scratch:
        data = Path(scratch) / "data"
        sample_stream.fill(data)
        with (
            sample_stream.going_on(data),
            _console(Path(scratch)) as address,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(executable_path=parts.chromium(), args=["--no-sandbox"])
            try:
                _take_all(browser, address, folder)
            finally:
                browser.close()
    return 0


def _take_all(browser: Browser, address: str, folder: Path) -> None:
    first = browser.new_page()
    first.goto(address)
    first.locator(".stat-value", has_text="/s").first.wait_for(timeout=RATES_MS)
    first.wait_for_timeout(WATCHED_MS)
    first.close()
    for picture in PICTURES:
        for look in picture.looks:
            path = folder / f"console-{picture.name}{'' if look == 'light' else f'-{look}'}.png"
            _take(browser, address, picture, look, path)
            sys.stdout.write(f"{path} {path.stat().st_size // 1024} KB\n")
            if path.stat().st_size > LARGEST_BYTES:
                raise SystemExit(f"{path} is larger than {LARGEST_BYTES // 1024} KB")


def _take(browser: Browser, address: str, picture: Picture, look: Look, path: Path) -> None:
    is_phone = look == "phone"
    context = browser.new_context(
        viewport={"width": PHONE_WIDTH, "height": PHONE_HEIGHT} if is_phone else {"width": WIDTH, "height": HEIGHT},
        color_scheme="dark" if look == "dark" else "light",
        reduced_motion="reduce",
    )
    try:
        page = context.new_page()
        page.goto(address + picture.path)
        page.locator(".page").wait_for()
        page.wait_for_timeout(1_000)
        picture.act(page)
        page.wait_for_timeout(700)
        page.screenshot(path=path, type="png")
    finally:
        context.close()


@contextmanager
def _console(folder: Path) -> Iterator[str]:
    """A console on the stream in FOLDER/data; gives its address."""
    command = [sys.executable, "-m", "penstock.cli", "console", "--url", "log:./data", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            raise SystemExit(f"the console did not start: {line}")
        yield found[0]
    finally:
        process.terminate()
        process.wait(20)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else parts.ROOT / "docs" / "images"))
