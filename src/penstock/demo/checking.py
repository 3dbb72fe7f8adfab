"""The verdict on the demo: the results, compared with what the generator says it sent."""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
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
from penstock.demo.generator import Account, WindowTotals, window_name
from penstock.demo.live import Live
from penstock.demo.process_group import Parts
from penstock.demo.settings import DemoSettings
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
    large_passed_ms: list[int] = field(default_factory=list)
    """When each of them was passed on, repeats included."""

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
        self.large_passed_ms.append(at_ms)
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


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    value: str
    holds: bool | None = None
    """Whether the promise holds; None for a mere figure."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Latencies:
    """In milliseconds; all are 0 without values."""

    p50: float = 0.0
    p99: float = 0.0
    highest: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Latencies:
        if not values:
            return cls()
        ordered = sorted(values)
        middle, high = (ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.5, 0.99))
        return cls(middle, high, ordered[-1])


def checks_of(account: Account, results: Results, *, with_spark: bool, with_real_time: bool) -> list[Check]:
    """Every promise, kept or not, and the figures around them."""
    found = [*_checks_of_transactions(account, results), *_checks_of_letters(account, results)]
    found.append(_check_of_windows("page events counted by the consumers", account, results.counted))
    if with_spark:
        total = merged(results.added_up, results.late)
        late = sum(results.late.values())
        note = f", {late:,} of them late and set aside" if late else ""
        found.append(_check_of_windows("page events added up on Spark", account, total, note))
        found.append(Check("windows written twice", f"{results.twice:,}", results.twice == 0, "exactly-once"))
    if with_real_time:
        found.extend(_checks_of_large_payments(account, results))
    return found


def merged(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}


def wrong_with(checks: Sequence[Check]) -> list[str]:
    """A sentence for each broken promise."""
    return [f"{each.name}: {each.value} ({each.note})" for each in checks if each.holds is False]


def typical_second(latencies: Sequence[tuple[int, int]]) -> Latencies:
    """The median of the figures of all seconds with appends: those while nothing was down, which is most of the
    time."""
    seconds: dict[int, list[int]] = {}
    for appended_ms, took_ms in latencies:
        seconds.setdefault(appended_ms // 1000, []).append(took_ms)
    each = [Latencies.of(values) for values in seconds.values()]
    if not each:
        return Latencies()
    return Latencies(
        statistics.median(one.p50 for one in each),
        statistics.median(one.p99 for one in each),
        statistics.median(one.highest for one in each),
    )


def _checks_of_transactions(account: Account, results: Results) -> list[Check]:
    wanted = set(range(account.transactions))
    lost = wanted - results.verdicts.keys()
    strange = results.verdicts.keys() - wanted
    repeated = sum(times - 1 for times in results.verdicts.values())
    missing = account.sent - account.acknowledged
    return [
        Check("events sent", f"{account.sent:,}", missing == 0, _or(missing, "never acknowledged", "all acknowledged")),
        Check(
            "transactions judged",
            f"{len(results.verdicts):,}",
            not strange,
            _or(len(strange), "were never sent", f"{account.transactions:,} were sent"),
        ),
        Check("lost", f"{len(lost):,}", not lost, _such_as(lost) or "every transaction has its verdict"),
        Check("judged again", f"{repeated:,}", None, "at-least-once: those in hand when a part was killed"),
        Check(
            "partial at the deadline",
            f"{results.partial:,}",
            results.mislabelled == 0,
            _or(results.mislabelled, "without a label that says so", "each labelled so, with what is missing")
            + f"; {results.late_answers:,} answers followed late",
        ),
    ]


def _checks_of_letters(account: Account, results: Results) -> list[Check]:
    differ = set(range(account.malformed)) ^ results.letters.keys()
    twice = sum(times - 1 for times in results.letters.values())
    note = f"{account.malformed:,} malformed rows were sent"
    if differ:
        note += f"; they differ, {_such_as(differ)}"
    if twice:
        note += f"; {twice:,} are there twice"
    if results.strange_letters:
        note += f"; {results.strange_letters:,} letters are of good records"
    count = sum(results.letters.values()) + results.strange_letters
    return [Check("dead letters", f"{count:,}", not (differ or twice or results.strange_letters), note)]


def _check_of_windows(name: str, account: Account, totals: Mapping[str, int], note: str = "") -> Check:
    names = account.windows.keys() | totals.keys()
    wrong = {each for each in names if account.windows.get(each, 0) != totals.get(each, 0)}
    count, sent = sum(totals.values()), sum(account.windows.values())
    windows = len({each.partition(" ")[0] for each in account.windows})
    told = f"{sent:,} in {windows:,} windows, by the generator's count{note}"
    if wrong:
        told += f"; {len(wrong):,} totals differ, {_such_as(wrong)}"
    return Check(name, f"{count:,}", not wrong, told)


def _checks_of_large_payments(account: Account, results: Results) -> list[Check]:
    lost = set(account.large) - results.large.keys()
    strange = results.large.keys() - set(account.large)
    again = sum(times - 1 for times in results.large.values())
    note = f"{len(account.large):,} were sent, {len(lost):,} are lost, {again:,} there again (at-least-once)"
    if strange:
        note += f"; {len(strange):,} were never sent"
    return [Check("large payments, in real-time mode", f"{len(results.large):,}", not lost and not strange, note)]


def _or(wrong: int, told: str, otherwise: str) -> str:
    return f"{wrong:,} {told}" if wrong else otherwise


def _such_as(numbers: set[int] | set[str]) -> str:
    return f"such as {', '.join(str(each) for each in sorted(numbers, key=str)[:3])}" if numbers else ""


def delay_text(delay_ms: float) -> str:
    """7 ms, 1.2 s, 100 s."""
    if delay_ms < 1000:
        return f"{delay_ms:.0f} ms"
    return f"{delay_ms / 1000:.1f} s" if delay_ms % 1000 else f"{delay_ms / 1000:.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    settings: DemoSettings
    parts: Parts
    account: Account
    results: Results
    checks: Sequence[Check]
    live: Live
    began_ms: int
    before_s: float | None
    """From the start of `make demo` to the start of the demo, while packages were installed."""
    took_s: float

    @property
    def wrong(self) -> list[str]:
        return wrong_with(self.checks)

    @property
    def latencies(self) -> Latencies:
        return Latencies.of([took_ms for _, took_ms in self.results.latencies])

    @property
    def typical(self) -> Latencies:
        return typical_second(self.results.latencies)

    @property
    def waits(self) -> Latencies:
        return Latencies.of(self.results.waits_ms)

    def figures(self) -> list[Check]:
        """What was measured, besides what was checked."""
        typical, overall, waits = self.typical, self.latencies, self.waits
        found = [
            Check(
                "from append to verdict, p50 / p99",
                f"{delay_text(typical.p50)} / {delay_text(typical.p99)}",
                None,
                f"a typical second; with all outages {delay_text(overall.p50)} / {delay_text(overall.p99)}, "
                f"at most {delay_text(overall.highest)}",
            ),
            Check(
                "waited for analysers, p50 / p99",
                f"{waits.p50:.1f} / {waits.p99:.1f} ms",
                None,
                "the deadline is 20 ms",
            ),
        ]
        if self.live.is_real_time:
            found.append(self._figure_of_real_time())
        first_result_s = self.live.first_result_s
        if first_result_s is not None:
            note = "from the start of the demo"
            if self.before_s is not None:
                note += f"; {self.before_s + first_result_s:.1f} s from the start of make demo"
            found.append(Check("time to the first result", f"{first_result_s:.1f} s", None, note))
        found.append(Check("all of it took", f"{self.took_s:.0f} s"))
        return found

    def _figure_of_real_time(self) -> Check:
        at_ms = {each.mark: self.began_ms + round(each.at_s * 1000) for each in self.live.events if each.mark}
        down_ms = []
        if "broker killed" in at_ms:
            down_ms.append((at_ms["broker killed"], at_ms.get("broker back", at_ms["broker killed"])))
        return figure_of_real_time(self.results, at_ms.get("driver killed"), down_ms)


def figure_of_real_time(
    results: Results, driver_killed_ms: int | None, down_ms: Sequence[tuple[int, int]] = ()
) -> Check:
    """How long payments took while the query ran, its batch boundaries included, and how many had to wait until it did.

    It runs from its first result on. When its driver was killed, it runs again from the next result on. `down_ms` are
    the times at which it had no broker.
    """
    starts_ms = [min(results.large_passed_ms)] if results.large_passed_ms else []
    away_ms = [*((0, each) for each in starts_ms), *down_ms]
    if driver_killed_ms is not None:
        back_ms = min((each for each in results.large_passed_ms if each > driver_killed_ms), default=None)
        away_ms.append((driver_killed_ms, max(results.large_passed_ms, default=0) + 1 if back_ms is None else back_ms))
    ran = [
        took_ms
        for appended_ms, took_ms in results.large_latencies
        if not any(appended_ms <= end and begin < appended_ms + took_ms for begin, end in away_ms)
    ]
    waited = len(results.large_latencies) - len(ran)
    name = "in real-time mode, p50 / p99"
    if not ran:
        return Check(name, "-", None, "no payment came while the query ran, as the machine is busy")
    found, overall = Latencies.of(ran), Latencies.of([took_ms for _, took_ms in results.large_latencies])
    note = (
        f"of {len(ran):,} payments while the query ran, its batch boundaries included; {waited:,} others waited until "
        f"Spark or the broker was up, with them {delay_text(overall.p50)} / {delay_text(overall.p99)}"
    )
    return Check(name, f"{delay_text(found.p50)} / {delay_text(found.p99)}", None, note)
