"""The results: everything read back from the log and the database, once all is done."""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.dead_letters import open_dead_letters
from penstock.demo.events import (
    CLOSING,
    LARGE_PAYMENTS,
    LATE_ANSWERS,
    LETTERS,
    MALFORMED_HEADER,
    PAGE_EVENTS_LATE,
    PAGE_USE,
    USE_TABLE,
    VERDICTS,
    Verdict,
    window_of,
)
from penstock.demo.generator import WindowTotals, window_name
from penstock.model import DeadLetter, DeadLetterFilter
from penstock.model.letter import LetterState
from penstock.streams import Connection

_LETTERS_AT_ONCE: Final = 1_000


@dataclass(slots=True)
class Results:
    """Read from topics and tables alone: nothing here was reported by the processes that wrote it."""

    verdicts: Counter[int] = field(default_factory=Counter)
    partial: int = 0
    mislabelled: int = 0
    """Verdicts whose label does not name what is missing."""
    late_answers: int = 0
    latencies: list[tuple[int, int]] = field(default_factory=list)
    """For the first verdict of each transaction: when the transaction was appended, and how many milliseconds later its
    verdict was."""
    waits_ms: list[float] = field(default_factory=list)
    judged_by: Counter[str] = field(default_factory=Counter)
    letters: Counter[int] = field(default_factory=Counter)
    """By number, the malformed rows among the dead letters."""
    strange_letters: int = 0
    """Dead letters that are not malformed rows."""
    counted: WindowTotals = field(default_factory=dict)
    """What the consumers counted, exactly once, in SQLite."""
    added_up: WindowTotals = field(default_factory=dict)
    twice: int = 0
    """Windows that the pipeline wrote more than once."""
    late: WindowTotals = field(default_factory=dict)
    """Page events that were too late for their window on Spark, and were set aside."""
    large: Counter[int] = field(default_factory=Counter)
    """Payments that the query in real-time mode passed on, and how often."""
    large_latencies: list[tuple[int, int]] = field(default_factory=list)
    """As `latencies`, for those."""
    large_since_ms: int = 0
    """When the first of them was passed on: earlier ones had to wait for Spark to start."""

    def see_verdict(self, verdict: Verdict, at_ms: int) -> None:
        self.verdicts[verdict.transaction] += 1
        self.judged_by[verdict.consumer] += 1
        self.waits_ms.append(verdict.took_ms)
        self.partial += verdict.label == "partial"
        self.mislabelled += (verdict.label == "partial") != bool(verdict.missing)
        if self.verdicts[verdict.transaction] == 1:
            self.latencies.append((verdict.appended_ms, max(0, at_ms - verdict.appended_ms)))

    def see_letter(self, letter: DeadLetter) -> None:
        number = dict(letter.record.headers).get(MALFORMED_HEADER)
        if number is None:
            self.strange_letters += 1
        else:
            self.letters[int(number)] += 1

    def see_use(self, row: dict[str, Any]) -> None:
        start = datetime.datetime.fromisoformat(row["window"]["start"])
        name = window_name(int(start.timestamp()), row["page"])
        self.twice += name in self.added_up
        self.added_up[name] = self.added_up.get(name, 0) + row["seen"]

    def see_late(self, row: dict[str, Any]) -> None:
        if row["number"] != CLOSING:
            name = window_name(window_of(datetime.datetime.fromisoformat(row["at"])), row["page"])
            self.late[name] = self.late.get(name, 0) + 1

    def see_large(self, row: dict[str, Any], at_ms: int) -> None:
        appended = datetime.datetime.fromisoformat(row["appended"])
        self.large[row["number"]] += 1
        self.large_since_ms = min(self.large_since_ms or at_ms, at_ms)
        if self.large[row["number"]] == 1:
            appended_ms = round(appended.timestamp() * 1000)
            self.large_latencies.append((appended_ms, max(0, at_ms - appended_ms)))


def read_results(stream: Connection, database: Path) -> Results:
    """All current results. `database` is where the consumers count."""
    results = Results()
    topics = set(stream.topics())
    for record in stream.read(VERDICTS.name):
        verdict = VERDICTS.decode(record.value)
        assert verdict is not None, "a verdict is never empty"
        results.see_verdict(verdict, record.timestamp_ms or 0)
    if LATE_ANSWERS.name in topics:
        results.late_answers = sum(1 for _ in stream.read(LATE_ANSWERS.name))
    if LETTERS in topics:
        for letter in _letters(stream):
            results.see_letter(letter)
    for topic, see in ((PAGE_USE, results.see_use), (PAGE_EVENTS_LATE, results.see_late)):
        if topic in topics:
            for record in stream.read(topic):
                see(msgspec.json.decode(record.value or b""))
    if LARGE_PAYMENTS in topics:
        for record in stream.read(LARGE_PAYMENTS):
            results.see_large(msgspec.json.decode(record.value or b""), record.timestamp_ms or 0)
    with contextlib.closing(sqlite3.connect(database)) as rows:
        for window_s, page, seen in rows.execute(f"SELECT window_s, page, seen FROM {USE_TABLE}"):
            results.counted[window_name(window_s, page)] = seen
    return results


def count_large(stream: Connection) -> int:
    """How many different large payments have been passed on by now."""
    if LARGE_PAYMENTS not in stream.topics():
        return 0
    return len({msgspec.json.decode(record.value or b"")["number"] for record in stream.read(LARGE_PAYMENTS)})


def _letters(stream: Connection) -> list[DeadLetter]:
    everything = DeadLetterFilter(states=frozenset(LetterState))
    found: list[DeadLetter] = []
    with contextlib.closing(open_dead_letters(LETTERS, stream)) as letters:
        while page := letters.browse(everything, _LETTERS_AT_ONCE, found[-1].id if found else None):
            found.extend(page)
    return found
