"""Bill orders with eight workers, in order for each customer; fix the cause of failures, and redrive the dead letters.

    python examples/orders.py [URL]

The price of cake is missing at first. Orders for it are tried three times and become dead letters, while all others are
billed. Then the price is added, the letters are redriven, and every order has been billed once.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass

import penstock as ps


@dataclass
class Order:
    customer: str
    item: str
    cups: int


orders = ps.Topic("tea-orders", Order, key=lambda order: order.customer)
prices = {"tea": 3, "coffee": 4}
bills: defaultdict[str, list[int]] = defaultdict(list)


def bill(order: Order) -> None:
    """Return when done; raise to retry; raise `Reject` if it can never succeed."""
    if order.cups < 1:
        raise ps.Reject("no cups, no bill")
    bills[order.customer].append(order.cups * prices[order.item])


def run_to_the_end(url: str) -> None:
    app = ps.App(url, group="billing")
    app.handle(
        orders,
        order="key",
        workers=8,
        retry=ps.Retry(3, first_delay_s=0.01),
        dead_letters="tea-orders.dlq",
        end="latest",
    )(bill)
    app.run()


def main(url: str) -> None:
    with ps.connect(url) as stream:
        for number in range(300):
            customer, item = f"customer-{number % 10}", ("tea", "coffee", "cake")[number % 3]
            stream.send(orders, Order(customer, item, number))
        stream.flush(timeout_s=30)

        run_to_the_end(url)
        letters = ps.open_dead_letters("tea-orders.dlq", stream)
        waiting = letters.browse(ps.DeadLetterFilter(), limit=1000)
        print("billed", sum(map(len, bills.values())), "orders;", len(waiting), "dead letters, such as:")
        print("  ", waiting[-1].error, "after", waiting[-1].attempts, "attempts")

        prices["cake"] = 5
        report = ps.redrive(letters, stream, ps.DeadLetterFilter(error_kind="KeyError"), rate_per_s=1000)
        letters.close()
        print("redrove", report.redriven, "letters")
        run_to_the_end(url)
        print("billed", sum(map(len, bills.values())), "orders of 300; the first had no cups, and was rejected")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "log:./data")
