"""`run_to_end` and `penstock_stream`: what users try their apps with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import penstock
from penstock import App, Connection, Context, Reject, Retry, Topic
from penstock.testing import MemoryStream, run_to_end


@dataclass
class Order:
    customer: str
    cents: int


@dataclass
class Bill:
    customer: str
    cents: int


orders = Topic("orders", Order, key=lambda order: order.customer)
bills = Topic("bills", Bill, key=lambda bill: bill.customer, partitions=2)


def build(stream: str | Connection | MemoryStream, checkpoints: str | None = None) -> App:
    app = App(stream, group="billing", checkpoints=checkpoints)

    @app.handle(orders, to=bills, retry=Retry(2, first_delay_s=0))
    def bill(order: Order, ctx: Context) -> Bill:
        if order.cents < 0:
            raise Reject("nobody owes a negative amount")
        if order.cents == 13 and ctx.attempt == 1:
            raise ValueError("once more")
        return Bill(order.customer, order.cents)

    return app


def test_a_run_tells_what_was_handled_sent_retried_and_given_up(penstock_stream: Connection) -> None:
    penstock_stream.send(bills, Bill("old", 1))
    for cents in (350, -1, 13):
        penstock_stream.send(orders, Order("ada", cents))
    result = run_to_end(build(penstock_stream))
    assert (result.handled, result.retried) == (2, 1)
    assert result.sent(bills) == [Bill("ada", 350), Bill("ada", 13)]
    assert [letter.error for letter in result.dead_letters] == ["Reject: nobody owes a negative amount"]
    assert {record.topic for record in result.records} == {"bills", "orders.dlq"}


def test_the_next_run_tells_of_itself_alone(penstock_stream: Connection, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'progress.db'}"
    penstock_stream.send(orders, Order("ada", -1))
    assert len(run_to_end(build(penstock_stream, store)).dead_letters) == 1
    penstock_stream.send(orders, Order("bob", 5))
    result = run_to_end(build(penstock_stream, store))
    assert (result.handled, result.sent(bills), result.dead_letters) == (1, [Bill("bob", 5)], [])


def test_an_app_on_a_url_or_on_other_streams_is_run_as_well(tmp_path: Path) -> None:
    with MemoryStream() as streams:
        streams.send(orders, Order("ada", 1))
        assert run_to_end(build(streams)).sent(bills) == [Bill("ada", 1)]
    url = f"log:{tmp_path / 'data'}"
    with penstock.connect(url, exit_when_idle_s=1) as stream:
        stream.send(orders, Order("ada", 2)).result(20)
        assert run_to_end(build(url)).sent(bills) == [Bill("ada", 2)]


def test_what_stops_the_app_is_raised(penstock_stream: Connection) -> None:
    penstock_stream.send("orders", b"1")
    app = App(penstock_stream, group="g")

    @app.handle("orders", dead_letters=False, retry=1)
    def fail(value: bytes) -> None:
        raise ValueError("no")

    with pytest.raises(penstock.PenstockError, match="no"):
        run_to_end(app)


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_a_stream_of_its_own(penstock_stream: Connection, number: int) -> None:
    assert penstock_stream.topics() == []
    penstock_stream.send("orders", b"1").result(5)
