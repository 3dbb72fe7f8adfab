"""A segment to Arrow: rows a second on one core, by numba and by numpy, beside aiokafka's compiled parser.

`python -m benchmarks.arrow` has librdkafka write the segment, into its own in-memory cluster or, with `--broker
HOST:PORT`, into a real broker; `--segment FILE` takes one that exists. All read the same bytes from memory, so no disk
and no fsync plays a part. All verify the checksums. All run on one thread, and it is the time of that thread on its
core that counts, whatever else the machine does meanwhile.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from aiokafka.record import default_records
from aiokafka.record.memory_records import MemoryRecords

from benchmarks.report import Figure, Report, Row
from penstock.log.arrow import decode_in_chunks, schema
from tests.log.mock_cluster import Sent, Topic, in_rounds, segment

RECORDS: Final = 500_000
VALUE_BYTES: Final = 100
ROUNDS: Final = 3
NUMBA_BAR: Final = 5_000_000
NUMPY_BAR: Final = 1_500_000
SEED: Final = 1


@dataclass(frozen=True, slots=True)
class Segment:
    what: str
    stored: bytes
    has_bar: bool

    def described(self) -> str:
        batches = rows = at = 0
        while at + 61 <= len(self.stored):
            (length,) = struct.unpack_from(">i", self.stored, at + 8)
            rows += struct.unpack_from(">i", self.stored, at + 57)[0]
            batches += 1
            at += 12 + length
        return f"{self.what}: {rows:,} records in {batches:,} batches, {len(self.stored):,} bytes"


def run(report: Report, say: Callable[[str], None], segments: Iterator[Segment] | None = None) -> None:
    for one in segments or written(None, RECORDS):
        say(f"  {one.described()}")
        _compare(report, say, one)
    cold_s, warm_s = _start_up_s()
    report.figures.append(Figure("numba: start-up, first time on a machine", cold_s, "s"))
    report.figures.append(Figure("numba: start-up, machine code on disk", warm_s, "s"))
    report.notes.append(
        f"Segment to Arrow: librdkafka's batches of {VALUE_BYTES} B values, from memory (no disk, no fsync), checksums "
        f"verified, by one thread, in its CPU time; median of {ROUNDS} rounds; ours in chunks of the default size. The "
        f"peer is aiokafka {version('aiokafka')}'s {_aiokafka_parser()} parser, its records gathered into such columns."
    )


def _compare(report: Report, say: Callable[[str], None], one: Segment) -> None:
    ways: dict[str, Callable[[], Iterable[pa.RecordBatch]]] = {
        "numba, views": lambda: decode_in_chunks(one.stored, partition=0, engine="numba", views=True),
        "numba, binary": lambda: decode_in_chunks(one.stored, partition=0, engine="numba"),
        "numpy, views": lambda: decode_in_chunks(one.stored, partition=0, engine="numpy", views=True),
        "numpy, binary": lambda: decode_in_chunks(one.stored, partition=0, engine="numpy"),
        "aiokafka": lambda: [by_aiokafka(one.stored)],
    }
    expected = pa.Table.from_batches(ways["numpy, binary"]()).combine_chunks()
    for name in ("numba, binary", "aiokafka"):
        if pa.Table.from_batches(ways[name]()).combine_chunks() != expected:
            raise SystemExit(f"{one.what}: {name} and numpy do not read the same records")
    del expected
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began_s = time.thread_time()
            rows = sum(map(len, way()))
            samples[name].append(rows / (time.thread_time() - began_s))
    rates = {name: statistics.median(values) for name, values in samples.items()}
    peer = rates.pop("aiokafka")
    for name, rate in rates.items():
        say(f"    {name}: {rate:,.0f} rows/s, {rate / peer:.1f}x aiokafka's {peer:,.0f}")
        report.rows.append(Row(f"segment to Arrow, {one.what}", rate, name, peer, "aiokafka", "rows/s", 1.0))
        if one.has_bar and name.endswith("views"):
            bar = NUMBA_BAR if name.startswith("numba") else NUMPY_BAR
            report.figures.append(Figure(f"segment to Arrow, {one.what}, {name}", rate, "rows/s", bar))


def by_aiokafka(stored: bytes) -> pa.RecordBatch:
    """What a Python program does without us: parse into objects, gather these into columns."""
    columns: dict[str, list[Any]] = {name: [] for name in schema().names}
    reader: Any = MemoryRecords(stored)
    while (batch := reader.next_batch()) is not None:
        if not batch.validate_crc():
            raise SystemExit("aiokafka finds a checksum that does not match")
        for record in batch:
            columns["key"].append(record.key)
            columns["value"].append(record.value)
            columns["offset"].append(record.offset)
            columns["timestamp"].append(record.timestamp)
            columns["timestamp_type"].append(record.timestamp_type)
            columns["headers"].append([{"key": name, "value": value} for name, value in record.headers])
    columns["partition"] = [0] * len(columns["offset"])
    arrays = [pa.array(columns[field.name], field.type) for field in schema()]
    return pa.RecordBatch.from_arrays(arrays, schema=schema())


def written(broker: str | None, records: int) -> Iterator[Segment]:
    """Segments by librdkafka: uncompressed with and without keys, for which there is a bar, and compressed."""
    for what, key_bytes, codec in (
        ("no key", 0, "none"),
        ("16 B key", 16, "none"),
        ("16 B key, lz4", 16, "lz4"),
        ("16 B key, zstd", 16, "zstd"),
    ):
        sent = _records(records, key_bytes)
        if broker is None:
            stored = segment(sent, compression_type=codec)
        else:
            host, _, port = broker.rpartition(":")
            topic = Topic(host, int(port), f"arrow-{uuid.uuid4().hex[:8]}")
            stored = in_rounds(topic, sent, compression_type=codec)
        yield Segment(f"{VALUE_BYTES} B, {what}", stored, has_bar=codec == "none")


def _records(count: int, key_bytes: int) -> Iterator[Sent]:
    """Text of a kind that compresses about twofold."""
    seeded = random.Random(SEED)
    for i in range(count):
        value = f"{i:012d} {seeded.getrandbits(160):040x} ".encode().ljust(VALUE_BYTES, b"x")
        yield Sent(
            value, key=seeded.randbytes(key_bytes) if key_bytes else None, timestamp_ms=1_700_000_000_000 + i // 500
        )


def _start_up_s() -> tuple[float, float]:
    """How long numba takes to be ready in a process of its own, the first time and from then on."""
    program = (
        "import time, penstock.log.arrow; began_s = time.perf_counter(); "
        "import penstock.log.arrow.by_numba; print(time.perf_counter() - began_s)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        cold_s, warm_s = (
            float(subprocess.check_output([sys.executable, "-c", program], env=environment, timeout=120))
            for _ in range(2)
        )
    return cold_s, warm_s


def _aiokafka_parser() -> str:
    return "pure Python" if default_records.DefaultRecordBatch is default_records._DefaultRecordBatchPy else "compiled"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.arrow", description=__doc__)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--segment", type=Path, metavar="FILE", help="a segment file of whole record batches")
    source.add_argument("--broker", metavar="HOST:PORT", help="a broker to write the segment to and fetch it from")
    parser.add_argument("--records", type=int, default=RECORDS, help=f"how many to write ({RECORDS})")
    options = parser.parse_args()
    segments = written(options.broker, options.records)
    if options.segment is not None:
        segments = iter([Segment(options.segment.name, options.segment.read_bytes(), has_bar=False)])
    report = Report()
    run(report, lambda text: print(text, file=sys.stderr, flush=True), segments)
    print(report.text())


if __name__ == "__main__":
    main()
