"""How long `penstock cluster up` takes until three brokers serve, and how much memory they have then.

`python -m benchmarks cluster` runs the command as a user types it, in a folder of its own each time: the clock starts
with the process and stops when it ends. Kafka's jars are in the cache before. Afterwards the cluster goes down and up
again on the data that it left. Memory is the sum of the resident memory of the brokers.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.report import Figure, Report
from penstock.cluster.brokers import Cluster
from penstock.cluster.jars import KAFKA_VERSION, kafka_jars
from penstock.cluster.networks import best_network
from penstock.cluster.plans import Plan
from penstock.cluster.temporary import remove, with_free_ports

READY_S: Final = 20.0
MEMORY_MB: Final = 1_500.0
COMMAND_S: Final = 300.0


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3) -> None:
    kafka_jars()
    network = best_network()
    fresh_s: list[float] = []
    again_s: list[float] = []
    memory_mb: list[float] = []
    for number in range(max(1, rounds) + 1):
        folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-bench-"))
        try:
            first_s, memory = up(folder)
            penstock("down", folder)
            second_s, _ = up(folder)
        finally:
            remove(folder)
        say(f"   round {number}: {first_s:.1f} s, on existing data {second_s:.1f} s, {memory:,.0f} MB")
        if number:  # the first round fills the caches of the disk
            fresh_s.append(first_s)
            again_s.append(second_s)
            memory_mb.append(memory)
    what = f"penstock cluster up: three brokers of Apache Kafka {KAFKA_VERSION}"
    report.figures += [
        Figure(f"{what}, ready", statistics.median(fresh_s), "s", READY_S, lower_is_better=True),
        Figure(f"{what}, ready on existing data", statistics.median(again_s), "s", READY_S, lower_is_better=True),
        Figure(f"{what}, resident memory when ready", max(memory_mb), "MB", MEMORY_MB, lower_is_better=True),
    ]
    report.notes.append(f"penstock cluster up: network {network}, jars in the cache, median of {len(fresh_s)} rounds")


def up(folder: Path) -> tuple[float, float]:
    """How many seconds the command took, and how many MB the brokers had then."""
    port = with_free_ports(Plan(network=best_network())).port
    begun_s = time.perf_counter()
    penstock("up", folder, "--port", str(port))
    took_s = time.perf_counter() - begun_s
    cluster = Cluster.at(folder)
    return took_s, sum(cluster.memory_bytes(number) or 0 for number in cluster.numbers) / 1e6


def penstock(command: str, folder: Path, *options: str) -> None:
    """A command of `penstock cluster`. Its output is shown if it fails."""
    words = [sys.executable, "-m", "penstock.cli", "cluster", command, "--folder", str(folder), *options]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"`penstock cluster {command}` failed: {done.stdout}")
