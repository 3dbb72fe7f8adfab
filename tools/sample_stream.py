"""A stream with believable records, groups, dead letters, a pipeline and an hour of history, to take pictures of.

    python -m tools.sample_stream FOLDER

Everything comes from a seed, but for the present time. Records, groups, checkpoints, dead letters and the audit log are
real: they were sent, read, given up and changed by the library. What cannot be had in a minute is in `sample_past`.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer

import penstock as ps
from penstock.console.service import Service
from penstock.console.views import Person
from penstock.streams import Connection
from tools import sample_past

SEED: Final = 7
PARTITIONS: Final = {
    "orders": 6,
    "payments": 3,
    "page-views": 6,
    "shipments": 3,
    "card-transactions": 4,
    "inventory.changes": 2,
    "customers": 2,
}
SENT: Final = {
    "orders": 24_000,
    "payments": 12_000,
    "page-views": 36_000,
    "shipments": 6_000,
    "card-transactions": 2_500,
}
BILLED: Final = 0.67
BILLING_S: Final = 0.3
"""How long billing takes for an order; more come in meanwhile."""
INDEXED: Final = 0.99
CITIES: Final = ("Bergen", "Lyon", "Porto", "Graz", "Gdansk", "Leeds", "Turin", "Ghent")
ITEMS: Final = ("tea", "coffee", "cocoa", "honey", "oat milk", "saffron")
FIRST_ORDER: Final = 40_000


@dataclass
class Transaction:
    card: str
    amount: float
    country: str


@dataclass
class Order:
    order: int
    customer: str


def fill(folder: Path) -> str:
    """Fill a fresh folder; answers the URL of the stream. The console's state is in FOLDER/console."""
    dice = random.Random(SEED)
    url = f"log:{folder}"
    with ps.connect(url) as stream:
        assert isinstance(stream, Connection)
        for topic, partitions in PARTITIONS.items():
            stream.create_topic(topic, partitions, {"cleanup.policy": "compact"} if topic == "customers" else None)
        _send(stream, dice)
        _commit(stream, "search-index", "page-views", INDEXED)
        _commit(stream, "billing", "orders", BILLED)
        _judge(url)
    sample_past.add_history(folder / "console" / "history.db", SENT, dice)
    sample_past.add_pipeline(folder / "pipelines" / sample_past.PIPELINE)
    _change(url, folder)
    return url


@contextmanager
def going_on(folder: Path) -> Iterator[None]:
    """While this lasts, orders come in, shipping handles them, billing cannot keep up, and the pipeline runs."""
    url = f"log:{folder}"
    shipping = ps.App(url, group="shipping")

    @shipping.handle("orders", order="key", workers=2)
    def ship(order: Order) -> None: ...

    stop = threading.Event()
    threads = [threading.Thread(target=work, args=(url, stop)) for work in (_order, _bill)]
    with ExitStack() as stack:
        stack.enter_context(sample_past.running(folder / "pipelines" / sample_past.PIPELINE))
        stack.callback(shipping.start().join)
        stack.callback(shipping.stop)
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(stop.set)
        yield


def _bill(url: str, stop: threading.Event) -> None:
    """A plain Kafka client, which is too slow."""
    with ps.connect(url) as stream:
        assert isinstance(stream, Connection)
        consumer = Consumer({"bootstrap.servers": stream.bootstrap, "group.id": "billing", "client.id": "billing-1"})
        consumer.subscribe(["orders"])
        try:
            while not stop.wait(BILLING_S):
                consumer.poll(1.0)
        finally:
            consumer.close()


def _commit(stream: Connection, group: str, topic: str, part: float) -> None:
    ends = [stream.open_topic(topic).locate(each, ps.Position.LATEST) for each in range(PARTITIONS[topic])]
    committed = {(topic, partition): int(int(end) * part) for partition, end in enumerate(ends)}
    stream.group_admin().move(group, committed)


