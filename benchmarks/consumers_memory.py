"""Whether a consumer's memory stays what it is: over many records, and while one of them is stuck.

`python -m benchmarks.consumers_memory JOB BOOTSTRAP TOPIC JSON-OPTIONS` is one measurement, and prints JSON.
"""

from __future__ import annotations

import gc
import itertools
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import penstock
from benchmarks.report import Figure
from benchmarks.servers import REPOSITORY
from penstock.app import App
from penstock.model.retry import Retry

TOPIC: Final = "bench-memory"
COUNT: Final = 10_000_000
STUCK_COUNT: Final = 1_000_000
_STUCK_S: Final = 3_600.0


def figures(
    bootstrap: str, folder: Path, scale: float, fill: Callable[[str, str, int], None], say: Callable[[str], None]
) -> list[Figure]:
    """One consumer over many records; then one over fewer, of which the eleventh is stuck."""
    found: list[Figure] = []
    for job, what, count in (
        ("many", "{:,} records", round(COUNT * scale)),
        ("stuck", "one record stuck among {:,}, order none", round(STUCK_COUNT * scale)),
    ):
        topic = f"{TOPIC}-{job}"
        fill(bootstrap, topic, count)
        measured = _in_a_process(job, bootstrap, topic, count, folder / f"{job}.sqlite")
        name = f"consumer: memory, {what.format(count)}"
        grown = measured["last_mb"] / measured["half_mb"]
        found += [
            Figure(f"{name}: after a tenth", measured["first_mb"], "MB"),
            Figure(f"{name}: after half of them", measured["half_mb"], "MB"),
            Figure(f"{name}: after the last", measured["last_mb"], "MB"),
            Figure(f"{name}: after the last, as a part of after half", grown, "x", 1.05, lower_is_better=True),
            Figure(f"{name}: the checkpoint of a partition", measured["checkpoint_bytes"], "bytes"),
        ]
    for figure in found:
        say("  " + figure.line())
    return found


def _in_a_process(job: str, bootstrap: str, topic: str, count: int, path: Path) -> dict[str, float]:
    options = json.dumps({"count": count, "path": str(path)})
    command = [sys.executable, "-m", "benchmarks.consumers_memory", job, bootstrap, topic, options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=REPOSITORY, check=False)
    if done.returncode:
        raise RuntimeError(f"{job}: {done.stderr.strip()[-2000:] or done.stdout}")
    return {name: float(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


class Sizes:
    """The memory of this process after a tenth, after half, and after the last record."""

    def __init__(self, count: int) -> None:
        self.ended = threading.Event()
        self._marks = (count // 10, count // 2, count)
        self._sizes_mb: dict[int, float] = {}
        self._next = itertools.count(1).__next__

    def tick(self) -> None:
        number = self._next()
        if number in self._marks:
            self._sizes_mb[number] = rss_mb()
            if number == self._marks[-1]:
                self.ended.set()

    def with_checkpoint(self, path: str) -> dict[str, float]:
        connection = sqlite3.connect(path)
        try:
            ((length,),) = connection.execute("SELECT max(length(data)) FROM penstock_checkpoint").fetchall()
        finally:
            connection.close()
        first, half, last = (self._sizes_mb[mark] for mark in self._marks)
        return {"first_mb": first, "half_mb": half, "last_mb": last, "checkpoint_bytes": length}


def many(bootstrap: str, topic: str, count: int, path: str) -> dict[str, float]:
    """All of them, one after the other, by a handler that does nothing."""
    sizes = Sizes(count)
    with penstock.connect(f"kafka://{bootstrap}") as connection:
        app = App(connection, group="many", checkpoints=f"sqlite:{path}")

        @app.handle(topic, end="latest")
        def handle(value: bytes) -> None:
            sizes.tick()

        app.run()
    return sizes.with_checkpoint(path)


def stuck(bootstrap: str, topic: str, count: int, path: str) -> dict[str, float]:
    """One record fails and waits for its next attempt, while all others are finished."""
    sizes = Sizes(count - 1)
    again = Retry(5, first_delay_s=_STUCK_S, max_delay_s=_STUCK_S)
    with penstock.connect(f"kafka://{bootstrap}") as connection:
        app = App(connection, group="stuck", checkpoints=f"sqlite:{path}")

        @app.handle(topic, order="none", workers=2, retry=again)
        def handle(record: penstock.Record) -> None:
            if record.partition == 0 and record.offset == 10:
                raise RuntimeError("it cannot be handled now")
            sizes.tick()

        thread = app.start()
        if not sizes.ended.wait(600):
            raise SystemExit("not all records came")
        app.stop()
        thread.join(60)
    return sizes.with_checkpoint(path)


def rss_mb() -> float:
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


if __name__ == "__main__":
    jobs: dict[str, Callable[..., Any]] = {"many": many, "stuck": stuck}
    print(json.dumps(jobs[sys.argv[1]](sys.argv[2], sys.argv[3], **json.loads(sys.argv[4]))))
