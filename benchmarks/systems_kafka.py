"""Apache Kafka through Penstock, against confluent-kafka on the same broker: both use librdkafka."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import confluent_kafka

import penstock
from benchmarks.report import Report, Row
from penstock.model import NewRecord
from tests.servers import ApacheKafka

COUNT: Final = 200_000
RECORD_BYTES: Final = 100
AT_ONCE: Final = 1_000
BAR: Final = 0.7
VALUE: Final = b"x" * RECORD_BYTES
LINGER_MS: Final = 5
"""The default of `connect`."""


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    count = max(AT_ONCE, round(COUNT * scale / AT_ONCE) * AT_ONCE)
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, ApacheKafka(Path(name) / "kafka") as server:
        for turn in range(rounds):
            for what, rate in _round(server.bootstrap, count, turn).items():
                rates.setdefault(what, []).append(rate)
                say(f"  {what}: {rate:,.0f} records/s")
    for what, theirs_is in (("append", "produce, with delivery reports"), ("read", f"consume {AT_ONCE}")):
        ours, theirs = (statistics.median(rates[f"{who} {what}"]) for who in ("penstock", "confluent-kafka"))
        title = f"Apache Kafka, {what}, {RECORD_BYTES} B records, one thread"
        row = Row(title, ours, "kafka:// URL", theirs, f"confluent-kafka, {theirs_is}", "records/s", BAR)
        say("  " + row.line())
        report.rows.append(row)
    report.notes.append(
        f"Apache Kafka: one broker, without fsync; confluent-kafka {confluent_kafka.version()}, acks=all, "
        f"idempotence and linger.ms={LINGER_MS} on both sides; append is 1,000 records in one call, with a receipt for "
        "each, and the client keeps the place of each; readers look at the key and the value of each record."
    )


def _round(bootstrap: str, count: int, turn: int) -> dict[str, float]:
    """The rate of each way to write and read the same records; the sides take turns in going first."""
    with penstock.connect(f"kafka://{bootstrap}", linger_ms=LINGER_MS) as stream:
        topics = [f"{who}-{turn}" for who in ("ours", "theirs")]
        for topic in topics:
            stream.create_topic(topic, 1)
        sides: list[Callable[[], dict[str, float]]] = [
            lambda: _ours(stream, topics[0], count),
            lambda: _theirs(bootstrap, topics[1], count),
        ]
        rates: dict[str, float] = {}
        for side in sides if turn % 2 == 0 else reversed(sides):
            rates.update(side())
        return rates


def _ours(stream: penstock.Connection, topic: str, count: int) -> dict[str, float]:
    opened = stream.open_topic(topic)
    receipts = opened.append([NewRecord(topic, VALUE, b"first")])
    receipts[0].result(60)
    started_s = time.perf_counter()
    for _ in range(0, count, AT_ONCE):
        receipts = opened.append([NewRecord(topic, VALUE, b"%d" % number) for number in range(AT_ONCE)])
    receipts[-1].result(120)
    append_s = time.perf_counter() - started_s
    pointer, end = opened.span(0)
    found = 0
    started_s = time.perf_counter()
    while pointer < end:
        batch = opened.read(0, pointer, AT_ONCE, 1.0)
        found += sum(
            key is not None and value is not None for key, value in zip(batch.keys(), batch.values(), strict=True)
        )
        pointer = batch.next
    assert found == count + 1, f"{found} of {count + 1} records were read"
    rates = {"penstock append": count / append_s, "penstock read": found / (time.perf_counter() - started_s)}
    opened.close()
    return rates


def _theirs(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": LINGER_MS}
    )
    places: list[tuple[int | None, int | None]] = []

    def report(error: Any, message: Any) -> None:
        assert error is None, str(error)
        places.append((message.partition(), message.offset()))

    producer.produce(topic, VALUE, b"first", on_delivery=report)
    producer.flush(60)
    started_s = time.perf_counter()
    for _ in range(0, count, AT_ONCE):
        for number in range(AT_ONCE):
            while True:  # ends: the full queue empties while it is polled
                try:
                    producer.produce(topic, VALUE, b"%d" % number, on_delivery=report)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
    producer.flush(120)
    append_s = time.perf_counter() - started_s
    assert len(places) == count + 1, f"{len(places)} of {count + 1} records were stored"
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False, "fetch.wait.max.ms": 100}
    )
    started_s = time.perf_counter()
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = 0
    while found <= count:
        for message in consumer.consume(AT_ONCE, 1.0):
            assert message.error() is None, str(message.error())
            found += message.key() is not None and message.value() is not None
    read_s = time.perf_counter() - started_s
    consumer.close()
    return {"confluent-kafka append": count / append_s, "confluent-kafka read": found / read_s}
