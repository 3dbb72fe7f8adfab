"""A program with bad rows in every batch, for a test that kills it:

    python -m tests.spark.errors.killed_program URL TARGET [BATCH STEP FILE]

TARGET is `shares`, a topic, `state`, the same topic by a stateful function, or the URL of a table. In that batch the
program stops at that step, creates the file, and waits to be killed. Otherwise it ends with the input.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

import penstock as ps
from penstock.spark import Folder, Pipeline, SqlTable, session, stateful
from penstock.spark.errors.batch_rows import RowLetters
from penstock.spark.run.queries import RunningQuery
from penstock.spark.sink.publishing import Publisher
from penstock.spark.sink.target import Target
from penstock.spark.state.context import KeyContext


@dataclass
class Order:
    customer: str
    cents: int


ORDERS = ps.Topic("orders", Order)
PER_BATCH = 40


def divided(cents: int) -> int:
    return cents // (cents % 9)


def counted(customer: str, orders: Iterator[Row], ctx: KeyContext) -> Iterator[dict[str, Any]]:
    """Number the orders, without a gap where one fails."""
    for order in orders:
        ctx.state.put(ctx.state.get(0) + 1)
        yield {"cents": order.cents, "share": divided(order.cents), "number": ctx.state.get()}


def shares(orders: DataFrame, target: str) -> DataFrame:
    if target == "state":
        columns = "cents long, share long, number long"
        return stateful(orders.select("customer", "cents"), "customer", counted, columns, state=int)
    return orders.withColumn("share", F.udf(divided, "long")("cents")).select("cents", "share")


def target_of(name: str) -> str | Target:
    if name.startswith("sqlite:"):
        return SqlTable(name, "shares")
    return "shares" if name in ("shares", "state") else Folder(name, format="delta")


def build(url: str, target: str) -> Pipeline:
    spark = session(
        "bad rows", master="local[2]", conf={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    )
    pipe = Pipeline("shop", url, spark=spark)
    orders = pipe.read(ORDERS, max_records_per_batch=PER_BATCH).transform(pipe.expect("not a ten", "cents % 10 <> 0"))
    pipe.write(shares(orders, target), target_of(target), name="shares")
    return pipe


def stop_at(batch: int, step: str, file: Path) -> None:
    def wait() -> None:
        file.touch()
        threading.Event().wait(600)

    def before_or_after(owner: type, method: str, batch_of: Any) -> None:
        real = getattr(owner, method)

        def stepping(self: Any, *given: Any) -> Any:
            is_batch = batch_of(*given) == batch
            if is_batch and step == f"before {method}":
                wait()
            outcome = real(self, *given)
            if is_batch and step == f"after {method}":
                wait()
            return outcome

        setattr(owner, method, stepping)

    before_or_after(RowLetters, "put", lambda identity, number, *_: number)
    before_or_after(Publisher, "publish", lambda number, *_: number)
    before_or_after(RunningQuery, "_delivered", lambda outcome: outcome.batch_id)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        stop_at(int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
    with build(sys.argv[1], sys.argv[2]) as pipeline:
        pipeline.run(once=True)
