"""Kinesis through Penstock, against boto3 on the same kinesis-local: PutRecords and GetRecords."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import boto3

import penstock
from benchmarks.report import Report, Row
from penstock.model import NewRecord, Receipt
from tests.moto_server import CREDENTIALS, REGION
from tests.systems.kinesis_server import KinesisServer

COUNT: Final = 5_000
RECORD_BYTES: Final = 100
AT_ONCE: Final = 500
BAR: Final = 0.7


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    os.environ.update(CREDENTIALS)
    count = max(AT_ONCE, round(COUNT * scale) // AT_ONCE * AT_ONCE)
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        for turn in range(rounds):  # a new server each time: it gets slower with what it holds
            with KinesisServer(Path(name) / str(turn), persist=False) as server:
                for what, rate in _round(server.endpoint, count, turn).items():
                    rates.setdefault(what, []).append(rate)
                    say(f"  {what}: {rate:,.0f} records/s")
    for what, title in (("append", "Kinesis, append"), ("send", "Kinesis, send"), ("read", "Kinesis, read")):
        ours = statistics.median(rates[f"penstock {what}"])
        theirs = statistics.median(rates["boto3 read" if what == "read" else "boto3 append"])
        row = Row(f"{title}, {RECORD_BYTES} B records", ours, "kinesis:// URL", theirs, "boto3", "records/s", BAR)
        say("  " + row.line())
        report.rows.append(row)
    report.notes.append(
        f"Kinesis: kinesis-local 0.6.2 in memory, one shard, boto3 {boto3.__version__} on both sides, {AT_ONCE} "
        "records in a request, each of another key; read_interval_s=0, as the server does not limit reads. The server "
        "takes most of the time."
    )


def _round(endpoint: str, count: int, turn: int) -> dict[str, float]:
    client = boto3.client("kinesis", region_name=REGION, endpoint_url=endpoint)
    value = b"x" * RECORD_BYTES
    rates = {}
    url = f"kinesis://{REGION}?endpoint_url={endpoint}&read_interval_s=0&request_timeout_s=60"
    with penstock.connect(url) as stream:
        for name in ("warm", "theirs", "ours", "sent"):
            stream.create_topic(name, 1)
        _put_by_client(client, "warm", value, 2 * AT_ONCE)
        ways: list[tuple[str, Callable[[], None]]] = [
            ("boto3 append", lambda: _put_by_client(client, "theirs", value, count)),
            ("penstock append", lambda: _append(stream, "ours", value, count)),
            ("penstock send", lambda: _send(stream, "sent", value, count)),
            ("boto3 read", lambda: _read_by_client(client, "theirs", count)),
            ("penstock read", lambda: _read(stream, "ours", count)),
        ]
        for what, way in ways if turn % 2 == 0 else reversed(ways[:3]):
            rates[what] = _rate(way, count)
        for what, way in [] if turn % 2 == 0 else reversed(ways[3:]):
            rates[what] = _rate(way, count)
    return rates


def _rate(way: Callable[[], None], count: int) -> float:
    started_s = time.perf_counter()
    way()
    return count / (time.perf_counter() - started_s)


def _put_by_client(client: Any, topic: str, value: bytes, count: int) -> None:
    for _ in range(0, count, AT_ONCE):
        records = [{"Data": value, "PartitionKey": str(number)} for number in range(AT_ONCE)]
        answer = client.put_records(StreamName=topic, Records=records)
        assert not answer["FailedRecordCount"], "kinesis-local refused a record"


def _append(stream: penstock.Connection, topic: str, value: bytes, count: int) -> None:
    opened = stream.open_topic(topic)
    receipts: list[Receipt] = []
    for _ in range(0, count, AT_ONCE):
        receipts += opened.append([NewRecord(topic, value, b"%d" % number) for number in range(AT_ONCE)])
    for receipt in receipts:
        receipt.result(120)


def _send(stream: penstock.Connection, topic: str, value: bytes, count: int) -> None:
    for number in range(count):
        stream.send(topic, value, key=b"%d" % (number % AT_ONCE))
    stream.flush(120)


def _read_by_client(client: Any, topic: str, count: int) -> None:
    iterator = client.get_shard_iterator(
        StreamName=topic, ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    found = 0
    while found < count:
        answer = client.get_records(ShardIterator=iterator, Limit=2 * AT_ONCE)
        found += len(answer["Records"])
        iterator = answer["NextShardIterator"]


def _read(stream: penstock.Connection, topic: str, count: int) -> None:
    opened = stream.open_topic(topic)
    pointer, found = 0, 0
    while found < count:
        batch = opened.read(0, pointer, 2 * AT_ONCE, 1.0)
        found += len(batch)
        pointer = batch.next
