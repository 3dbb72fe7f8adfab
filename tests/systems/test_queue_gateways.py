"""Gateways from a real RabbitMQ to a log and back: killed on the way, and with records that the other side refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import penstock as ps
from penstock.gateway import Gateway
from penstock.model import NewRecord, Record
from penstock.queues import open_queue
from penstock.queues.amqp import FEATURES
from tests import system_table
from tests.consuming.eventually import wait_until
from tests.forking import FORKING
from tests.streams.embedded import stop_broker
from tests.systems.rabbitmq_server import RabbitMq

pytestmark = [pytest.mark.system("RabbitMQ 4"), pytest.mark.xdist_group("rabbitmq")]

COUNT = 400
WAIT_S = 90.0
OVERSIZE = bytes(2_000_000)
"""More than a topic takes, unless its `max.message.bytes` is raised."""


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    with RabbitMq(tmp_path_factory.mktemp("rabbitmq"), 4) as server:
        system_table.met("RabbitMQ 4", f"RabbitMQ {server.version}, AMQP 0-9-1", FEATURES)
        yield server


@pytest.fixture
def log(tmp_path: Path) -> Iterator[str]:
    yield f"log:{tmp_path}/log"
    stop_broker(tmp_path / "log")


def carry(source: str, sink: str) -> None:
    Gateway(source, sink, retry=2).run()


def numbers(log: str, topic: str) -> list[int]:
    with ps.connect(log) as stream:
        return [int(record.value or b"") for record in stream.read(topic)] if topic in stream.topics() else []


def test_nothing_is_lost_on_the_way_from_rabbitmq_when_the_gateway_is_killed_and_what_is_too_large_is_a_dead_letter(
    rabbitmq: RabbitMq, log: str
) -> None:
    source = f"amqp://{rabbitmq.address}/ticks?prefetch=20"
    with closing(open_queue(source)) as queue:
        queue.send([_numbered(number) for number in range(COUNT // 2)])
        queue.send([NewRecord("ticks", OVERSIZE, b"large")])
        queue.send([_numbered(number) for number in range(COUNT // 2, COUNT)])
    gateways = []
    try:
        for enough in (50, COUNT // 2 + 20, COUNT):
            gateways.append(FORKING.Process(target=carry, args=(source, f"{log}#ticks")))
            gateways[-1].start()
            wait_until(lambda enough=enough: len(set(numbers(log, "ticks"))) >= enough, WAIT_S)  # type: ignore[misc]
            gateways[-1].kill()
            gateways[-1].join(WAIT_S)
        assert set(numbers(log, "ticks")) == set(range(COUNT))
    finally:
        for gateway in gateways:
            gateway.kill()
            gateway.join(WAIT_S)
    with ps.connect(log) as stream:
        assert {(record.key, record.headers) for record in stream.read("ticks")} == {(b"key", (("h", b"1"),))}
    with closing(open_queue(f"{source}&dead_letters=")) as queue, closing(open_queue(_letters(source))) as letters:
        [dead] = letters.receive(1, WAIT_S)
        assert (dead.record.key, dead.record.value) == (b"large", OVERSIZE)
        assert all(int(left.record.value or b"") in range(COUNT) for left in queue.receive(COUNT, 0.5))


def test_what_rabbitmq_refuses_is_a_dead_letter_and_the_others_arrive(rabbitmq: RabbitMq, log: str) -> None:
    sink = f"amqp://{rabbitmq.address}/orders"
    with ps.connect(log) as stream:
        stream.create_topic("orders")
        for key in (b"1", b"k" * 140_000, b"2"):  # the second does not fit into a frame of RabbitMQ
            stream.send("orders", b"value of %d bytes" % len(key), key=key).result(WAIT_S)
    Gateway(f"{log}#orders", sink, retry=2).run(end="latest")
    with closing(open_queue(sink)) as queue:
        arrived: list[Record] = []
        while len(arrived) < 2:
            deliveries = queue.receive(2, WAIT_S)
            assert deliveries, f"only {arrived} arrived"
            arrived += [delivery.record for delivery in deliveries]
    assert [record.key for record in arrived] == [b"1", b"2"]
    with ps.connect(log) as stream:
        assert [record.value for record in stream.read("orders.dlq")] == [b"value of 140000 bytes"]


def _numbered(number: int) -> NewRecord:
    return NewRecord("ticks", b"%d" % number, b"key", (("h", b"1"),))


def _letters(source: str) -> str:
    return source.replace("/ticks", "/ticks.dead")
