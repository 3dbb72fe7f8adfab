"""RabbitMQ queues through Penstock, against pika on the same server: sending with confirms, receiving and settling."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pika

from benchmarks import our_rates
from benchmarks.report import Report
from penstock.queues import open_queue
from tests.systems.rabbitmq_server import RabbitMq

COUNT: Final = 20_000
RECORD_BYTES: Final = 100
AT_ONCE: Final = 500
PREFETCH: Final = 500


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    count = max(AT_ONCE, round(COUNT * scale) // AT_ONCE * AT_ONCE)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, RabbitMq(Path(name)) as server:
        our_rates.compare_queues(
            report,
            say,
            count,
            (_round(server, count, turn) for turn in range(rounds)),
            title=lambda what: f"RabbitMQ, {what}, {RECORD_BYTES} B records, quorum queue, one thread",
            ours="amqp:// URL",
            peer="pika",
            theirs="pika's SelectConnection",
        )
        report.notes.append(
            f"RabbitMQ {server.version}, one node, pika {pika.__version__}: messages are confirmed on both sides, "
            f"{AT_ONCE} under way at a time; prefetch {PREFETCH}, and deliveries are settled {AT_ONCE} at a time."
        )


def _round(server: RabbitMq, count: int, turn: int) -> dict[str, float]:
    """The seconds of each way to write and read as many records."""
    value = b"x" * RECORD_BYTES
    queue = open_queue(f"amqp://{server.address}/ours-{turn}?prefetch={PREFETCH}")
    open_queue(f"amqp://{server.address}/theirs-{turn}").close()
    seconds = {"pika send": Pika(server, f"theirs-{turn}", count, value).send()}
    seconds["penstock send"] = our_rates.send_s(queue, count, AT_ONCE, value)
    seconds["pika receive"] = Pika(server, f"theirs-{turn}", count, value).receive()
    seconds["penstock receive"] = our_rates.receive_s(queue, count, AT_ONCE, value)
    queue.close()
    return seconds


class Pika:
    """The same with pika alone, by its fastest connection."""

    def __init__(self, server: RabbitMq, queue: str, count: int, value: bytes) -> None:
        self._queue, self._count, self._value = queue, count, value
        self._begun_s = 0.0
        self._seen = self._published = 0
        self._connection = pika.SelectConnection(
            pika.ConnectionParameters("127.0.0.1", server.port),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._work),
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )
        self._work: Callable[[Any], None] = self._begin_sending

    def send(self) -> float:
        return self._run()

    def receive(self) -> float:
        self._work = self._begin_receiving
        return self._run()

    def _run(self) -> float:
        self._connection.ioloop.start()
        return time.perf_counter() - self._begun_s

    def _begin_sending(self, channel: Any) -> None:
        channel.confirm_delivery(lambda frame: self._confirmed(channel, frame.method))
        self._begun_s = time.perf_counter()
        self._publish(channel)

    def _publish(self, channel: Any) -> None:
        for _ in range(AT_ONCE):
            properties = pika.BasicProperties(delivery_mode=2, message_id=f"{self._published}")
            channel.basic_publish("", self._queue, self._value, properties, mandatory=True)
            self._published += 1

    def _confirmed(self, channel: Any, method: Any) -> None:
        self._seen = max(self._seen, method.delivery_tag)
        if self._seen == self._count:
            self._connection.close()
        elif self._seen == self._published:
            self._publish(channel)

    def _begin_receiving(self, channel: Any) -> None:
        self._begun_s = time.perf_counter()
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(self._queue, self._received)

    def _received(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        assert body == self._value
        self._seen += 1
        if self._seen % AT_ONCE == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if self._seen == self._count:
            self._connection.close()
