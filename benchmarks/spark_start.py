"""How long it takes from nothing to the first row: our session beside plain PySpark, each in a process of its own.

`python -m benchmarks spark-start` starts them in turns. A process imports what it needs, makes a session with two
cores, and takes the first row of a one-shot streaming query over a file. Ours has its settings, its lean file system
and its log defaults, once without and once with the archive of Spark's classes; plain PySpark has what a newcomer
types. The clock starts with the process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.report import Report, Row

PLAIN: Final = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
"""
OURS: Final = """
from penstock.spark import session
spark = session(master="local[2]")
"""
FIRST_ROW: Final = """
import sys
folder = sys.argv[1]
rows = []
query = (
    spark.readStream.schema("n int").json(folder + "/in").writeStream
    .foreachBatch(lambda frame, number: rows.extend(frame.collect()))
    .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
assert len(rows) == 1, rows
spark.stop()
"""


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    taken: dict[str, list[float]] = {"ours": [], "ours with an archive": [], "plain": []}
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as filled:
        say(f"   {penstock('spark', 'archive', cache=filled)}")
        sides = (("ours", OURS, empty), ("ours with an archive", OURS, filled), ("plain", PLAIN, empty))
        for number in range(max(1, rounds) + 1):
            for name, program, cache in sides:
                took_s = first_row_s(program + FIRST_ROW, cache)
                say(f"   round {number}: {name} {took_s:.1f} s")
                if number:  # the first round fills the caches of the disk
                    taken[name].append(took_s)
    for name, bar in (("ours", 1.1), ("ours with an archive", 0.75)):
        report.rows.append(
            Row(
                f"spark: process start to the first row of a one-shot query{name.removeprefix('ours')}",
                statistics.median(taken[name]),
                "penstock.spark.session()",
                statistics.median(taken["plain"]),
                "plain PySpark",
                "s",
                bar,
                lower_is_better=True,
            )
        )


def penstock(*arguments: str, cache: str) -> str:
    """A command of penstock with this cache; what it printed."""
    command = [sys.executable, "-m", "penstock.cli", *arguments]
    environment = {**os.environ, "PENSTOCK_CACHE": cache}
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=600
    ).stdout.strip()


def first_row_s(program: str, cache: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").mkdir()
        (Path(folder) / "in" / "rows.json").write_text('{"n": 1}\n')
        begun_s = time.perf_counter()
        environment = {**os.environ, "PENSTOCK_CACHE": cache}
        command = [sys.executable, "-c", program, folder]
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=300)
        return time.perf_counter() - begun_s