def _order(url: str, stop: threading.Event) -> None:
    dice = random.Random(SEED + 1)
    number = SENT["orders"]
    with ps.connect(url) as stream:
        while not stop.wait(0.15):
            for topic in ("orders", "page-views", "page-views", "payments"):
                number += 1
                customer = f"c-{dice.randrange(10_000, 10_400)}"
                stream.send(topic, json.dumps(_value(topic, number, customer, dice)), customer, headers=_headers(dice))


def _send(stream: Connection, dice: random.Random) -> None:
    now_ms = int(time.time() * 1000)
    for topic, count in SENT.items():
        for number in range(count):
            at_ms = now_ms - int(sample_past.HOUR_S * 1000 * (1 - number / count))
            customer = f"c-{dice.randrange(10_000, 10_400)}"
            value = json.dumps(_value(topic, number, customer, dice))
            stream.send(topic, value, customer, headers=_headers(dice), timestamp=at_ms)
    for number in range(400):
        known = {"name": f"customer {number}", "city": dice.choice(CITIES)}
        stream.send("customers", json.dumps(known), f"c-{10_000 + number}")
        stream.send("inventory.changes", json.dumps({"item": dice.choice(ITEMS), "change": dice.randrange(-9, 40)}))
    stream.flush(60)


def _headers(dice: random.Random) -> dict[str, str]:
    return {"trace-id": f"{dice.getrandbits(64):016x}", "source": dice.choice(("web", "app", "shop"))}


def _value(topic: str, number: int, customer: str, dice: random.Random) -> dict[str, object]:
    if topic == "page-views":
        return {"path": dice.choice(("/", "/tea", "/coffee", "/basket", "/account")), "ms": dice.randrange(8, 900)}
    if topic == "payments":
        return {"payment": 70_000 + number, "customer": customer, "amount": round(dice.uniform(3, 240), 2)}
    if topic == "shipments":
        return {"order": FIRST_ORDER + number, "city": dice.choice(CITIES), "weight_g": dice.randrange(200, 9_000)}
    if topic == "card-transactions":
        amount: object = round(dice.uniform(1, 900), 2) if number % 60 else "twelve"
        card = f"**** {dice.randrange(1000, 9999)}"
        return {"card": card, "amount": amount, "country": dice.choice(("NO", "FR", "PT"))}
    items = [{"item": dice.choice(ITEMS), "cups": dice.randrange(1, 5)} for _ in range(dice.randrange(1, 4))]
    return {"order": FIRST_ORDER + number, "customer": customer, "city": dice.choice(CITIES), "items": items}


def _judge(url: str) -> None:
    """The fraud app reads all transactions. It gives up those without a number, and those that it could not look up."""
    app = ps.App(url, group="fraud")

    @app.handle("card-transactions", order="key", workers=4, retry=ps.Retry(2, first_delay_s=0.001), end="latest")
    def judge(transaction: Transaction) -> None:
        if transaction.country == "PT" and transaction.amount > 880:
            raise TimeoutError("the list of stolen cards did not answer within 2 s")

    app.run()


def _change(url: str, folder: Path) -> None:
    """Some changes, as somebody makes them in the console; its own history knows nothing of the seconds they took."""
    by = Person("local", "127.0.0.1")
    with Service(url, state=folder / "changes") as service:
        service.look_now()
        service.create_topic(by, "refunds", 3, {"retention.ms": "2592000000"})
        service.produce(by, "refunds", "c-10017", '{"order": 40112, "amount": 18.4}', encoding="json")
        service.alter_topic(by, "payments", {"retention.ms": "2592000000"})
        service.reset(by, "search-index", "latest", ["page-views"], [5])
    (folder / "changes" / "audit.jsonl").rename(folder / "console" / "audit.jsonl")


if __name__ == "__main__":
    sys.stdout.write(fill(Path(sys.argv[1])) + "\n")
