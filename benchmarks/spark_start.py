"""How long it takes from nothing to the first row: our session beside plain PySpark, each in a process of its own.

`python -m benchmarks spark-start` starts them in turns. A process imports what it needs, makes a session with two
cores, and takes the first row of a one-shot streaming query over a file. Ours has its settings, its lean file system
and its log defaults; plain PySpark has what a newcomer types. The clock starts with the process.
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

from benchmarks.report import Report, Row

PLAIN: Final = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
"""
OURS: Final = """
from penstock.spark import session
spark = session(master="local[2]", connector=False)
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
    taken: dict[str, list[float]] = {"ours": [], "plain": []}
    for number in range(max(1, rounds) + 1):
        for name, program in (("ours", OURS), ("plain", PLAIN)):
            took_s = first_row_s(program + FIRST_ROW)
            say(f"   round {number}: {name} {took_s:.1f} s")
            if number:  # the first round fills the caches of the disk
                taken[name].append(took_s)
    report.rows.append(
        Row(
            "spark: process start to the first row of a one-shot query",
            statistics.median(taken["ours"]),
            "penstock.spark.session()",
            statistics.median(taken["plain"]),
            "plain PySpark",
            "s",
            1.1,
            lower_is_better=True,
        )
    )


def first_row_s(program: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").mkdir()
        (Path(folder) / "in" / "rows.json").write_text('{"n": 1}\n')
        begun_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", program, folder], check=True, capture_output=True, timeout=300)
        return time.perf_counter() - begun_s
