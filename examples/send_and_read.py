"""Send orders to the log in a folder and read them back: all, those since a time, and those of one partition.

    python examples/send_and_read.py [URL]

The default URL is log:./data; kafka://127.0.0.1:9092 works as well.
"""

from __future__ import annotations

import datetime
import sys
from dataclasses import dataclass

import penstock as ps


@dataclass
class Order:
    customer: str
    item: str
    cups: int


ORDERS = [Order("ada", "tea", 2), Order("bob", "coffee", 1), Order("ada", "cake", 1), Order("eve", "tea", 4)]


def main(url: str) -> None:
    with ps.connect(url) as stream:
        if "orders" not in stream.topics():
            stream.create_topic("orders", partitions=3)
        before = datetime.datetime.now(datetime.UTC)
        receipts = [stream.send("orders", order, key=order.customer) for order in ORDERS]
        for receipt in receipts:
            print("stored:", receipt.result(timeout=30))

        print("everything:", len(list(stream.read("orders"))), "records")
        recent = list(stream.read("orders", start=before))
        print("of this run:", [record.value for record in recent])

        stored = receipts[0].result()
        again = next(stream.read("orders", start={stored.partition: stored.offset}))
        print("ada's first order of this run:", again.value)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "log:./data")
