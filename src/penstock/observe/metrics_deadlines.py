"""From the statistics of `within` to metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric

from penstock.consuming.analysing.statistics import Counting, DeadlineStatistics
from penstock.observe import metrics_library as defined

_OUTCOMES: Final = ("answered", "failed", "late", "busy", "skipped")

Key = tuple[str, ...]
"""The analysers; with a result, or with an analyser and an outcome."""


class DeadlineTotals:
    """Sums over all deadlines with the same analysers: those in use, and those that were closed or forgotten."""

    def __init__(self) -> None:
        self._gone: Counter[Key] = Counter()
        self._lock = threading.Lock()

    def left(self, part: object) -> None:
        if isinstance(part, Counting):
            with self._lock:
                self._gone.update(_numbers(part.snapshot()))

    def collect(self, parts: Iterable[object]) -> Iterator[Metric]:
        in_use = [each.snapshot() for each in parts if isinstance(each, Counting)]
        with self._lock:
            totals = Counter(self._gone)
        for statistics in in_use:
            totals.update(_numbers(statistics))
        calls, overdue = defined.DEADLINE_CALLS.counter(), defined.DEADLINE_OVERDUE.counter()
        answers, running = defined.DEADLINE_ANSWERS.counter(), defined.DEADLINE_RUNNING.gauge()
        for key, number in totals.items():
            family = {1: overdue, 2: calls, 3: answers}[len(key)]
            family.add_metric(key, number)
        at_work: Counter[Key] = Counter()
        for statistics in in_use:
            analysers = _names(statistics)
            at_work.update({(analysers, name): each.running for name, each in statistics.analysers.items()})
        for key, number in at_work.items():
            running.add_metric(key, number)
        yield from (calls, overdue, answers, running)


def _names(statistics: DeadlineStatistics) -> str:
    return ",".join(statistics.analysers)


def _numbers(statistics: DeadlineStatistics) -> dict[Key, int]:
    analysers = _names(statistics)
    numbers: dict[Key, int] = {
        (analysers,): statistics.overdue,
        (analysers, "complete"): statistics.complete,
        (analysers, "partial"): statistics.partial,
    }
    for name, each in statistics.analysers.items():
        numbers |= {(analysers, name, outcome): getattr(each, outcome) for outcome in _OUTCOMES}
    return numbers
