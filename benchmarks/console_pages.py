"""The console's pages in a real Chromium: a thousand topics, a thousand messages, and what an idle console costs."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Page, sync_playwright

from benchmarks.report import Figure, Report
from benchmarks.servers import penstock
from tools import parts

TOPICS: Final = 1_000
MESSAGES: Final = 5_000
IDLE_S: Final = 30.0
SETTLE_S: Final = 10.0
WAIT_MS: Final = 60_000
ROWS: Final = ".q-virtual-scroll__content tr"


def run(report: Report, say: Callable[[str], None], *, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        contender = penstock(Path(name))
        contender.start()
        try:
            _fill(contender.server.bootstrap)
            with _console(Path(name), contender.server.bootstrap) as (address, process):
                figures = _measured(address, process, rounds)
        finally:
            contender.stop()
    for figure in figures:
        say("  " + figure.line())
    report.figures.extend(figures)


def _measured(address: str, process: subprocess.Popen[str], rounds: int) -> list[Figure]:
    alone = _cpu_percent(process.pid)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=parts.chromium(), args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            page.set_default_timeout(WAIT_MS)
            first_s = _loaded(page, f"{address}/topics")
            again_s = [_loaded(page, f"{address}/topics") for _ in range(rounds)]
            browse_s = _browsed(page, f"{address}/topics/orders", rounds)
            page.goto(address)
            page.locator(".chart svg").first.wait_for()
            watched = _cpu_percent(process.pid)
        finally:
            browser.close()
    return [
        Figure(f"page of {TOPICS:,} topics, first time", first_s, "s"),
        Figure(
            f"page of {TOPICS:,} topics, after the first", statistics.median(again_s), "s", 1.0, lower_is_better=True
        ),
        Figure("1,000 messages, asked for and shown", statistics.median(browse_s), "s", 1.0, lower_is_better=True),
        Figure(f"idle console with {TOPICS:,} topics, no page open", alone, "% CPU", 2.0, lower_is_better=True),
        Figure(f"idle console with {TOPICS:,} topics, overview open", watched, "% CPU", 2.0, lower_is_better=True),
    ]


def _loaded(page: Page, address: str) -> float:
    """From the request until the first rows are there to be seen."""
    started = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.locator(ROWS, has_text="topic-").first.wait_for()
    return time.perf_counter() - started


def _browsed(page: Page, address: str, rounds: int) -> list[float]:
    """From the click until the page says how many there are, and the rows are drawn."""
    page.goto(address)
    page.get_by_text("100 messages.").wait_for()
    took_s = []
    for _ in range(rounds):
        for count, told in ((1_000, "1,000 messages."), (100, "100 messages.")):
            page.get_by_label("Show", exact=True).click()
            option = page.get_by_role("option", name=str(count), exact=True)
            option.wait_for()
            started = time.perf_counter()
            option.click()
            page.get_by_text(told, exact=True).wait_for()
            page.locator(ROWS).first.wait_for()
            if count == 1_000:
                took_s.append(time.perf_counter() - started)
    return took_s


def _cpu_percent(pid: int) -> float:
    time.sleep(SETTLE_S)
    before, started = _cpu_s(pid), time.monotonic()
    time.sleep(IDLE_S)
    return 100 * (_cpu_s(pid) - before) / (time.monotonic() - started)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(f"topic-{number:04d}", 1, 1) for number in range(TOPICS - 1)]
    for first in range(0, len(wanted), 100):
        for created in admin.create_topics(wanted[first : first + 100]).values():
            created.result(60)
    admin.create_topics([NewTopic("orders", 3, 1)])["orders"].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for number in range(MESSAGES):
        order = {"order": number, "customer": f"c-{number % 400}", "items": [{"item": "tea", "cups": number % 5}] * 3}
        producer.produce("orders", json.dumps(order), f"c-{number % 400}")
        producer.poll(0)
    for topic in wanted:
        producer.produce(topic.topic, b"one record")
    if producer.flush(120):
        raise RuntimeError("not every topic took its records")


@contextmanager
def _console(folder: Path, bootstrap: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "penstock.cli", "console", "--url", f"kafka://{bootstrap}"]
    command += ["--listen", "127.0.0.1:0", "--state", str(folder / "console")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        yield next(word for word in words if word.startswith("http://")), process
    finally:
        process.terminate()
        process.wait(30)
