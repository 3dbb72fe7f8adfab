"""How punctual deadlines are: of calls of `within`, and of verdicts that are gathered from records.

By how much calls outlast a deadline of 20 ms, beside what waits and what computes. Beside each, how late a bare wait of
20 ms ends in the same process at the same time: what the machine itself adds.

Verdicts are those of the fraud case (examples/pipelines/fraud_in_time.py). This process sends transactions and receives
verdicts; the presenter, the broker and the analysers on Spark have processes of their own.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import penstock
from benchmarks.report import Figure, Report
from penstock.consuming.deadlines.parallel import within
from penstock.spark.sessions.jars import connector_jars
from tools import parts

DEADLINE_S: Final = 0.020
BAR_MS: Final = 5.0
CALLERS: Final = 8
CALLS: Final = 3_000
_LOOPS_PER_MS: Final = 15_000

RATE: Final = 100
WARM_S: Final = 15.0
MEASURED_S: Final = 30.0
START_S: Final = 180.0
PROBE: Final = "probe"
REPOSITORY: Final = Path(__file__).resolve().parent.parent
FLUSH: Final = {"all": "verdicts with acks=all (fsync before the answer)", "1": "verdicts with acks=1"}
os.environ.setdefault("PENSTOCK_CACHE", str(parts.cache_folder()))


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


@dataclass(slots=True)
class Verdicts:
    """How long after its transaction was sent each verdict was received, by label."""

    took_ms: dict[str, list[float]] = field(default_factory=lambda: {"complete": [], "partial": []})
    bare_ms: list[float] = field(default_factory=list)
    """The same of records that this process sends to itself beside them: what the broker and the machine take."""
    load: float = 0.0

    @property
    def all_ms(self) -> list[float]:
        return self.took_ms["complete"] + self.took_ms["partial"]

    def share(self, taken_ms: Sequence[float]) -> float:
        return sum(each <= DEADLINE_S * 1000 for each in taken_ms) / len(taken_ms) * 100 if taken_ms else 0.0


def run_verdicts(report: Report, say: Callable[[str], None], scale: float = 1.0) -> None:
    """The share of verdicts that this process, which sends the transactions, receives within 20 ms."""
    measured_s = max(5.0, MEASURED_S * scale)
    if not connector_jars():
        report.notes.append("verdicts: Spark's Kafka connector is missing: run `penstock spark jars`")
    for analysers in ("Spark", "none"):
        if analysers == "Spark" and not connector_jars():
            continue
        for acks, flush in FLUSH.items():
            what = (
                f"gathered verdicts, {'analysers on Spark' if analysers == 'Spark' else 'scores sent at once'}, {flush}"
            )
            found = _verdicts(analysers == "Spark", acks, measured_s)
            taken_ms = found.all_ms
            complete = len(found.took_ms["complete"]) / len(taken_ms) * 100
            figures = [
                Figure(f"{what}: received within 20 ms", found.share(taken_ms), "%"),
                Figure(f"{what}: complete", complete, "%"),
                Figure(f"{what}: complete and received within 20 ms", _part(found, "complete"), "%"),
                Figure(f"{what}: partial and received within 20 ms", _part(found, "partial"), "%"),
                Figure(f"{what}: from transaction to verdict, p50", _percentile(taken_ms, 0.5), "ms"),
                Figure(f"{what}: from transaction to verdict, p99", _percentile(taken_ms, 0.99), "ms"),
                Figure(f"{what}: a bare record beside it: received within 20 ms", found.share(found.bare_ms), "%"),
                Figure(f"{what}: a bare record beside it: p99", _percentile(found.bare_ms, 0.99), "ms"),
            ]
            for figure in figures:
                say("  " + figure.line())
                report.figures.append(figure)
            report.notes.append(f"{what}: {len(taken_ms):,} transactions at {RATE}/s, load {found.load:.1f}")
    report.notes.append(
        "Gathered verdicts: transactions and scores with acks=1, in the log of one broker. A verdict that is not "
        "complete is given 15 ms after its transaction was sent. Scores on Spark are those of three queries in "
        "real-time mode, with batches of 5 minutes, within one batch, after a warm-up. A bare record is sent "
        "and received by the same process beside each transaction, with the acks of the verdicts."
    )


def _part(found: Verdicts, label: str) -> float:
    taken_ms = found.took_ms[label]
    return found.share(taken_ms) * len(taken_ms) / len(found.all_ms)


def _verdicts(on_spark: bool, acks: str, measured_s: float) -> Verdicts:
    with tempfile.TemporaryDirectory(prefix="penstock-verdicts-") as folder:
        url = f"log:{folder}/data"
        with contextlib.ExitStack() as running:
            stream = running.enter_context(penstock.connect(url, linger_ms=0, acks=1))
            probe = running.enter_context(penstock.connect(url, linger_ms=0, acks=1 if acks == "1" else "all"))
            for topic in ("transactions", "scores", "verdicts", PROBE):
                stream.create_topic(topic, 1)
            if on_spark:
                running.enter_context(_job("analysers", url, acks, Path(folder)))
            running.enter_context(_job("presenter", url, acks, Path(folder)))
            return _sent_and_received(stream, probe, on_spark, measured_s)


@contextlib.contextmanager
def _job(job: str, url: str, acks: str, folder: Path) -> Iterator[None]:
    told = folder / f"{job}.txt"
    command = [sys.executable, "-m", "benchmarks.deadlines_jobs", job, url, acks]
    with told.open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "started":
            raise RuntimeError(f"{job} did not start: {told.read_text(errors='replace')[-2000:]}")
        yield
        process.communicate("", timeout=60)
    finally:
        process.kill()
        process.wait()


def _sent_and_received(
    stream: penstock.Connection, probe: penstock.Connection, on_spark: bool, measured_s: float
) -> Verdicts:
    from examples.pipelines import fraud_in_time as case

    received: dict[int, tuple[str, int]] = {}
    sent_ns: dict[int, int] = {}
    complete = threading.Event()
    bare_ns: list[tuple[int, int]] = []

    def receive_bare(reader: penstock.Reader) -> None:
        bare_ns.extend((int(record.value or b"0"), time.time_ns()) for record in reader)

    def receive(reader: penstock.Reader) -> None:
        for record in reader:
            now_ns = time.time_ns()
            verdict = case.verdicts.decode(record.value)
            assert verdict is not None
            received[verdict.transaction] = (verdict.label, now_ns)
            if verdict.label == "complete":
                complete.set()

    def send(transactions: Sequence[case.Transaction]) -> None:
        next_s = time.perf_counter()
        for each in transactions:
            each.at = datetime.datetime.now(datetime.UTC)
            sent_ns[each.id] = time.time_ns()
            stream.send(case.transactions, each)
            probe.send(PROBE, str(time.time_ns()))
            if not on_spark:
                for name in case.ANALYSERS:
                    stream.send(case.scores, case.Score(each.id, name, 0))
            next_s += 1 / RATE
            time.sleep(max(0.0, next_s - time.perf_counter()))

    with stream.read("verdicts", follow=True) as reader, probe.read(PROBE, follow=True) as bare_reader:
        receiving = [
            threading.Thread(target=receive, args=(reader,), daemon=True),
            threading.Thread(target=receive_bare, args=(bare_reader,), daemon=True),
        ]
        for thread in receiving:
            thread.start()
        first = 0
        until_s = time.monotonic() + START_S
        while not complete.is_set():  # until the first batch of every query has begun
            send(case.generate(7, RATE, first))
            first += RATE
            if time.monotonic() > until_s:
                raise RuntimeError(f"no complete verdict within {START_S:g} s")
        send(case.generate(8, int(RATE * WARM_S), first))
        measured = case.generate(9, int(RATE * measured_s), first + int(RATE * WARM_S))
        begun_ns = time.time_ns()
        send(measured)
        found = Verdicts(load=os.getloadavg()[0])
        until_s = time.monotonic() + 30
        while any(each.id not in received for each in measured):
            if time.monotonic() > until_s:
                raise RuntimeError("not every transaction has a verdict after 30 s")
            time.sleep(0.1)
    for thread in receiving:
        thread.join()
    found.bare_ms = [(seen_ns - given_ns) / 1e6 for given_ns, seen_ns in bare_ns if given_ns >= begun_ns]
    for each in measured:
        label, seen_ns = received[each.id]
        found.took_ms[label].append((seen_ns - sent_ns[each.id]) / 1e6)
    return found


def _late_ms(durations_s: list[float], part: float) -> float:
    return max(0.0, _percentile(durations_s, part) - DEADLINE_S) * 1000


def _percentile(durations_s: list[float], part: float) -> float:
    ordered = sorted(durations_s)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main() -> None:
    report = Report()
    run(report, print)
    run_verdicts(report, print)
    print("\n".join(report.notes))


if __name__ == "__main__":
    main()
