"""Apache Pulsar through Penstock, against pulsar-client on the same server: batched sending, and readers."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Final

import pulsar

import penstock
from benchmarks import our_rates
from benchmarks.report import Report
from penstock.model import Batch
from tests.systems.pulsar_server import PulsarServer, version

COUNT: Final = 100_000
RECORD_BYTES: Final = 100
AT_ONCE: Final = 1_000
BAR: Final = 0.7


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    count = max(AT_ONCE, round(COUNT * scale) // AT_ONCE * AT_ONCE)
    rates: our_rates.Rates = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, PulsarServer(Path(name)) as server:
        our_rates.stream_rates(
            server.url, -1, AT_ONCE, AT_ONCE, b"x" * RECORD_BYTES, _look_at
        )  # a broker's first topic takes it longer
        for turn in range(rounds):
            with penstock.connect(server.url) as stream:
                stream.create_topic(f"theirs-{turn}")
            measured = _by_client(server, f"theirs-{turn}", count)
            ours = our_rates.stream_rates(server.url, turn, count, AT_ONCE, b"x" * RECORD_BYTES, _look_at)
            our_rates.note(rates, measured | ours, say)
    our_rates.add_rows(
        report,
        rates,
        ("append", "send", "read"),
        title=lambda what: f"Apache Pulsar, {what}, {RECORD_BYTES} B records, one thread",
        ours="pulsar:// URL",
        peer="pulsar-client",
        theirs="pulsar-client, batches of 1,000",
        bar=BAR,
        say=say,
    )
    report.notes.append(
        f"Apache Pulsar: {version()} standalone, journal synced, pulsar-client {version_of('pulsar-client')}; both "
        "sides send keys, and look at the key, value and id of each message that they read; append is 1,000 records in "
        "one call, send is one record in one call."
    )


def _by_client(server: PulsarServer, topic: str, count: int) -> dict[str, float]:
    client = pulsar.Client(
        f"pulsar://127.0.0.1:{server.port}",
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(server.folder / "client.log")),
    )
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=1,
        block_if_queue_full=True,
        max_pending_messages=20_000,
    )
    value = b"x" * RECORD_BYTES
    settled = 0
    done = threading.Event()

    def settle(result: Any, id: Any) -> None:
        nonlocal settled
        assert result == pulsar.Result.Ok
        assert id.ledger_id() >= 0
        settled += 1
        if settled == count:
            done.set()

    started_s = time.perf_counter()
    for number in range(count):
        producer.send_async(value, settle, partition_key=str(number % AT_ONCE))
    assert done.wait(120)
    rates = {"pulsar-client append": count / (time.perf_counter() - started_s)}
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = 0
    started_s = time.perf_counter()
    while found < count:
        message = reader.read_next(10_000)
        found += bool(message.data()) and bool(message.partition_key()) and message.message_id().ledger_id() >= 0
    rates["pulsar-client read"] = count / (time.perf_counter() - started_s)
    client.close()
    return rates


def _look_at(batch: Batch) -> int:
    """How many records it has, by looking at each."""
    return sum(bool(key) and bool(value) for key, value in zip(batch.keys(), batch.values(), strict=True))
