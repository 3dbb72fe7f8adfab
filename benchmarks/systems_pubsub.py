"""Pub/Sub through Penstock, against Google's client on the same server: publishing, pulling and acknowledging."""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from google.cloud import pubsub_v1

from benchmarks import our_rates
from benchmarks.report import Report
from penstock.queues import open_queue
from tests.systems.pubsub_server import PubsubServer

COUNT: Final = 10_000
RECORD_BYTES: Final = 100
AT_ONCE: Final = 500
WAIT_S: Final = 60.0


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    count = max(AT_ONCE, round(COUNT * scale) // AT_ONCE * AT_ONCE)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, PubsubServer(Path(name)) as server:
        our_rates.compare_queues(
            report,
            say,
            count,
            (_round(server, count, turn) for turn in range(rounds)),
            title=lambda what: f"Google Pub/Sub (a fake), {what}, {RECORD_BYTES} B records, one thread",
            ours="pubsub:// URL",
            peer="google",
            theirs="google-cloud-pubsub",
        )
        report.notes.append(
            f"pstest {server.version}, Google's fake of Pub/Sub, in memory: it shows what the clients cost, not what "
            f"Pub/Sub can do. google-cloud-pubsub {importlib.metadata.version('google-cloud-pubsub')}: {AT_ONCE} "
            "messages are published, or pulled and acknowledged, at a time."
        )


def _round(server: PubsubServer, count: int, turn: int) -> dict[str, float]:
    """The seconds of each way to write and read as many records."""
    value = b"x" * RECORD_BYTES
    queue = open_queue(f"pubsub://bench/ours-{turn}?emulator={server.address}&create=true&topic=ours-{turn}")
    theirs = Google(server, f"theirs-{turn}", value)
    seconds = {"google send": theirs.send(count)}
    seconds["penstock send"] = our_rates.send_s(queue, count, AT_ONCE, value)
    seconds["google receive"] = theirs.receive(count)
    seconds["penstock receive"] = our_rates.receive_s(queue, count, AT_ONCE, value)
    queue.close()
    return seconds


class Google:
    """The same with Google's client alone."""

    def __init__(self, server: PubsubServer, name: str, value: bytes) -> None:
        self._value = value
        before = os.environ.get("PUBSUB_EMULATOR_HOST")
        os.environ["PUBSUB_EMULATOR_HOST"] = server.address
        try:
            batch = pubsub_v1.types.BatchSettings(max_messages=AT_ONCE, max_bytes=5_000_000)
            self._publisher = pubsub_v1.PublisherClient(batch)
            self._subscriber = pubsub_v1.SubscriberClient()
        finally:
            if before is None:
                del os.environ["PUBSUB_EMULATOR_HOST"]
            else:
                os.environ["PUBSUB_EMULATOR_HOST"] = before
        self._topic = self._publisher.topic_path("bench", name)
        self._subscription = self._subscriber.subscription_path("bench", name)
        self._publisher.create_topic(name=self._topic)
        self._subscriber.create_subscription(name=self._subscription, topic=self._topic, ack_deadline_seconds=60)

    def send(self, count: int) -> float:
        began_s = time.perf_counter()
        for _ in range(0, count, AT_ONCE):
            futures = [self._publisher.publish(self._topic, self._value) for _ in range(AT_ONCE)]
            for future in futures:
                future.result(WAIT_S)
        return time.perf_counter() - began_s

    def receive(self, count: int) -> float:
        began_s = time.perf_counter()
        left = count
        while left:
            answer = self._subscriber.pull(
                subscription=self._subscription, max_messages=min(left, AT_ONCE), timeout=WAIT_S
            )
            for received in answer.received_messages:
                assert received.message.data == self._value
            ids = [received.ack_id for received in answer.received_messages]
            if ids:
                self._subscriber.acknowledge(subscription=self._subscription, ack_ids=ids)
            left -= len(ids)
        seconds = time.perf_counter() - began_s
        self._publisher.stop()
        self._subscriber.close()
        return seconds
