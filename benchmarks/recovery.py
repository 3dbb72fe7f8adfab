"""How long a partition takes to open after a crash, when everything in it has to be read and checked again."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.report import Figure, Report
from penstock.log.batches.batch import NewRecord, build_batch
from penstock.log.configs.topic_config import TopicConfig
from penstock.log.partition import PartitionLog
from penstock.log.segment import Resources

BATCH_BYTES: Final = 16 * 1024
RECORD_BYTES: Final = 100
LARGE_BATCHES_BYTES: Final = 1_000_000_000
SINGLE_RECORDS_BYTES: Final = 200_000_000
"""Less, because each byte takes longer: the figure is per gigabyte all the same."""
_WRITE_BYTES: Final = 4 << 20
_NOW_MS: Final = 1_700_000_000_000


def run(report: Report, say: Callable[[str], None]) -> None:
    value = b"v" * RECORD_BYTES
    large = bytes(build_batch([NewRecord(_NOW_MS, None, value)] * (BATCH_BYTES // (RECORD_BYTES + 10))))
    single = bytes(build_batch([NewRecord(_NOW_MS, None, value)]))
    kinds = [
        (f"batches of {len(large):,} bytes", large, LARGE_BATCHES_BYTES),
        (f"batches of one {RECORD_BYTES}-byte record", single, SINGLE_RECORDS_BYTES),
    ]
    for name, batch, total_bytes in kinds:
        for figure in _measure(name, batch, total_bytes):
            say("  " + figure.line())
            report.figures.append(figure)
    report.notes.append(
        "Recovery: the files are in the page cache, every checksum is verified, one thread. After a crash only what "
        "was written since the last checkpoint (at most a minute) is read; after a clean stop nothing is."
    )


def _measure(name: str, batch: bytes, total_bytes: int) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder = Path(temporary) / "topic-0"
        _write(_open(folder), batch, total_bytes)
        log, report = PartitionLog.open("topic", 0, folder, TopicConfig(), Resources())
        if report.damaged or report.scanned_bytes < total_bytes:
            raise RuntimeError(f"recovery read {report.scanned_bytes:,} bytes of {total_bytes:,}: {report.damaged}")
        log.close()
        started = time.perf_counter()
        PartitionLog.open("topic", 0, folder, TopicConfig(), Resources())
        clean_s = time.perf_counter() - started
    batches = report.scanned_bytes / len(batch)
    return [
        Figure(f"recovery after a crash, {name}", report.seconds_per_gb, "s/GB"),
        Figure(f"recovery after a crash, {name}: each batch", report.seconds / batches * 1e6, "us"),
        Figure(f"opening the same {total_bytes / 1e9:g} GB after a clean stop", clean_s * 1000, "ms"),
    ]


def _open(folder: Path) -> PartitionLog:
    return PartitionLog.open("topic", 0, folder, TopicConfig(), Resources())[0]


def _write(log: PartitionLog, batch: bytes, total_bytes: int) -> None:
    written = staged = 0
    while written < total_bytes:
        log.append(memoryview(bytearray(batch)), _NOW_MS)
        written += len(batch)
        staged += len(batch)
        if staged >= _WRITE_BYTES:
            log.write()
            staged = 0
    log.write()
