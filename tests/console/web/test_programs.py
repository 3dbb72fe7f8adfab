"""Supervised programs: what runs, what was given up and why, and the end of a log, in a real browser."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.console.web.console_process import ConsoleProcess
from tests.consuming.eventually import wait_until
from tests.servers import ServerProcess
from tests.supervising import programs
from tests.tidy.source import ROOT

pytestmark = pytest.mark.xdist_group("chromium")

EVIL = """
print("<img src=x onerror=\\"document.body.dataset.evil='1'\\">", flush=True)
raise RuntimeError("<b>no luck</b>")
"""


class Supervised:
    """A running `penstock up` of two programs, and a console that looks at its folder."""

    def __init__(self, folder: Path, console: ConsoleProcess) -> None:
        programs.write(folder, good=programs.IDLE, evil=EVIL)
        files = [str(folder / name) for name in ("good.py", "evil.py")]
        command = [sys.executable, "-m", "penstock.cli", "up", *files, "--logs", str(folder / "logs")]
        self.supervisor = ServerProcess([*command, "--restart-delay", "0"], folder / "output.txt")
        self.console = console
        wait_until(lambda: "It is not started again" in self.supervisor.output(), 60)
        wait_until(lambda: "is ready" in self.supervisor.output(), 60)


@pytest.fixture(scope="module")
def supervised(filled_log: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    folder = tmp_path_factory.mktemp("supervised")
    with ConsoleProcess(tmp_path_factory.mktemp("console"), filled_log, "--programs", str(folder)) as console:
        found = Supervised(folder, console)
        yield found
        found.supervisor.terminate()


def test_programs_are_listed_with_their_states_and_a_log(page: Page, supervised: Supervised) -> None:
    page.goto(f"{supervised.console.address}/programs")
    good, evil = (page.locator("tbody tr", has=page.get_by_role("link", name=name)) for name in ("good", "evil"))
    expect(good).to_contain_text("running")
    expect(evil).to_contain_text("failed")
    expect(evil).to_contain_text("given up: exit code 1: RuntimeError: <b>no luck</b>")
    expect(page.get_by_text("The supervisor is process")).to_be_visible()
    page.goto(f"{supervised.console.address}/programs/evil")
    expect(page.locator("pre")).to_contain_text("<img src=x")
    expect(page.locator("pre")).to_contain_text("penstock: started as process")
    expect(page.locator(".facts")).to_contain_text("RuntimeError: <b>no luck</b>")
    assert page.evaluate("document.body.dataset.evil") is None
    page.goto(f"{supervised.console.address}/programs/nowhere")
    expect(page.get_by_text("there is no program 'nowhere'")).to_be_visible()


def test_programs_of_a_supervisor_that_was_killed_are_dead(page: Page, supervised: Supervised) -> None:
    page.goto(f"{supervised.console.address}/programs/good")
    expect(page.locator(".badge", has_text="running")).to_be_visible()
    os.kill(supervised.supervisor.pid, signal.SIGKILL)
    expect(page.locator(".badge", has_text="dead")).to_be_visible()  # the page follows
    expect(page.get_by_text("has died: start it again")).to_be_visible()
    page.goto(f"{supervised.console.address}/programs")
    expect(page.locator("tbody tr", has_text="good")).to_contain_text("dead")
    expect(page.locator("tbody tr", has_text="evil")).to_contain_text("failed")
    expect(page.get_by_text("It has ended; its last report was")).to_be_visible()


def test_without_a_supervisor_the_page_says_how_to_start_one(page: Page, console: ConsoleProcess) -> None:
    assert not (ROOT / "logs" / "supervisor.json").exists()
    page.goto(f"{console.address}/programs")
    expect(page.get_by_text("No supervisor has run here.")).to_be_visible()
    expect(page.get_by_text("penstock up .")).to_be_visible()
