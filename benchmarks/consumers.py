"""Consumers: what tracking every record costs beside a bare loop, and beside frameworks on the same job.

Everything reads the same topics of one embedded log, through librdkafka, each measurement in a process of its own. They
take turns, and the ratio of medians counts.
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import consumers_memory
from benchmarks.consumers_peers import READ_AHEAD
from benchmarks.report import Figure, Report, Row
from benchmarks.servers import REPOSITORY, Contender, penstock
from tests.postgres import PostgresServer
from tools import parts

RECORD_BYTES: Final = 100
KEYS: Final = 1_000
PARTITIONS: Final = 3
MANY: Final = 1_000_000
SOME: Final = 200_000
FEW: Final = 20_000
FEWEST: Final = 2_000
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One thing to measure: a program, its job, on how many records, and with which options."""

    name: str
    count: int
    program: str
    what: str
    options: dict[str, Any] = field(default_factory=dict)


BESIDE_PEERS: Final = (
    Job("bare loop", MANY, "consumers_peers", "bare"),
    Job("at least once", MANY, "consumers_app", "noop"),  # next to it, so that a busy moment hits both
    Job("faststream", SOME, "consumers_peers", "faststream"),
    Job("faststream, ack each", FEW, "consumers_peers", "faststream", {"how": "ack"}),
    Job("faststream, batch handler", MANY, "consumers_peers", "faststream", {"how": "batch"}),
    Job("quix streams", SOME, "consumers_quix", "quix"),
)
ALONE: Final = (
    Job("exactly once, SQLite, a record at a time", MANY, "consumers_app", "inserting"),
    Job("exactly once, SQLite, lists", MANY, "consumers_app", "inserting_many"),
    Job("exactly once, PostgreSQL, a record at a time", SOME, "consumers_app", "inserting"),
    Job("exactly once, PostgreSQL, an answer at a time", SOME, "consumers_app", "inserting", {"send_ahead": False}),
    Job("exactly once, PostgreSQL, lists by executemany", SOME, "consumers_app", "inserting_many", {"workers": 3}),
    Job("exactly once, PostgreSQL, lists as arrays", MANY, "consumers_app", "inserting_arrays", {"workers": 3}),
    Job("exactly once, PostgreSQL, lists by COPY", MANY, "consumers_app", "copying", {"workers": 3}),
    Job("1 ms, one worker", FEWEST, "consumers_app", "sleeping"),
    Job("1 ms, order key, 8 workers", FEW, "consumers_app", "sleeping", {"order": "key", "workers": 8}),
    Job("1 ms, order none, 8 workers", FEW, "consumers_app", "sleeping", {"order": "none", "workers": 8}),
    Job("no-op, order key, 4 workers", SOME, "consumers_app", "noop", {"order": "key", "workers": 4}),
    Job("no-op, order none, 4 workers", SOME, "consumers_app", "noop", {"order": "none", "workers": 4}),
    Job("topic to topic, at least once", SOME, "consumers_app", "forwarding", {"to": "sink"}),
    Job(
        "topic to topic, exactly once", SOME, "consumers_app", "forwarding", {"to": "sink", "guarantee": "exactly-once"}
    ),
)
BARS: Final = (
    ("at least once", "bare loop", 0.6),
    ("at least once", "faststream", 3.0),
    ("at least once", "quix streams", 1.5),
    ("1 ms, order key, 8 workers", "1 ms, one worker", 7.0),
    ("1 ms, order none, 8 workers", "1 ms, one worker", 7.0),
    ("exactly once, SQLite, a record at a time", "at least once", 0.3),
    ("exactly once, SQLite, lists", "at least once", 0.3),
    ("exactly once, PostgreSQL, a record at a time", "at least once", 0.3),
    ("exactly once, PostgreSQL, a record at a time", "exactly once, PostgreSQL, an answer at a time", 2.5),
    ("exactly once, PostgreSQL, lists by executemany", "at least once", 0.3),
    ("exactly once, PostgreSQL, lists as arrays", "at least once", 0.3),
    ("exactly once, PostgreSQL, lists by COPY", "at least once", 0.3),
)
"""Ours, what it is compared with, and the ratio that is asked for."""


