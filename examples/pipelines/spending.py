"""Add up what each customer spends in ten minutes: one program, on one machine or on many.

    python examples/pipelines/spending.py [URL]
    penstock run examples/pipelines/spending.py --master "local[2]" -- log:./data
    penstock run examples/pipelines/spending.py --master spark://HOST:7077 -- kafka://ONE:9092,TWO:9092,THREE:9092

An `App` converts payments to euros, from topic to topic; those in an unknown currency become dead letters. A pipeline
adds up what is left. Both are exactly-once. The URL says where the records are, the master where Spark runs: the totals
are the same everywhere. A second run finds its records processed, and changes nothing.

Without a URL it uses an embedded log in a temporary folder.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
import sys
import tempfile
from typing import Any

from pyspark.sql import functions as F

import penstock as ps
from penstock.spark import Pipeline
from penstock.spark.windows import tumbling

PAYMENTS = 3_000
CUSTOMERS = ("ann", "ben", "cem", "dia", "eve")
EUROS = {"EUR": 1.0, "USD": 0.92, "SEK": 0.087}
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


@dataclasses.dataclass
class Payment:
    customer: str
    cents: int
    currency: str
    at: datetime.datetime


payments = ps.Topic("payments", Payment, key=lambda payment: payment.customer, partitions=3)
in_euros = ps.Topic("payments.euros", Payment, key=lambda payment: payment.customer, partitions=3)


def convert(payment: Payment) -> Payment:
    if payment.currency not in EUROS:
        raise ps.Reject(f"no rate for {payment.currency}")
    return dataclasses.replace(payment, cents=round(payment.cents * EUROS[payment.currency]), currency="EUR")


def main(url: str) -> None:
    with ps.connect(url) as stream:
        if payments.name not in stream.topics():
            send_payments(stream)

        app = ps.App(url, group="currencies")
        app.handle(payments, to=in_euros, guarantee="exactly-once", end="latest")(convert)
        app.run()

        with Pipeline("spending", url) as pipeline:
            rows = pipeline.read(in_euros).withWatermark("at", "10 minutes")
            spent = rows.groupBy(tumbling("at", "10 minutes"), "customer").agg(
                F.count("*").alias("payments"), F.sum("cents").alias("cents")
            )
            pipeline.write(spent, "spending", key="customer", partitions=3, guarantee="exactly-once")
            pipeline.run(once=True)

        show([json.loads(record.value or b"") for record in stream.read("spending")])
        print(sum(1 for _ in stream.read("payments.dlq")), "payments in an unknown currency")


def send_payments(stream: ps.Connection, seed: int = 7) -> None:
    """An hour of payments. The last one is of the next day: windows are final when time has moved past them."""
    chance = random.Random(seed)
    for number in range(PAYMENTS):
        at = NOON + datetime.timedelta(seconds=3_600 * number / PAYMENTS)
        currency = chance.choice([*EUROS] * 20 + ["XXX"])
        stream.send(payments, Payment(chance.choice(CUSTOMERS), chance.randrange(100, 20_000), currency, at))
    stream.send(payments, Payment("nobody", 0, "EUR", NOON + datetime.timedelta(days=1)))
    stream.flush(timeout_s=60)


def show(spent: list[dict[str, Any]]) -> None:
    for customer in CUSTOMERS:
        cents = [row["cents"] for row in spent if row["customer"] == customer]
        print(f"{customer}  {sum(cents) / 100:>10,.2f} EUR in {len(cents)} windows")
    print(f"{sum(row['payments'] for row in spent):,} payments in {len(spent)} totals")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"log:{folder}/data")
