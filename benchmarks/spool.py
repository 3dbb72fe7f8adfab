"""What durability costs a producer: one with a spool against one in memory, on the embedded log.

`python -m benchmarks.spool KIND BOOTSTRAP FOLDER COUNT` is one measurement, in a process of its own, and prints JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import penstock
from benchmarks.report import Figure, Report, Row
from benchmarks.servers import REPOSITORY, penstock_os
from penstock.model import NewRecord
from penstock.producing.producer import Producer
from penstock.producing.spooling import Spool

RECORD_BYTES: Final = 100
COUNT: Final = 300_000
SYNCED_COUNT: Final = 5_000
"""Fewer, as one thread waits for the disk with each record."""
KINDS: Final = ("memory", "spool", "spool, at least once", "spool, fsync", "connection.send")
ROUND_TRIPS: Final = 200


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    figures: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        contender = penstock_os(Path(name))
        contender.start()
        try:
            for turn in range(rounds):
                for kind in KINDS:
                    count = round((SYNCED_COUNT if kind == "spool, fsync" else COUNT) * scale)
                    folder = Path(name) / f"spool-{turn}-{KINDS.index(kind)}"
                    figures[kind].append(_in_a_process(kind, contender.server.bootstrap, folder, count))
                    say(f"  {kind}: {figures[kind][-1]['records_per_s']:,.0f} records/s")
        finally:
            contender.stop()
    rates = {kind: statistics.median(each["records_per_s"] for each in found) for kind, found in figures.items()}
    for kind, bar in (("spool", 0.5), ("spool, at least once", 0.5)):
        what = f"producer with a spool, {RECORD_BYTES} B records, one thread ({kind})"
        theirs_is = "in memory, fsync: none"
        row = Row(what, rates[kind], "fsync: none, survives kill -9", rates["memory"], theirs_is, "records/s", bar)
        say("  " + row.line())
        report.rows.append(row)
    for kind in KINDS:
        trip_ms = statistics.median(each["round_trip_ms"] for each in figures[kind])
        report.figures.append(Figure(f"producer, {kind}: {RECORD_BYTES} B records", rates[kind], "records/s"))
        report.figures.append(Figure(f"producer, {kind}: send and wait for the receipt, median", trip_ms, "ms"))
    report.figures += _opening(round(200_000 * scale))
    report.notes.append(
        "Producers: one thread calls send in a loop, with a receipt for each record; counted until the last is "
        "acknowledged, by a penstock broker that does not fsync (--flush os). A spool delivers in transactions, each "
        "record once, unless it says at least once. The spool survives kill -9 when send returns; with fsync, which is "
        "one fdatasync for each record of one thread, a power cut."
    )


def _in_a_process(kind: str, bootstrap: str, folder: Path, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.spool", kind, bootstrap, str(folder), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=REPOSITORY, check=False)
    if done.returncode:
        raise RuntimeError(f"{kind}: {done.stderr.strip()[-500:] or done.stdout}")
    return {name: float(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def _producer(kind: str, url: str, folder: str) -> Any:
    match kind:
        case "memory":
            return Producer(url)
        case "spool":
            return Producer(url, buffer=f"spool:{folder}")
        case "spool, at least once":
            return Producer(url, buffer=f"spool:{folder}", idempotent=False)
        case "spool, fsync":
            return Producer(url, buffer=f"spool:{folder}", spool_flush="fsync")
        case _:
            return penstock.connect(url)


def measure(kind: str, bootstrap: str, folder: str, count: int) -> dict[str, float]:
    topic = f"bench-{time.time_ns()}"
    value = (bytes(range(256)) * (RECORD_BYTES // 256 + 1))[:RECORD_BYTES]
    with _producer(kind, f"kafka://{bootstrap}", folder) as producer:
        producer.send(topic, value).result(30)
        started = time.perf_counter()
        for _ in range(count):
            producer.send(topic, value)
        producer.flush(120)
        seconds = time.perf_counter() - started
        trips = []
        for _ in range(ROUND_TRIPS):
            began = time.perf_counter()
            producer.send(topic, value).result(30)
            trips.append(time.perf_counter() - began)
    with penstock.connect(f"kafka://{bootstrap}") as stream:
        there = sum(1 for _ in stream.read(topic))
    if there != count + ROUND_TRIPS + 1:
        raise SystemExit(f"{there} records are there, of {count + ROUND_TRIPS + 1}")
    return {"records_per_s": count / seconds, "round_trip_ms": statistics.median(trips) * 1e3}


def _opening(count: int) -> list[Figure]:
    """How long a spool takes to open, when a killed process has left it full."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        spool = Spool(name)
        records = [NewRecord("t", b"v" * RECORD_BYTES, None, (), 1)]
        for _ in range(count):
            spool.put(records)
        spool.close()
        started = time.perf_counter()
        again = Spool(name)
        seconds = time.perf_counter() - started
        if len(again) != count:
            raise RuntimeError(f"{len(again)} of {count} records are in the spool")
        again.close()
    return [Figure(f"opening a spool with {count:,} records to deliver", seconds, "s")]


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))))
