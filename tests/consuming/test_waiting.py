"""An app that cannot begin yet, as its topic or its broker is not there, waits, says so once, and goes on."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.app import App
from penstock.errors import BrokerUnavailableError
from penstock.model import NewRecord
from penstock.streams.memory import MemoryStream
from tests.consuming.eventually import wait_until
from tests.servers import Penstock, free_ports


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


@pytest.mark.parametrize("options", [{}, {"order": "none", "shared": True}], ids=["partitions", "shared"])
def test_an_app_waits_for_a_topic_that_is_only_named(
    options: dict[str, Any], streams: MemoryStream, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(streams, group="group")
    seen: list[bytes] = []
    app.handle("later", **options)(lambda value: seen.append(value))
    thread = app.start()
    wait_until(lambda: told(caplog, "waiting for topic 'later'"))
    streams.open_topic("later").append([NewRecord("later", b"a")])
    wait_until(lambda: seen == [b"a"])
    app.stop()
    thread.join(20)
    assert len(told(caplog, "waiting for topic")) == 1


def test_an_app_that_waits_for_its_topic_can_be_stopped(streams: MemoryStream) -> None:
    app = App(streams, group="group")
    app.handle("never")(lambda value: None)
    thread = app.start()
    wait_until(lambda: app.consumers)
    app.stop()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("partitions", [None, 3])
def test_a_topic_that_is_declared_is_created_by_its_handler(streams: MemoryStream, partitions: int | None) -> None:
    app = App(streams, group="group")
    orders = penstock.Topic("orders", str, partitions=partitions)
    app.handle(orders, end="latest")(lambda value: None)
    app.run()
    assert len(streams.open_topic("orders").partitions()) == (partitions or 1)


def test_a_consumer_creates_a_topic_that_is_declared(streams: MemoryStream) -> None:
    orders = penstock.Topic("orders", str, partitions=3)
    with penstock.Consumer(streams, orders, group="group"):
        assert len(streams.open_topic("orders").partitions()) == 3


def test_an_app_waits_for_a_broker_that_is_down_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [port] = free_ports(1)
    orders = penstock.Topic("orders", str)
    app = App(f"kafka://127.0.0.1:{port}", group="group", checkpoints="memory:")
    seen: list[str] = []
    app.handle(orders)(lambda value: seen.append(value))
    with caplog.at_level(logging.WARNING):
        thread = app.start()
        wait_until(lambda: told(caplog, "nothing answers"))
        with Penstock(tmp_path, port=port) as server, penstock.connect(f"kafka://{server.bootstrap}") as stream:
            stream.send(orders, "a").result(30)
            wait_until(lambda: seen == ["a"], 60)
            app.stop()
            thread.join(30)
    assert not thread.is_alive()
    assert len(told(caplog, "nothing answers")) == 1


PROGRAM = """
import logging, penstock
logging.basicConfig(level=logging.INFO)
app = penstock.App("kafka://127.0.0.1:1", group="group", checkpoints="memory:")

@app.handle("orders")
def handle(value: bytes) -> None: ...

app.run()
print("ended well", flush=True)
"""


def test_sigterm_ends_an_app_that_waits_for_its_broker() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "nothing answers" in line:
                break
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "ended well\n"), errors


def test_an_app_does_not_wait_for_something_that_is_no_kafka() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            taken, _ = listener.accept()
            with taken:
                taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        app = App(f"kafka://127.0.0.1:{listener.getsockname()[1]}", group="group")
        app.handle("orders")(lambda value: None)
        with pytest.raises(BrokerUnavailableError, match="not a Kafka broker without TLS"):
            app.run()
