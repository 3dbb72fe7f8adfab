"""ActiveMQ queues through Penstock, against stomp.py on the same server: sending with receipts, receiving, settling."""

from __future__ import annotations

import importlib.metadata
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import stomp

from benchmarks import our_rates
from benchmarks.report import Report
from penstock.queues import open_queue
from tests.systems.activemq_server import PASSWORD, USER, ActiveMq

COUNT: Final = 10_000
RECORD_BYTES: Final = 100
AT_ONCE: Final = 500
PREFETCH: Final = 1000
WAIT_S: Final = 60.0


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    count = max(AT_ONCE, round(COUNT * scale) // AT_ONCE * AT_ONCE)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, ActiveMq(Path(name)) as server:
        our_rates.compare_queues(
            report,
            say,
            count,
            (_round(server, count, turn) for turn in range(rounds)),
            title=lambda what: f"ActiveMQ, {what}, {RECORD_BYTES} B records, persistent, one thread",
            ours="stomp:// URL",
            peer="stomp.py",
            theirs="stomp.py's Connection12",
        )
        report.notes.append(
            f"ActiveMQ Classic {server.version}, KahaDB that syncs each commit, stomp.py "
            f"{importlib.metadata.version('stomp.py')}: both sides send, and acknowledge, {AT_ONCE} messages in a "
            f"transaction, and wait for the receipt of its commit; prefetch {PREFETCH}."
        )


def _round(server: ActiveMq, count: int, turn: int) -> dict[str, float]:
    """The seconds of each way to write and read as many records."""
    value = b"x" * RECORD_BYTES
    place = f"stomp://{USER}:{quote(PASSWORD, safe='')}@{server.address}"
    queue = open_queue(f"{place}/ours-{turn}?prefetch={PREFETCH}")
    theirs = StompPy(server, f"/queue/theirs-{turn}", value)
    seconds = {"stomp.py send": theirs.send(count)}
    seconds["penstock send"] = our_rates.send_s(queue, count, AT_ONCE, value)
    seconds["stomp.py receive"] = theirs.receive(count)
    seconds["penstock receive"] = our_rates.receive_s(queue, count, AT_ONCE, value)
    queue.close()
    return seconds


class StompPy(stomp.ConnectionListener):  # type: ignore[misc]
    """The same with stomp.py alone."""

    def __init__(self, server: ActiveMq, destination: str, value: bytes) -> None:
        self._destination, self._value = destination, value
        self._received: list[Any] = []
        self._changed = threading.Condition()
        self._receipts = 0
        self._connection = stomp.Connection12([("127.0.0.1", server.port)], auto_decode=False)
        self._connection.set_listener("benchmark", self)
        self._connection.connect(USER, PASSWORD, wait=True)

    def on_receipt(self, frame: Any) -> None:
        with self._changed:
            self._receipts += 1
            self._changed.notify_all()

    def on_message(self, frame: Any) -> None:
        assert frame.body == self._value
        with self._changed:
            self._received.append(frame.headers["ack"])
            self._changed.notify_all()

    def send(self, count: int) -> float:
        began_s = time.perf_counter()
        for number in range(0, count, AT_ONCE):
            self._connection.begin(f"t{number}")
            for _ in range(AT_ONCE):
                self._connection.send(self._destination, self._value, transaction=f"t{number}", persistent="true")
            self._commit(f"t{number}")
        return time.perf_counter() - began_s

    def receive(self, count: int) -> float:
        began_s = time.perf_counter()
        headers = {"activemq.prefetchSize": str(PREFETCH)}
        self._connection.subscribe(self._destination, "1", "client-individual", headers=headers)
        left = count
        while left:
            with self._changed:
                assert self._changed.wait_for(lambda: self._received, WAIT_S), f"{left} of {count} did not come"
                arrived, self._received = self._received[:AT_ONCE], self._received[AT_ONCE:]
            self._connection.begin(f"a{left}")
            for ack in arrived:
                self._connection.ack(ack, transaction=f"a{left}")
            self._commit(f"a{left}")
            left -= len(arrived)
        seconds = time.perf_counter() - began_s
        self._connection.disconnect()
        return seconds

    def _commit(self, transaction: str) -> None:
        with self._changed:
            wanted = self._receipts + 1
        self._connection.commit(transaction, headers={"receipt": transaction})
        with self._changed:
            assert self._changed.wait_for(lambda: self._receipts >= wanted, WAIT_S), "no receipt"
