"""JSON lines through Penstock, against Python's own way: json, a file, an fsync for each 1,000 lines."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import penstock
from benchmarks.report import Report, Row
from penstock.model import NewRecord

COUNT: Final = 100_000
AT_ONCE: Final = 1_000
BAR: Final = 0.7
TEXT: Final = "x" * 100


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    count = max(AT_ONCE, round(COUNT * scale))
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        for turn in range(rounds):
            for what, rate in _round(Path(name) / str(turn), count).items():
                rates.setdefault(what, []).append(rate)
                say(f"  {what}: {rate:,.0f} records/s")
    for what in ("append", "read"):
        ours, theirs = (statistics.median(rates[f"{who} {what}"]) for who in ("penstock", "python"))
        theirs_is = "json and a file, fsync for each 1,000 lines"
        row = Row(
            f"JSON lines, {what}, 100 B values", ours, "fsync for each batch", theirs, theirs_is, "records/s", BAR
        )
        say("  " + row.line())
        report.rows.append(row)


def _round(folder: Path, count: int) -> dict[str, float]:
    folder.mkdir()
    path = folder / "theirs.txt"
    started_s = time.perf_counter()
    with path.open("a") as file:
        for _ in range(0, count, AT_ONCE):
            for number in range(AT_ONCE):
                line = {"timestamp_ms": time.time_ns() // 1_000_000, "key": str(number), "value": TEXT}
                file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
    rates = {"python append": count / (time.perf_counter() - started_s)}
    started_s = time.perf_counter()
    with path.open("rb") as file:
        found = sum(1 for line in file if json.loads(line)["value"])
    assert found == count
    rates["python read"] = count / (time.perf_counter() - started_s)
    value = TEXT.encode()
    with penstock.connect(f"file:{folder}") as stream:
        stream.create_topic("ours")
        opened = stream.open_topic("ours")
        started_s = time.perf_counter()
        for _ in range(0, count, AT_ONCE):
            receipts = opened.append([NewRecord("ours", value, b"%d" % number) for number in range(AT_ONCE)])
        receipts[-1].result(120)
        rates["penstock append"] = count / (time.perf_counter() - started_s)
        started_s = time.perf_counter()
        found = pointer = 0
        while found < count:
            batch = opened.read(0, pointer, AT_ONCE, 1.0)
            found += len(batch)
            pointer = batch.next
        rates["penstock read"] = count / (time.perf_counter() - started_s)
        opened.close()
    return rates
