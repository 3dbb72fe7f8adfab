"""Penstock and Apache Kafka, by turns, under the same loads."""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.client import first_record
from benchmarks.report import Report, Row
from benchmarks.servers import Contender, kafka, kafka_flushing, penstock, penstock_os

Say = Callable[[str], None]


def run(report: Report, say: Say, *, rounds: int = 3, scale: float = 1.0) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        contenders = {make.__name__: make(folder) for make in (penstock, penstock_os, kafka, kafka_flushing)}
        for contender in contenders.values():
            say(f"starting {contender.name} (flush: {contender.flush_policy})")
            contender.start()
            stack.callback(contender.stop)
        ours, ours_os, theirs, theirs_flushing = contenders.values()
        everybody = list(contenders.values())

        def measure(what: str, who: list[Contender], one: Callable[[Contender], float]) -> dict[Contender, float]:
            samples: dict[Contender, list[float]] = {contender: [] for contender in who}
            for _ in range(rounds):
                for contender in who:
                    samples[contender].append(one(contender))
            medians = {contender: statistics.median(values) for contender, values in samples.items()}
            for contender, value in medians.items():
                say(f"  {what}: {contender.name}: {value:,.1f}")
            return medians

        topics: dict[tuple[Contender, int], str] = {}
        for size in (100, 1_000):
            count = int((1_500_000 if size == 100 else 300_000) * scale)

            def produce(contender: Contender, size: int = size, count: int = count) -> float:
                topic = topics[contender, size] = _topic()
                return contender.run("produce", topic=topic, count=count, size=size)["records_per_s"]

            rates = measure(f"produce {size} B", everybody, produce)
            what = f"produce {size} B records, batched"
            _row(report, f"{what}, flush by the OS on both", rates, ours_os, theirs, "records/s", 1.0)
            _row(report, f"{what}, acks=all with fsync; Kafka without", rates, ours, theirs, "records/s", 0.7)
            _row(report, f"{what}, acks=all with fsync on both", rates, ours, theirs_flushing, "records/s", 1.5)

            def produce_varying(contender: Contender, size: int = size, count: int = count) -> float:
                return contender.run("produce_varying", topic=_topic(), count=count, size=size)["records_per_s"]

            rates = measure(f"produce about {size} B", [ours, theirs], produce_varying)
            what = (
                f"produce records of {size // 2} to {size + size // 2} B, batched, acks=all with fsync; Kafka without"
            )
            _row(report, what, rates, ours, theirs, "records/s", 0.7)

            def consume(contender: Contender, size: int = size, count: int = count) -> float:
                return contender.run("consume", topic=topics[contender, size], count=count)["records_per_s"]

            rates = measure(f"consume {size} B", [ours, theirs], consume)
            _row(report, f"consume {size} B records", rates, ours, theirs, "records/s", 1.0)

        def single(contender: Contender) -> float:
            count = int(100_000 * scale)
            return contender.run("produce_single", topic=_topic(), count=count, size=100)["records_per_s"]

        rates = measure("one record per request", [ours, ours_os, theirs], single)
        _row(report, "one record per request, flush by the OS on both", rates, ours_os, theirs, "records/s", 0.5)
        _row(
            report, "one record per request, acks=all with fsync; Kafka without", rates, ours, theirs, "records/s", 0.5
        )

        def latency(contender: Contender) -> float:
            return contender.run("latency", topic=_topic(), count=int(10_000 * scale), rate=1_000)["p99_ms"]

        theirs_flushing.stop()
        times = measure("p99 at 1,000/s", [ours, ours_os, theirs], latency)
        what = "end to end p99 at 1,000/s"
        _row(report, f"{what}, flush by the OS on both", times, ours_os, theirs, "ms", 1.0, lower=True)
        _row(report, f"{what}, acks=all with fsync; Kafka without", times, ours, theirs, "ms", 1.0, lower=True)

    _memory(report, say, scale)
    _start(report, say, rounds)


def _memory(report: Report, say: Say, scale: float) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        used = {}
        for make in (penstock, kafka):
            contender = make(Path(name))
            contender.start()
            try:
                contender.run("produce", topic=_topic(), count=int(1_000_000 * scale), size=1_000)
                used[contender] = contender.rss_mb()
                say(f"  resident after 1 GB: {contender.name}: {used[contender]:.0f} MB")
            finally:
                contender.stop()
        ours, theirs = used
        _row(report, "resident memory after 1 GB", used, ours, theirs, "MB", 0.2, lower=True)


def _start(report: Report, say: Say, rounds: int) -> None:
    seconds: dict[str, list[float]] = {}
    contenders: dict[str, Contender] = {}
    for _ in range(rounds):
        for make in (penstock, kafka):
            with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
                contender = make(Path(name))
                contenders[contender.name] = contender
                seconds.setdefault(contender.name, []).append(_start_to_first_record(contender))
    medians = {contenders[name]: statistics.median(values) for name, values in seconds.items()}
    for contender, value in medians.items():
        say(f"  start to first acknowledged record: {contender.name}: {value:.2f} s")
    ours, theirs = medians
    _row(report, "start to first acknowledged record", medians, ours, theirs, "s", 0.1, lower=True)


def _start_to_first_record(contender: Contender) -> float:
    """On a folder that is there already, so that formatting it, which Kafka needs, does not count."""
    contender.start()
    contender.stop()
    with ThreadPoolExecutor(1) as client:
        started = time.perf_counter()
        acknowledged = client.submit(first_record, contender.server.bootstrap, _topic())
        try:
            contender.start()
            return acknowledged.result() - started
        finally:
            contender.stop()


def _topic() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


def _row(
    report: Report,
    what: str,
    values: dict[Contender, float],
    ours: Contender,
    theirs: Contender,
    unit: str,
    bar: float,
    *,
    lower: bool = False,
) -> None:
    ours_is = f"flush: {ours.flush_policy}"
    theirs_is = f"flush: {theirs.flush_policy}"
    report.rows.append(Row(what, values[ours], ours_is, values[theirs], theirs_is, unit, bar, lower))
