"""SQS through Penstock, against boto3 on the same ElasticMQ: batches of ten are sent, received and deleted."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import boto3

from benchmarks.report import Report, Row
from penstock.abc import Outcome
from penstock.model import NewRecord
from penstock.queues import open_queue
from penstock.queues.sqs import SqsQueue
from tests.moto_server import CREDENTIALS, REGION
from tests.systems.elasticmq_server import ElasticMqServer

COUNT: Final = 2_000
RECORD_BYTES: Final = 100
BATCH: Final = 10
BAR: Final = 0.6


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    os.environ.update(CREDENTIALS)
    count = max(10 * BATCH, round(COUNT * scale) // BATCH * BATCH)
    rates: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as name,
        ElasticMqServer(Path(name)) as server,
    ):
        client: Any = boto3.client("sqs", region_name=REGION, endpoint_url=server.endpoint)
        queue = open_queue(f"sqs://{REGION}/ours?endpoint_url={server.endpoint}&create=true")
        assert isinstance(queue, SqsQueue)
        theirs = client.create_queue(QueueName="theirs")["QueueUrl"]
        value = b"x" * RECORD_BYTES
        ways: list[list[tuple[str, Callable[[], None]]]] = [
            [
                ("boto3 send", lambda: _send_by_client(client, theirs, value, count)),
                ("boto3 receive", lambda: _receive_by_client(client, theirs, count)),
            ],
            [
                ("penstock send", lambda: queue.send([NewRecord("ours", value)] * count)),
                ("penstock receive", lambda: _receive(queue, count)),
            ],
        ]
        for _, way in [*ways[0], *ways[1]]:
            way()  # Java compiles what it has seen a few times
        for turn in range(rounds):
            for what, way in [each for side in ways[:: 1 if turn % 2 == 0 else -1] for each in side]:
                started_s = time.perf_counter()
                way()
                rates.setdefault(what, []).append(count / (time.perf_counter() - started_s))
                say(f"  {what}: {rates[what][-1]:,.0f} records/s")
        queue.close()
    for what, title in (("send", "SQS, send"), ("receive", "SQS, receive and delete")):
        ours, others = (statistics.median(rates[f"{side} {what}"]) for side in ("penstock", "boto3"))
        row = Row(f"{title}, {RECORD_BYTES} B records", ours, "sqs:// URL", others, "boto3", "records/s", BAR)
        say("  " + row.line())
        report.rows.append(row)
    report.notes.append(
        f"SQS: ElasticMQ 1.7.1 with H2 on disk, WRITE_DELAY=0, boto3 {boto3.__version__} on both sides, batches of "
        "ten, one thread. The server takes most of the time."
    )


def _send_by_client(client: Any, url: str, value: bytes, count: int) -> None:
    for _ in range(0, count, BATCH):
        entries = [{"Id": str(number), "MessageBody": value.decode()} for number in range(BATCH)]
        assert not client.send_message_batch(QueueUrl=url, Entries=entries).get("Failed"), "a message was refused"


def _receive_by_client(client: Any, url: str, count: int) -> None:
    found = 0
    while found < count:
        answer = client.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=BATCH,
            WaitTimeSeconds=1,
            MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
            MessageAttributeNames=["All"],
        )
        messages = answer.get("Messages") or ()
        found += len(messages)
        entries = [{"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]} for number, each in enumerate(messages)]
        if entries:
            client.delete_message_batch(QueueUrl=url, Entries=entries)


def _receive(queue: SqsQueue, count: int) -> None:
    found = 0
    while found < count:
        deliveries = queue.receive(100, 1.0)
        found += len(deliveries)
        queue.settle_all(deliveries, Outcome.DONE)
