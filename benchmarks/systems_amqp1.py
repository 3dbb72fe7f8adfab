"""AMQP 1.0 queues through Penstock, against proton on the same Artemis: sending, receiving and settling."""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from benchmarks import our_rates
from benchmarks.report import Report
from penstock.queues import open_queue
from tests.systems.artemis_server import PASSWORD, USER, Artemis
from tools import parts

COUNT: Final = 20_000
RECORD_BYTES: Final = 100
AT_ONCE: Final = 500
PREFETCH: Final = 500


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    count = max(AT_ONCE, round(COUNT * scale) // AT_ONCE * AT_ONCE)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, Artemis(Path(name)) as server:
        our_rates.compare_queues(
            report,
            say,
            count,
            (_round(server, count, turn) for turn in range(rounds)),
            title=lambda what: f"Artemis by AMQP 1.0, {what}, {RECORD_BYTES} B records, durable, one thread",
            ours="amqp1:// URL",
            peer="proton",
            theirs="proton's Container",
        )
        report.notes.append(
            f"Artemis {server.version}, one node, python-qpid-proton {parts.proton()}: durable messages are accepted "
            f"by the broker on both sides, {AT_ONCE} under way at a time; {PREFETCH} credits, and deliveries are "
            f"settled {AT_ONCE} at a time."
        )


def _round(server: Artemis, count: int, turn: int) -> dict[str, float]:
    """The seconds of each way to write and read as many records."""
    value = b"x" * RECORD_BYTES
    address = f"amqp1://{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}"
    queue = open_queue(f"{address}/ours-{turn}?prefetch={PREFETCH}")
    open_queue(f"{address}/theirs-{turn}").close()
    seconds = {"proton send": _proton_send(server, f"theirs-{turn}", count, value)}
    seconds["penstock send"] = our_rates.send_s(queue, count, AT_ONCE, value)
    seconds["proton receive"] = _proton_receive(server, f"theirs-{turn}", count, value)
    seconds["penstock receive"] = our_rates.receive_s(queue, count, AT_ONCE, value)
    queue.close()
    return seconds


def _proton_send(server: Artemis, queue: str, count: int, value: bytes) -> float:
    """The same with proton alone, by the event loop that its documentation uses."""
    proton = importlib.import_module("proton")
    base: Any = importlib.import_module("proton.handlers").MessagingHandler

    class Sending(base):  # type: ignore[misc]
        sent = accepted = 0
        began_s = seconds = 0.0

        def on_start(self, event: Any) -> None:
            event.container.create_sender(_connect(event.container, server), queue)

        def on_sendable(self, event: Any) -> None:
            self.began_s = self.began_s or time.perf_counter()
            while event.link.credit and self.sent < count and self.sent - self.accepted < AT_ONCE:
                event.link.send(proton.Message(value, id=f"message-{self.sent}", durable=True, inferred=True))
                self.sent += 1

        def on_accepted(self, event: Any) -> None:
            self.accepted += 1
            if self.accepted == count:
                self.seconds = time.perf_counter() - self.began_s
                event.connection.close()
            elif self.sent == self.accepted:
                self.on_sendable(event)

    return _run(Sending())


def _proton_receive(server: Artemis, queue: str, count: int, value: bytes) -> float:
    base: Any = importlib.import_module("proton.handlers").MessagingHandler

    class Receiving(base):  # type: ignore[misc]
        seconds = 0.0

        def __init__(self) -> None:
            super().__init__(prefetch=PREFETCH, auto_accept=False)
            self.deliveries: list[Any] = []
            self.seen = 0
            self.began_s = time.perf_counter()

        def on_start(self, event: Any) -> None:
            event.container.create_receiver(_connect(event.container, server), queue)

        def on_message(self, event: Any) -> None:
            assert bytes(event.message.body) == value
            self.seen += 1
            self.deliveries.append(event.delivery)
            if len(self.deliveries) == AT_ONCE:
                for delivery in self.deliveries:
                    self.accept(delivery)
                self.deliveries = []
            if self.seen == count:
                self.seconds = time.perf_counter() - self.began_s
                event.connection.close()

    return _run(Receiving())


def _connect(container: Any, server: Artemis) -> Any:
    return container.connect(
        f"127.0.0.1:{server.port}",
        user=USER,
        password=PASSWORD,
        allowed_mechs="PLAIN",
        allow_insecure_mechs=True,
        reconnect=False,
    )


def _run(handler: Any) -> float:
    importlib.import_module("proton.reactor").Container(handler).run()
    seconds: float = handler.seconds
    assert seconds, "proton did not finish"
    return seconds
