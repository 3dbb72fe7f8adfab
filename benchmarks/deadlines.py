"""How punctual `within` is: by how much calls outlast a deadline of 20 ms, beside what waits and what computes.

Beside each, how late a bare wait of 20 ms ends in the same process at the same time: what the machine itself adds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.report import Figure, Report
from penstock.consuming.deadlines.parallel import within

DEADLINE_S: Final = 0.020
BAR_MS: Final = 5.0
CALLERS: Final = 8
CALLS: Final = 3_000
_LOOPS_PER_MS: Final = 15_000


def quick(number: int) -> int:
    return number


def waits_5_ms(number: int) -> int:
    time.sleep(0.005)
    return number


def waits_50_ms(number: int) -> int:
    time.sleep(0.050)
    return number


def computes_5_ms(number: int) -> int:
    return _compute(5)


def computes_50_ms(number: int) -> int:
    return _compute(50)


def _compute(duration_ms: int) -> int:
    total = 0
    for step in range(duration_ms * _LOOPS_PER_MS):
        total += step
    return total


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    analysers: tuple[Callable[[int], int], ...]
    callers: int
    options: dict[str, Any]
    has_bar: bool = True


LOADS: Final = (
    Load("answers at once", (quick, waits_5_ms), 1, {}),
    Load("analysers that wait", (quick, waits_5_ms, waits_50_ms), CALLERS, {"workers": 32}),
    Load("too few workers", (quick, waits_5_ms, waits_50_ms), CALLERS, {"workers": 1, "queue_size": 4}),
    Load("analysers that compute, in processes", (quick, computes_5_ms, computes_50_ms), 1, {"processes": True}),
    Load("analysers that compute, in processes", (quick, computes_5_ms, computes_50_ms), CALLERS, {"processes": True}),
    Load("analysers that compute, in threads", (quick, computes_5_ms, computes_50_ms), 1, {}, has_bar=False),
)


def run(report: Report, say: Callable[[str], None], scale: float = 1.0) -> None:
    for load in LOADS:
        for figure in _measure(load, max(100, int(CALLS * scale * load.callers / CALLERS))):
            say("  " + figure.line())
            report.figures.append(figure)
    report.notes.append(
        f"Deadlines: {DEADLINE_S * 1000:.0f} ms, {CALLS:,} calls (an eighth with one caller). Late is the time from "
        "the deadline to the return of the call; an earlier return counts as 0. The bare wait is a Condition.wait of "
        "20 ms in another thread of the same process. Analysers that compute belong in processes: in threads they keep "
        "the interpreter from everybody, the caller whose time is up included."
    )


def _measure(load: Load, calls: int) -> list[Figure]:
    took_s: list[float] = []
    bare_s: list[float] = []
    over = threading.Event()
    with within(DEADLINE_S, *load.analysers, **load.options) as analyse:
        analyse(0)

        def call() -> None:
            for number in range(calls // load.callers):
                started = time.perf_counter()
                analyse(number)
                took_s.append(time.perf_counter() - started)

        def wait() -> None:
            condition = threading.Condition()
            with condition:
                while not over.is_set():
                    started = time.perf_counter()
                    condition.wait(DEADLINE_S)
                    bare_s.append(time.perf_counter() - started)

        waiting = threading.Thread(target=wait)
        calling = [threading.Thread(target=call) for _ in range(load.callers)]
        for thread in (waiting, *calling):
            thread.start()
        for thread in calling:
            thread.join()
        over.set()
        waiting.join()
        complete = analyse.statistics.complete / analyse.statistics.calls
    what = f"within 20 ms, {load.name}, {load.callers} caller{'s' * (load.callers > 1)}"
    return [
        Figure(f"{what}: took, p50 ({complete:.0%} complete)", _percentile(took_s, 0.5) * 1000, "ms"),
        Figure(
            f"{what}: late, p99", _late_ms(took_s, 0.99), "ms", BAR_MS if load.has_bar else None, lower_is_better=True
        ),
        Figure(f"{what}: late, max", _late_ms(took_s, 1.0), "ms"),
        Figure(f"{what}: a bare wait beside it: late, p99", _late_ms(bare_s, 0.99), "ms"),
    ]


def _late_ms(durations_s: list[float], part: float) -> float:
    return max(0.0, _percentile(durations_s, part) - DEADLINE_S) * 1000


def _percentile(durations_s: list[float], part: float) -> float:
    ordered = sorted(durations_s)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main() -> None:
    report = Report()
    run(report, print)
    print("\n".join(report.notes))


if __name__ == "__main__":
    main()
