"""A stream on which an app has run: for tests of the tools on systems other than Kafka."""

from __future__ import annotations

import threading

import penstock
from penstock import App, Record, Retry

TOPIC = "orders"
LETTERS = "orders.dlq"
GROUP = "bill"
READ = (b"v0", b"v1", b"bad", b"v3", b"v4")
WAITING = (b"w0", b"w1", b"w2")


def work(url: str, checkpoints: str | None = None) -> None:
    """Let a group read five records, one of which became a dead letter; three more wait for it."""
    with penstock.connect(url) as stream:
        stream.create_topic(TOPIC)
        send(url, *READ)
    app = App(url, group=GROUP, checkpoints=checkpoints)
    finished: list[bytes | None] = []

    @app.handle(TOPIC, retry=Retry(attempts=1), dead_letters=LETTERS)
    def bill(record: Record) -> None:
        if record.value == b"bad":
            raise ValueError("cannot bill this")
        finished.append(record.value)
        if len(finished) == len(READ) - 1:
            app.stop()

    watchdog = threading.Timer(60, app.stop)
    watchdog.start()
    try:
        app.run()
    finally:
        watchdog.cancel()
    assert finished == [value for value in READ if value != b"bad"]
    send(url, *WAITING)


def send(url: str, *values: bytes) -> None:
    with penstock.connect(url) as stream:
        for value in values:
            stream.send(TOPIC, value)
        stream.flush()
