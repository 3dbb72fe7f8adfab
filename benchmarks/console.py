"""The console's service, without its pages: a thousand messages, a search, large records, a million dead letters."""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

import penstock as ps
from benchmarks.report import Figure, Report
from benchmarks.servers import penstock
from penstock.console.service import Service
from penstock.console.views import MessageQuery
from penstock.dead_letters import open_dead_letters
from penstock.dead_letters.rows import COLUMNS, TABLE
from penstock.model import DeadLetterFilter

MESSAGES: Final = 100_000
PARTITIONS: Final = 6
LARGE_RECORDS: Final = 24
LARGE_BYTES: Final = 10_000_000
LETTERS: Final = 1_000_000
BAR_S: Final = 1.0


def run(report: Report, say: Callable[[str], None], *, rounds: int = 5, scale: float = 1.0) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        letters = f"sqlite:{folder / 'letters.db'}"
        count = _fill_letters(letters, round(LETTERS * scale))
        contender = penstock(folder / "broker")
        contender.start()
        try:
            url = f"kafka://{contender.server.bootstrap}"
            _fill_topics(url, round(MESSAGES * scale))
            with Service(url, state=folder / "state", dead_letters=[letters]) as service:
                figures = [*_messages(service, rounds), *_large(service), *_letters(service, letters, count, rounds)]
        finally:
            contender.stop()
    for figure in figures:
        say("  " + figure.line())
    report.figures.extend(figures)
    report.notes.append(
        f"The console's service: {MESSAGES * scale:,.0f} JSON messages of about 100 bytes in {PARTITIONS} partitions, "
        f"records of {LARGE_BYTES / 1e6:.0f} MB in 2, dead letters in SQLite. A page is the median of {rounds}; "
        "one of large records ends after 64 MB."
    )


def _messages(service: Service, rounds: int) -> list[Figure]:
    pages = {
        "the newest 1,000 messages of 6 partitions, merged by time": MessageQuery("events", "latest-1000", limit=1000),
        "the first 1,000 messages of 6 partitions, merged by time": MessageQuery("events", "earliest", limit=1000),
        "the newest 100 messages": MessageQuery("events", "latest-100"),
    }
    figures = [
        Figure(what, _median_s(partial(service.messages, query), rounds), "s", BAR_S, lower_is_better=True)
        for what, query in pages.items()
    ]
    for what, query in {
        "records filtered": MessageQuery("events", "earliest", expression='value.n < 0 and key contains "x"'),
        "records searched for text": MessageQuery("events", "earliest", search="nowhere to be found"),
    }.items():
        began_s = time.perf_counter()
        scanned = service.messages(query).scanned
        figures.append(Figure(what, scanned / (time.perf_counter() - began_s), "records/s"))
    return figures


def _large(service: Service) -> list[Figure]:
    Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here on
    before_mb, began_s = _peak_mb(), time.perf_counter()
    page = service.messages(MessageQuery("large", "latest-100"))
    took_s = time.perf_counter() - began_s
    return [
        Figure(f"a page of records of 10 MB ({len(page.rows)} of them)", took_s, "s"),
        Figure("memory that such a page adds, at its peak", _peak_mb() - before_mb, "MB", 100, lower_is_better=True),
    ]


def _letters(service: Service, spec: str, count: int, rounds: int) -> list[Figure]:
    middle = f"letter-{count // 2:07d}"
    figures = {
        "the first 100": lambda: service.letters(spec, DeadLetterFilter()),
        "100 from the middle": lambda: service.letters(spec, DeadLetterFilter(), after=middle),
        "one by its id": lambda: service.letter(spec, middle),
        "kinds of error, as far as they are counted": lambda: service.letter_errors(spec),
    }
    return [
        Figure(f"of {count:,} dead letters: {what}", _median_s(ask, rounds), "s", 2 * BAR_S, lower_is_better=True)
        for what, ask in figures.items()
    ]


def _fill_topics(url: str, count: int) -> None:
    with ps.connect(url) as stream:
        stream.create_topic("events", PARTITIONS)
        stream.create_topic("large", 2, {"max.message.bytes": str(2 * LARGE_BYTES)})
        for number in range(count):
            value = msgspec.json.encode({"n": number, "name": f"customer {number % 100}", "tags": ["a", "b"]})
            stream.send("events", value, key=f"k{number}", headers={"trace": f"t{number}"})
        for number in range(LARGE_RECORDS):
            stream.send("large", bytes([number]) * LARGE_BYTES, partition=number % 2)
        stream.flush(120)


def _fill_letters(spec: str, count: int) -> int:
    """Written past the letters' own `put`, which makes each of them durable: that is not what is measured here."""
    open_dead_letters(spec).close()
    row = (
        "billing",
        "orders",
        0,
        "",
        b"key",
        b'{"n": 1}' * 25,
        "[]",
        1,
        "ValueError: bad",
        "ValueError",
        "trace" * 100,
    )
    marks = ", ".join("?" * len(COLUMNS))
    with contextlib.closing(sqlite3.connect(spec.removeprefix("sqlite:"))) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.executemany(
            f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({marks})",
            (
                (f"letter-{number:07d}", *row[:3], str(number), *row[4:], 3, 1, number, "bill", "1", "waiting", 0)
                for number in range(count)
            ),
        )
        database.commit()
    return count


def _median_s(ask: Callable[[], object], rounds: int) -> float:
    ask()
    times_s = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        ask()
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s)


def _peak_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM for this process")
