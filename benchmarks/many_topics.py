"""A thousand topics with three partitions each: how long a start takes, and what they cost when nobody uses them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.report import Figure, Report
from benchmarks.servers import Contender, penstock

TOPICS: Final = 1_000
PARTITIONS: Final = 3


def run(report: Report, say: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        contender = penstock(Path(name))
        contender.start()
        try:
            _fill(contender)
            open_files = len(os.listdir(f"/proc/{contender.process.pid}/fd"))
            contender.stop()
            clean_s = _timed_start(contender)
            idle_mb, idle_files = contender.rss_mb(), len(os.listdir(f"/proc/{contender.process.pid}/fd"))
            contender.process.kill()
            killed_s = _timed_start(contender)
        finally:
            contender.stop()
    what = f"{TOPICS:,} topics x {PARTITIONS} partitions, one record each"
    figures = [
        Figure(f"{what}: start after a clean stop", clean_s, "s", 3.0, lower_is_better=True),
        Figure(f"{what}: start after kill -9", killed_s, "s", 3.0, lower_is_better=True),
        Figure(f"{what}: idle memory", idle_mb, "MB", 200.0, lower_is_better=True),
        Figure(f"{what}: file handles, idle", idle_files, "handles"),
        Figure(f"{what}: file handles after writing to all", open_files, "handles"),
    ]
    for figure in figures:
        say("  " + figure.line())
    report.figures.extend(figures)


def _fill(contender: Contender) -> None:
    admin = AdminClient({"bootstrap.servers": contender.server.bootstrap})
    for first in range(0, TOPICS, 100):
        wanted = [NewTopic(f"topic-{number}", PARTITIONS, 1) for number in range(first, first + 100)]
        for created in admin.create_topics(wanted).values():
            created.result(60)
    producer = Producer({"bootstrap.servers": contender.server.bootstrap, "linger.ms": 50})
    for number in range(TOPICS):
        for partition in range(PARTITIONS):
            producer.produce(f"topic-{number}", b"one record", partition=partition)
        producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("not every topic took its record")


def _timed_start(contender: Contender) -> float:
    started = time.perf_counter()
    contender.start()
    return time.perf_counter() - started