def run(report: Report, say: Say, *, rounds: int = 3, scale: float = 1.0, only: str = "") -> None:
    jobs = [job for job in (*BESIDE_PEERS, *ALONE) if only in job.name]
    rates: dict[str, list[float]] = {job.name: [] for job in jobs}
    with _bench(scale, {job.count for job in jobs}) as bench:
        for _ in range(rounds):
            for job in jobs:
                rates[job.name].append(bench.measure(job))
                say(f"  {job.name}: {rates[job.name][-1]:,.0f} records/s")
        fill_small = functools.partial(fill, compression="lz4")
        memory = [] if only else consumers_memory.figures(bench.bootstrap, bench.folder, scale, fill_small, say)
    found = {name: statistics.median(each) for name, each in rates.items()}
    for ours, theirs, bar in BARS:
        if ours in found and theirs in found:
            row = Row(f"consumer: {ours}", found[ours], ours, found[theirs], theirs, "records/s", bar)
            say("  " + row.line())
            report.rows.append(row)
    report.figures += [Figure(f"consumer: {name}", rate, "records/s") for name, rate in found.items()]
    report.figures += memory
    report.notes.append(
        f"Consumers: records of {RECORD_BYTES} B with {KEYS:,} keys in {PARTITIONS} partitions; {MANY:,} of them, "
        f"{SOME:,} for what is slower, {FEW:,} and {FEWEST:,} for what waits; rates are without the first 5 %. The "
        "broker is penstock with fsync before the answer. SQLite is in WAL mode with synchronous=NORMAL, PostgreSQL "
        "syncs every commit; effects are rows of a table without an index; an answer at a time: "
        "PostgresCheckpoints(send_ahead=False), where a handler waits for the answer to each statement; lists are of "
        "up to 2,000 records, and with "
        "PostgreSQL there is a worker for each partition, else one for all. Peers read further ahead than ours, and "
        "commit every 5 s; FastStream without validation and decoding, in its default, which commits what was polled "
        "rather than what was handled: its way to be at least once, ack each, is slower. "
        f"Versions: {_versions()}."
    )


class Bench:
    """A broker with topics that are full, a PostgreSQL, and what runs jobs on them."""

    def __init__(self, folder: Path, contender: Contender, postgres: PostgresServer, scale: float) -> None:
        self.folder = folder
        self.bootstrap = contender.server.bootstrap
        self._postgres = postgres
        self._scale = scale
        self._number = itertools.count(1)

    def fill(self, count: int) -> None:
        fill(self.bootstrap, f"bench-{count}", self.counted(count))

    def counted(self, count: int) -> int:
        return max(PARTITIONS, round(count * self._scale)) if count > FEW else count

    def measure(self, job: Job) -> float:
        number = next(self._number)
        options = {"count": self.counted(job.count), "group": f"bench-{number}", **job.options}
        database = f"sqlite:{self.folder / f'{number}.sqlite'}"
        if job.program == "consumers_quix":
            options |= {"librdkafka": READ_AHEAD, "folder": str(self.folder / f"quix-{number}")}
        elif "PostgreSQL" in job.name:
            options["database"] = self._postgres.fresh_database()
        elif "SQLite" in job.name:
            options["database"] = database
        elif job.program == "consumers_app" and "guarantee" not in job.options:
            options["checkpoints"] = database
        return run_job(job.program, job.what, self.bootstrap, f"bench-{job.count}", options)["records_per_s"]


@contextmanager
def _bench(scale: float, counts: set[int]) -> Iterator[Bench]:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as name,
        PostgresServer({"fsync": "on", "full_page_writes": "on"}) as postgres,
    ):
        contender = penstock(Path(name))
        contender.start()
        try:
            bench = Bench(Path(name), contender, postgres, scale)
            for count in sorted(counts):
                bench.fill(count)
            create_topic(bench.bootstrap, "sink")
            yield bench
        finally:
            contender.stop()


def create_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        created.result(60)


def fill(bootstrap: str, topic: str, count: int, compression: str = "none") -> None:
    """A topic with so many records in batches as large as they may be."""
    create_topic(bootstrap, topic)
    settings = {"queue.buffering.max.messages": 500_000, "linger.ms": 50, "compression.type": compression}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    keys = [b"k%d" % number for number in range(KEYS)]
    value = (bytes(range(256)))[:RECORD_BYTES]
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, keys[number % KEYS], partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise RuntimeError(f"{topic} did not take all records")


def run_job(program: str, what: str, bootstrap: str, topic: str, options: dict[str, Any]) -> dict[str, float]:
    """One measurement in a process of its own."""
    given = [bootstrap, topic, json.dumps(options)]
    command = [sys.executable, "-m", f"benchmarks.{program}", what, *given]
    if program == "consumers_quix":
        command = [str(parts.quixstreams_python()), str(REPOSITORY / "benchmarks" / f"{program}.py"), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=REPOSITORY, check=False)
    if done.returncode:
        raise RuntimeError(f"{program} {what}: {done.stderr.strip()[-2000:] or done.stdout}")
    return {name: float(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def _versions() -> str:
    from importlib.metadata import version

    script = "from importlib.metadata import version as v; print(v('quixstreams'), v('confluent-kafka'))"
    command = [str(parts.quixstreams_python()), "-c", script]
    quix, its_client = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return (
        f"FastStream {version('faststream')} on confluent-kafka {version('confluent-kafka')}, Quix Streams {quix} on "
        f"confluent-kafka {its_client}, psycopg {version('psycopg')}"
    )
