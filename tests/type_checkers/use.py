"""Programs as they should be: type checkers find nothing wrong, and know what each thing is. It is never run."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, assert_type

import penstock as ps
from penstock.abc import Pointer
from penstock.testing import MemoryStream, run_to_end


@dataclass
class Order:
    customer: str
    cents: int


class Bill(TypedDict):
    cents: int


class Point(NamedTuple):
    x: int


orders = ps.Topic("orders", Order, key=lambda order: order.customer)

assert_type(orders, ps.Topic[Order])
assert_type(ps.Topic("orders", Order), ps.Topic[Order])
assert_type(ps.Topic("orders", Order, serde="msgpack", partitions=4), ps.Topic[Order])
assert_type(ps.Topic("orders", Order, serde=ps.JsonSerde(Order), key_serde=str), ps.Topic[Order])
assert_type(ps.Topic("bills", Bill, key=lambda bill: bill["cents"]), ps.Topic[Bill])
assert_type(ps.Topic("points", Point, key=lambda point: point.x), ps.Topic[Point])
assert_type(ps.Topic("lists", list[Order]), ps.Topic[list[Order]])
assert_type(ps.Topic("raw"), ps.Topic[bytes])
assert_type(ps.Topic("text", str), ps.Topic[str])
assert_type(ps.Topic("json", None), ps.Topic[Any])
assert_type(ps.Topic("json", serde="json"), ps.Topic[Any])
assert_type(ps.Topic("maybe", Order | None), ps.Topic[Any])
assert_type(orders.decode(b"{}"), Order | None)


def send(stream: ps.Connection, producer: ps.Producer, streams: MemoryStream) -> None:
    order = Order("ada", 1)
    assert_type(stream.send(orders, order), ps.Receipt)
    stream.send(orders, None, key="ada")
    stream.send("orders", {"any": "thing"}, "ada", headers={"h": b"x"}, delay_s=60)
    producer.send(orders, order, timestamp=datetime.datetime.now(datetime.UTC), partition=0)
    streams.send(orders, order, headers=[("h", None)])
    for record in stream.read("orders", "earliest"):
        assert_type(record, ps.Record)
    for record in stream.read(re.compile(r"orders\..*"), follow=True):
        assert_type(record, ps.Record)
    stream.read(["a", "b"])


async def send_async(stream: ps.Connection, producer: ps.Producer) -> None:
    async with ps.connect("memory:x", acks="all") as opened:
        assert_type(opened, ps.Connection)
        assert_type(await opened.send(orders, Order("ada", 1)), ps.RecordMetadata)
        assert_type(await opened.send_async(orders, Order("ada", 1), delay_s=1.5), ps.RecordMetadata)
    assert_type(await producer.send_async("orders", b"x"), ps.RecordMetadata)
    async for record in stream.read("orders", follow=True):
        assert_type(record, ps.Record)


async def consume_async() -> None:
    async with ps.Consumer("memory:x", orders, group="billing", commit_interval_s=0.1) as consumer:
        assert_type(consumer, ps.Consumer)
        async for record in consumer:
            assert_type(record, ps.Record)
        for record in await consumer.poll_async(timeout_s=1.0, limit=10):
            await consumer.done_async(record)
        assert_type((await consumer.commit_async(timeout_s=5))[0], Pointer)


@contextlib.contextmanager
def timed(ctx: ps.Context) -> Generator[None]:
    assert_type(ctx.record, ps.Record)
    yield


app = ps.App("memory:x", group="billing", health="127.0.0.1:0", middlewares=[timed], acks=1)


@app.handle(orders, order="key", workers=8, retry=ps.Retry(5), guarantee="at-least-once", commit_interval_s=0.1)
def bill(order: Order) -> None: ...


@app.handle("others", order=ps.Ordering.NONE, start="latest", on_expired="fail", middlewares=[timed], processes=False)
async def other(value: bytes, ctx: ps.Context) -> None:
    ctx.send(orders, Order("ada", 1), delay_s=5)


@app.handle(re.compile(r"orders\..*"), group="patterns")
def by_pattern(order: Order) -> None: ...


@app.handle(ps.TopicPattern(re.compile(r"bills\..*"), Bill, serde="msgpack"))
def by_typed_pattern(bill: Bill) -> None: ...


@app.handle([orders, ps.Topic("more-orders", Order), "orders-by-name"], group="lists")
def by_list(order: Order) -> None: ...


@app.handle(("a", "b"))
def by_tuple_of_names(value: bytes) -> None: ...


still_itself: Callable[[Order], None] = bill


def consume() -> None:
    with ps.Consumer(
        "memory:x", orders, group="g", start=ps.Position.EARLIEST, assignor="cooperative", retry=3
    ) as consumer:
        assert_type(consumer.poll(1.0), list[ps.Record])
    with ps.Consumer("memory:x", re.compile("a|b"), group="g") as consumer:
        assert_type(consumer.topics, list[str])
        consumer.seek(0, 7, topic="a")


def check() -> None:
    assert_type(run_to_end(app).sent(orders), list[Order])
