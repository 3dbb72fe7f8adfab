"""Whether a consumer's memory stays what it is: over many records, and while one of them is stuck.

`python -m benchmarks.consumers_memory JOB BOOTSTRAP TOPIC JSON-OPTIONS` is one measurement, and prints JSON.
"""

from __future__ import annotations

import gc
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
from penstock.consuming.retry import Retry

RUNS: Final = 10
TOPIC: Final = "bench-1000000"
COUNT: Final = 1_000_000
_STUCK_S: Final = 3_600.0


def figures(bootstrap: str, folder: Path, scale: float, say: Callable[[str], None]) -> list[Figure]:
    """RUNS times the same records, each time in a new group of one process; then all of them but one that is stuck."""
    count = round(COUNT * scale)
    flat = _in_a_process("many", bootstrap, count, folder / "many.sqlite")
    stuck = _in_a_process("stuck", bootstrap, count, folder / "stuck.sqlite")
    what = f"consumer: memory, {RUNS} x {count:,} records"
    stuck_what = f"consumer: memory, one record stuck among {count:,}, order none"
    found = [
        Figure(f"{what}: after the first", flat["first_mb"], "MB"),
        Figure(f"{what}: after half of them", flat["half_mb"], "MB"),
        Figure(f"{what}: after the last, as a part of the first", flat["last_mb"] / flat["first_mb"], "x", 1.1, True),
        Figure(f"{stuck_what}: after a tenth", stuck["first_mb"], "MB"),
        Figure(f"{stuck_what}: after half of them", stuck["half_mb"], "MB"),
        Figure(f"{stuck_what}: at the end, as a part of a tenth", stuck["last_mb"] / stuck["first_mb"], "x", 1.1, True),
        Figure(f"{stuck_what}: its checkpoint", stuck["checkpoint_bytes"], "bytes"),
    ]
    for figure in found:
        say("  " + figure.line())
    return found


def _in_a_process(job: str, bootstrap: str, count: int, path: Path) -> dict[str, float]:
    options = json.dumps({"count": count, "path": str(path)})
    command = [sys.executable, "-m", "benchmarks.consumers_memory", job, bootstrap, TOPIC, options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=REPOSITORY, check=False)
    if done.returncode:
        raise RuntimeError(f"{job}: {done.stderr.strip()[-2000:] or done.stdout}")
    return {name: float(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def many(bootstrap: str, topic: str, count: int, path: str) -> dict[str, float]:
    """The same records again and again, in groups that have not seen them."""
    sizes_mb = []
    for number in range(RUNS):
        with penstock.connect(f"kafka://{bootstrap}") as connection:
            app = App(connection, group=f"memory-{number}", checkpoints=f"sqlite:{path}")
            seen = 0

            @app.handle(topic, end="latest")
            def handle(value: bytes) -> None:
                nonlocal seen
                seen += 1

            app.run()
        if seen != count:
            raise SystemExit(f"{seen} of {count} records")
        sizes_mb.append(rss_mb())
    return {"first_mb": sizes_mb[0], "half_mb": sizes_mb[len(sizes_mb) // 2 - 1], "last_mb": sizes_mb[-1]}


def stuck(bootstrap: str, topic: str, count: int, path: str) -> dict[str, float]:
    """One record fails and waits for its next attempt, while all others are finished."""
    sizes_mb: dict[int, float] = {}
    marks = frozenset((count // 10, count // 2, count - 1))
    lock = threading.Lock()
    ended = threading.Event()
    seen = 0
    with penstock.connect(f"kafka://{bootstrap}") as connection:
        app = App(connection, group="stuck", checkpoints=f"sqlite:{path}")

        @app.handle(topic, order="none", workers=2, retry=Retry(5, first_delay_s=_STUCK_S, max_delay_s=_STUCK_S))
        def handle(record: penstock.Record) -> None:
            nonlocal seen
            if record.partition == 0 and record.offset == 10:
                raise RuntimeError("stuck")
            with lock:
                seen += 1
                now = seen
            if now in marks:
                sizes_mb[now] = rss_mb()
                if now == count - 1:
                    ended.set()

        thread = app.start()
        if not ended.wait(600):
            raise SystemExit(f"{seen} of {count} records")
        app.stop()
        thread.join(60)
    rows = sqlite3.connect(path).execute("SELECT max(length(data)) FROM penstock_checkpoint").fetchall()
    first, half, last = (sizes_mb[mark] for mark in sorted(marks))
    return {"first_mb": first, "half_mb": half, "last_mb": last, "checkpoint_bytes": rows[0][0]}


def rss_mb() -> float:
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


if __name__ == "__main__":
    jobs: dict[str, Callable[..., Any]] = {"many": many, "stuck": stuck}
    print(json.dumps(jobs[sys.argv[1]](sys.argv[2], sys.argv[3], **json.loads(sys.argv[4]))))
