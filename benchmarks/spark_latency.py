"""How long a record takes from its append to its result: in real-time mode, and in batches with our settings and stock.

Records are sent and results received by this process, the query runs in another (`spark_latency_jobs`), and the broker
in a third. Each record carries the time of its sending; a result carries that of the record it is about.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

import penstock
from benchmarks.report import Figure, Report, Row
from penstock.spark.sessions.jars import connector_jars
from tools import parts

RATE: Final = 1_000
REAL_TIME: Final = {
    "real-time-stateless": "stateless, results with acks=all (fsync before the answer)",
    "real-time-stateless-acks-1": "stateless, results with acks=1",
    "real-time-fraud": "fraud case, results with acks=all (fsync before the answer)",
    "real-time-fraud-acks-1": "fraud case, results with acks=1",
}
NO_QUERY: Final = "no-query"
"""What the broker, both clients and the machine take by themselves."""
WARM_S: Final = 20.0
MEASURED_S: Final = 20.0
BATCH_RATE: Final = 100
BAR_MS: Final = 20.0
BATCH_BAR: Final = 0.65
START_S: Final = 180.0
CARDS: Final = 200
os.environ.setdefault("PENSTOCK_CACHE", str(parts.cache_folder()))
REPOSITORY: Final = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Delays:
    """How long records took, in milliseconds, sorted."""

    sorted_ms: list[float]
    load: float
    """The load of the machine while they were taken."""

    def at(self, part: float) -> float:
        return self.sorted_ms[min(len(self.sorted_ms) - 1, int(len(self.sorted_ms) * part))]

    def __str__(self) -> str:
        told = ", ".join(f"p{part * 100:g} {self.at(part):.1f}" for part in (0.5, 0.9, 0.99, 0.999))
        return f"{told}, max {self.sorted_ms[-1]:.1f} ms of {len(self.sorted_ms):,} (load {self.load:.1f})"


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    if not connector_jars():
        report.notes.append("spark latency: Spark's Kafka connector is missing: run `penstock spark jars`")
        return
    measured_s = max(5.0, MEASURED_S * scale)
    bare = measure(NO_QUERY, RATE, measured_s)
    say(f"   {NO_QUERY}: {bare}")
    name = f"from append to the same records received, without Spark, at {RATE:,}/s, p99"
    report.figures.append(Figure(name, bare.at(0.99), "ms", lower_is_better=True))
    for job, what in REAL_TIME.items():
        delays = measure(job, RATE, measured_s)
        say(f"   {job}: {delays}")
        name = f"real-time mode, {what}, append to result at {RATE:,}/s"
        report.figures.append(Figure(f"{name}, p50", delays.at(0.5), "ms", lower_is_better=True))
        report.figures.append(Figure(f"{name}, p99", delays.at(0.99), "ms", BAR_MS, lower_is_better=True))
        report.notes.append(f"{job}: {delays}; {os.cpu_count()} cores for sender, broker, Spark and receiver")
    found: dict[str, list[Delays]] = {"batches-ours": [], "batches-stock": [], "batches-pipeline": []}
    for _ in range(rounds):
        for job, taken in found.items():
            taken.append(measure(job, BATCH_RATE, measured_s))
            say(f"   {job}: {taken[-1]}")
    ours, stock, through = (statistics.median(each.at(0.5) for each in taken) for taken in found.values())
    report.rows.append(
        Row(
            f"stateless micro-batch, append to result at {BATCH_RATE}/s, p50",
            ours,
            "session()",
            stock,
            "stock settings",
            "ms",
            BATCH_BAR,
            lower_is_better=True,
        )
    )
    name = f"the same by a Pipeline, exactly once, append to committed result at {BATCH_RATE}/s, p50"
    report.figures.append(Figure(name, through, "ms", lower_is_better=True))


def measure(job: str, rate: int, measured_s: float) -> Delays:
    """The delays of one job on a fresh embedded log, once it is warm."""
    with tempfile.TemporaryDirectory(prefix="penstock-latency-") as folder:
        url = f"log:{folder}/data"
        with penstock.connect(url) as connection:
            connection.create_topic("payments", 1)
            connection.create_topic("results", 1)
            if job == NO_QUERY:
                return _delays(connection.bootstrap, rate, measured_s, "payments")
            with _job(job, url, Path(folder)):
                return _delays(connection.bootstrap, rate, measured_s, "results")


@contextmanager
def _job(job: str, url: str, folder: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.spark_latency_jobs", job, url, str(folder)]
    told = folder / "driver.txt"
    with told.open("wb") as errors:
        driver = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert driver.stdout is not None
        if driver.stdout.readline().strip() != "started":
            raise RuntimeError(f"{job} did not start: {told.read_text(errors='replace')[-2000:]}")
        yield
        driver.communicate("", timeout=60)
        if driver.returncode:
            raise RuntimeError(f"{job} failed: {told.read_text(errors='replace')[-2000:]}")
    finally:
        driver.kill()
        driver.wait()


def _delays(bootstrap: str, rate: int, measured_s: float, results: str) -> Delays:
    """Send at a steady rate, and note when each result comes: first until the job is warm, then for the measurement."""
    taken: list[tuple[int, int]] = []
    ended = threading.Event()
    receiving = threading.Thread(target=_receive, args=(bootstrap, results, taken, ended), daemon=True)
    receiving.start()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": 1})
    _await_first(producer, taken)
    _send(producer, rate, WARM_S)
    begun_ns = time.time_ns()
    _send(producer, rate, measured_s)
    producer.flush(30)
    load = os.getloadavg()[0]
    expected = int(rate * measured_s)
    until = time.monotonic() + 30
    while sum(1 for sent_ns, _ in taken if sent_ns >= begun_ns) < expected and time.monotonic() < until:
        time.sleep(0.1)
    ended.set()
    receiving.join()
    delays = sorted((seen_ns - sent_ns) / 1e6 for sent_ns, seen_ns in taken if sent_ns >= begun_ns)
    if len(delays) < expected:
        raise RuntimeError(f"{expected} records were sent, and {len(delays)} results came")
    return Delays(delays, load)


def _await_first(producer: Producer, taken: list[tuple[int, int]]) -> None:
    until = time.monotonic() + START_S
    while not taken:
        if time.monotonic() > until:
            raise RuntimeError(f"no result within {START_S:g} s")
        producer.produce("payments", json.dumps(_payment(0)))
        producer.poll(0)
        time.sleep(0.2)


def _send(producer: Producer, rate: int, seconds: float) -> None:
    next_s = time.perf_counter()
    for number in range(int(rate * seconds)):
        producer.produce("payments", json.dumps(_payment(number)))
        producer.poll(0)
        next_s += 1 / rate
        wait_s = next_s - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)


def _payment(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "card": f"card-{number % CARDS}",
        "merchant": f"shop-{number % 60}",
        "cents": number * 7919 % 700_000,
        "km": number * 31 % 1_500,
        "t": time.time_ns(),
    }


def _receive(bootstrap: str, topic: str, taken: list[tuple[int, int]], ended: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "latency",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    while not ended.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            seen_ns = time.time_ns()
            taken.append((json.loads(message.value() or b"{}")["t"], seen_ns))
    consumer.close()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, measure(name, BATCH_RATE if name.startswith("batches") else RATE, MEASURED_S), flush=True)
