"""SQL over topics: `penstock.sql` on the segments of a log, beside DuckDB on Parquet files with the same records.

`python -m benchmarks sql` sends orders to an embedded log once, and copies them to two Parquet files: one with the JSON
texts, one with typed columns. Then all ways answer the same question, in turn, with two threads of DuckDB. The warm-up
fills the cache of closed segments for the ways that use it.
"""

from __future__ import annotations

import dataclasses
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final
from unittest import mock

import duckdb
import pyarrow.parquet as pq

import penstock as ps
from benchmarks.report import Report, Row

RECORDS: Final = 2_000_000
ROUNDS: Final = 3
SEED: Final = 1
THREADS: Final = 2
GROUP_ROWS: Final = 122_880
"""DuckDB's own choice: with larger groups of rows, a thread would have nothing to do."""
SEGMENT_BYTES: Final = 8 << 20
CACHE_BYTES: Final = 10 << 30
JSON_BAR: Final = 3.0
CACHED_BAR: Final = 0.9


@dataclasses.dataclass
class Order:
    customer: str
    amount: float
    items: int


ORDERS: Final = ps.Topic("orders", Order, partitions=1)
_FROM_JSON: Final = (
    "select value->>'customer' as customer, sum((value->>'amount')::double) as amount, sum((value->>'items')::bigint) "
    "as items from {} group by 1 order by 1"
)
_TYPED: Final = "select customer, sum(amount) as amount, sum(items) as items from {} group by 1 order by 1"
"""Typed columns, or the fields of JSON objects: the query is the same."""


def run(report: Report, say: Callable[[str], None], *, rounds: int = ROUNDS, scale: float = 1.0) -> None:
    records = max(1000, int(RECORDS * scale))
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, PENSTOCK_CACHE=folder):
        url = f"log:{folder}/data"
        with ps.connect(url) as stream:
            _send(stream, records)
            with (
                ps.sql(url, threads=THREADS) as untyped,
                ps.sql(url, threads=THREADS, types=[ORDERS]) as typed,
                ps.sql(url, threads=THREADS, types=[ORDERS], cache_bytes=CACHE_BYTES) as cached,
                ps.sql(url, threads=THREADS, cache_bytes=CACHE_BYTES) as cached_json,
                duckdb.connect(config={"threads": THREADS}) as plain,
            ):
                plain.execute("set enable_progress_bar = false")
                json_file, typed_file = f"{folder}/json.parquet", f"{folder}/typed.parquet"
                pq.write_table(
                    untyped.query("select value from orders"), json_file, compression="zstd", row_group_size=GROUP_ROWS
                )
                pq.write_table(
                    typed.query("select customer, amount, items from orders"), typed_file, compression="zstd"
                )
                ways: dict[str, Callable[[], Any]] = {
                    "JSON in segments": lambda: untyped.query(_FROM_JSON.format("orders")),
                    "fields of JSON in segments": lambda: untyped.query(_TYPED.format("orders")),
                    "fields of JSON in cached segments": lambda: cached_json.query(_TYPED.format("orders")),
                    "JSON in cached segments": lambda: cached_json.query(_FROM_JSON.format("orders")),
                    "JSON in Parquet": lambda: plain.sql(_FROM_JSON.format(f"'{json_file}'")).to_arrow_table(),
                    "typed, in segments": lambda: typed.query(_TYPED.format("orders")),
                    "typed, in cached segments": lambda: cached.query(_TYPED.format("orders")),
                    "typed Parquet": lambda: plain.sql(_TYPED.format(f"'{typed_file}'")).to_arrow_table(),
                }
                rates = _measure(ways, records, rounds, say)
    for ours, peer, bar in (
        ("JSON in segments", "JSON in Parquet", JSON_BAR),
        ("fields of JSON in cached segments", "JSON in Parquet", JSON_BAR),
        ("typed, in cached segments", "typed Parquet", CACHED_BAR),
    ):
        say(f"    {ours}: {rates[ours]:,.0f} rows/s, {rates[ours] / rates[peer]:.2f}x {peer}'s {rates[peer]:,.0f}")
        report.rows.append(
            Row(f"SQL, {ours}", rates[ours], "penstock sql", rates[peer], f"DuckDB, {peer}", "rows/s", bar)
        )
    others = ("fields of JSON in segments", "JSON in cached segments", "typed, in segments")
    report.notes.append(
        f"SQL: {records:,} orders in one partition, sums by customer; median of {rounds} rounds in turn after one to "
        f"warm up; DuckDB {duckdb.__version__} with {THREADS} threads on both sides; Parquet with zstd, read from the "
        f"page cache as the segments are, of {SEGMENT_BYTES >> 20} MiB each. Cached segments are Parquet files, too; "
        "only the last record is in a segment that is still open, of which some 300,000 typed records a second are "
        "decoded by each query. Other ways in the same rounds: "
        + ", ".join(f"{way} {rates[way]:,.0f} rows/s" for way in others)
        + "."
    )


def _send(stream: ps.Connection, records: int) -> None:
    chance = random.Random(SEED)
    stream.create_topic(ORDERS.name, 1, config={"segment.bytes": str(SEGMENT_BYTES)})
    for _ in range(records):
        stream.send(
            ORDERS, Order(f"customer-{chance.randrange(1_000)}", float(chance.randrange(100)), chance.randrange(9))
        )
    stream.flush()
    # The last record begins a segment, so that all others are in closed ones.
    stream.admin().change_config(ORDERS.name, {"segment.ms": "1"})
    time.sleep(0.1)
    stream.send(ORDERS, Order("customer-0", 0.0, 0)).result(30)


def _measure(
    ways: dict[str, Callable[[], Any]], records: int, rounds: int, say: Callable[[str], None]
) -> dict[str, float]:
    expected = ways["typed Parquet"]().to_pylist()
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            began_s = time.perf_counter()
            found = way()
            rate = records / (time.perf_counter() - began_s)
            if found.to_pylist() != expected:
                raise SystemExit(f"{name} gives another answer")
            say(f"      {f'round {number}' if number else 'warm-up'}: {name}: {rate:,.0f} rows/s")
            if number:
                samples[name].append(rate)
    return {name: statistics.median(each) for name, each in samples.items()}
