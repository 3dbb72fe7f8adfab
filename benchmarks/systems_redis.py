"""Redis Streams through Penstock, against redis-py on the same server: pipelined XADD, and XREAD."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import redis

import penstock
from benchmarks.report import Report, Row
from penstock.model import NewRecord
from tests.redis_server import RedisServer

COUNT: Final = 100_000
RECORD_BYTES: Final = 100
AT_ONCE: Final = 1_000
BAR: Final = 0.7


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    count = max(AT_ONCE, round(COUNT * scale))
    rates: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as name,
        RedisServer(Path(name), "--appendfsync", "everysec") as server,
        redis.Redis(port=server.port) as client,
    ):
        version = client.info("server")["redis_version"]
        for turn in range(rounds):
            for what, rate in _round(server.url, client, count, turn).items():
                rates.setdefault(what, []).append(rate)
                say(f"  {what}: {rate:,.0f} records/s")
            client.flushall()
    for what, how in (("append", f"{AT_ONCE} XADD at once"), ("send", "XADD one by one"), ("read", f"XREAD {AT_ONCE}")):
        ours, theirs = (statistics.median(rates[f"{who} {what}"]) for who in ("penstock", "redis-py"))
        title = f"Redis Streams, {what}, {RECORD_BYTES} B records, one thread"
        row = Row(title, ours, "redis:// URL", theirs, f"redis-py, {how}", "records/s", BAR)
        say("  " + row.line())
        report.rows.append(row)
    report.notes.append(
        f"Redis Streams: Redis {version}, appendfsync everysec, redis-py {redis.__version__} with hiredis on both "
        "sides; append is 1,000 records in one call, send is one record in one call, with a receipt for each; readers "
        "look at the key and the value of each record."
    )


def _round(url: str, client: Any, count: int, turn: int) -> dict[str, float]:
    """The rate of each way to write and read the same records."""
    value = b"x" * RECORD_BYTES
    theirs, ours, sent = (f"{name}-{turn}" for name in ("theirs", "ours", "sent"))
    rates = {}
    started_s = time.perf_counter()
    for _ in range(0, count, AT_ONCE):
        pipeline = client.pipeline(transaction=False)
        for number in range(AT_ONCE):
            pipeline.xadd(theirs, {"value": value, "key": b"%d" % number})
        pipeline.execute()
    rates["redis-py append"] = count / (time.perf_counter() - started_s)
    started_s = time.perf_counter()
    for number in range(count // 10):
        client.xadd(f"single-{turn}", {"value": value, "key": b"%d" % number})
    rates["redis-py send"] = count / 10 / (time.perf_counter() - started_s)
    with penstock.connect(url) as stream:
        opened = stream.open_topic(ours)
        started_s = time.perf_counter()
        for _ in range(0, count, AT_ONCE):
            receipts = opened.append([NewRecord(ours, value, b"%d" % number) for number in range(AT_ONCE)])
        receipts[-1].result(60)
        rates["penstock append"] = count / (time.perf_counter() - started_s)
        started_s = time.perf_counter()
        for number in range(count):
            stream.send(sent, value, key=b"%d" % (number % AT_ONCE))
        stream.flush(60)
        rates["penstock send"] = count / (time.perf_counter() - started_s)
        rates["redis-py read"] = _read_by_client(client, theirs, count)
        pointer, _ = opened.span(0)
        found = 0
        started_s = time.perf_counter()
        while found < count:
            batch = opened.read(0, pointer, AT_ONCE, 1.0)
            found += sum(
                key is not None and value is not None for key, value in zip(batch.keys(), batch.values(), strict=True)
            )
            pointer = batch.next
        rates["penstock read"] = count / (time.perf_counter() - started_s)
        opened.close()
    return rates


def _read_by_client(client: Any, key: str, count: int) -> float:
    last: bytes | str = "0-0"
    found = 0
    started_s = time.perf_counter()
    while found < count:
        [(_, entries)] = client.xread({key: last}, count=AT_ONCE)
        found += sum(b"key" in fields and b"value" in fields for _, fields in entries)
        last = entries[-1][0]
    return count / (time.perf_counter() - started_s)
