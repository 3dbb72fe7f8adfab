"""Processing everything again: a version with a mistake, one without it, from the first record to the last reader."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock import Connection, Consumer
from penstock.errors import ConfigError, PenstockError, PipelineError, PipelineRunningError
from penstock.spark.pipeline import Pipeline
from penstock.spark.run.checkpoint_folder import CheckpointFolder
from penstock.spark.run.restart import Restart
from penstock.spark.run.settings import Engine, RunSettings, running_with
from penstock.spark.run.state_folder import StateFolder
from penstock.spark.sessions.opening import has_connector
from penstock.spark.versions import current_topic
from penstock.spark.versions.register import Register
from penstock.spark.versions.reprocessing import VersionRun, begin, caught_up, compare_versions
from penstock.spark.versions.retiring import retire
from tests.seeds import seed_of

ORDER: Final = "customer string, amount long"
CUSTOMERS: Final = 8
ONCE: Final = RunSettings(once=True)
AGAIN: Final = Restart(attempts=2, first_delay_s=0.1, max_delay_s=0.2)


@dataclass(frozen=True, slots=True)
class Order:
    customer: str
    amount: int


def _orders(count: int) -> list[Order]:
    chance = random.Random(seed_of())
    return [Order(f"c{chance.randrange(CUSTOMERS)}", chance.randrange(-20, 100)) for _ in range(count)]


def _send(connection: Connection, orders: list[Order]) -> None:
    for order in orders:
        connection.send("orders", {"customer": order.customer, "amount": order.amount}, key=order.customer)
    connection.flush(30)


def _pipeline(
    spark: SparkSession, url: str, *, mistake: bool, per_batch: int | None = None, fails_at: int | None = None
) -> Pipeline:
    """What customers have spent, and the refunds. The mistake: refunds count as if they had been paid."""
    engine: Engine = "native" if has_connector(spark) else "python"  # the native one starts in a fraction of the time
    pipe = Pipeline("usage", url, spark=spark, engine=engine, restart=AGAIN)
    records = pipe.read("orders", max_records_per_batch=per_batch)
    order = F.from_json(F.col("value").cast("string"), ORDER).alias("order")
    orders = records.select("pointer", order).select("pointer", "order.*")
    refused = F.when(F.col("pointer") == F.lit(fails_at), F.raise_error(F.lit("interrupted here")))
    orders = orders.where(F.coalesce(refused.cast("boolean"), F.lit(True)))  # a filter is no part of any state
    amount = F.abs("amount") if mistake else F.col("amount")
    spend = orders.groupBy("customer").agg(F.sum(amount).alias("total"))
    pipe.write(spend, "spend", key="customer", compact=True)
    refunds = orders.where("amount < 0").select("customer", "amount")
    pipe.write(refunds, "refunds", key="customer")
    return pipe


def _totals(orders: list[Order], *, mistake: bool) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for order in orders:
        totals[order.customer] += abs(order.amount) if mistake else order.amount
    return dict(totals)


def _refunds(orders: list[Order]) -> Counter[tuple[str, int]]:
    return Counter((order.customer, order.amount) for order in orders if order.amount < 0)


def _last_totals(connection: Connection, topic: str) -> dict[str, int]:
    values = [json.loads(record.value or b"") for record in connection.read(topic)]
    return {value["customer"]: value["total"] for value in values}


def _written_refunds(connection: Connection, topic: str) -> Counter[tuple[str, int]]:
    values = [json.loads(record.value or b"") for record in connection.read(topic)]
    return Counter((value["customer"], value["amount"]) for value in values)


def _reprocess(
    spark: SparkSession, url: str, version: str | None = None, **program: int | None
) -> tuple[list[VersionRun], PenstockError | None]:
    """As the command does: run the program as another version, and give what ended it."""
    begun: list[VersionRun] = []
    settings = RunSettings(
        once=True,
        start="earliest",
        reprocess=True,
        version=version,
        on_start=lambda pipeline: begun.append(begin(pipeline)),
    )
    with running_with(settings):
        pipe = _pipeline(spark, url, mistake=False, **program)
        try:
            pipe.run()
        except PenstockError as error:
            return begun, error
        finally:
            pipe.close()
    return begun, None


def _run_first(spark: SparkSession, url: str) -> None:
    with running_with(ONCE), _pipeline(spark, url, mistake=True) as pipe:
        pipe.run()


def test_a_mistake_is_mended_beside_what_runs(
    spark: SparkSession, connection: Connection, log_url: str, tmp_path: Path
) -> None:
    connection.create_topic("orders", 1)
    orders = _orders(90)
    _send(connection, orders)
    _run_first(spark, log_url)
    assert _last_totals(connection, "spend") == _totals(orders, mistake=True)

    [first], error = _reprocess(spark, log_url, per_batch=30, fails_at=70)
    assert error is not None
    assert "interrupted here" in str(error)
    assert (first.version, first.before, first.resumed, first.finished) == ("v2", "v1", False, False)
    register = Register(connection)
    assert [(each.version, each.state) for each in register.versions("usage")] == [
        ("v1", "current"),
        ("v2", "reprocessing"),
    ]
    with pytest.raises(PipelineError, match="has not caught up"):
        register.switch("usage", "v2", expected="v1")

    [second], error = _reprocess(spark, log_url, per_batch=30)
    assert error is None
    assert (second.version, second.resumed, second.finished) == ("v2", True, True)
    assert second.catching_up.total == 2 * len(orders), "two queries, each of which reads all"
    assert second.outputs == {"spend": "key", "refunds": "record"}
    caught_up(second)
    assert _last_totals(connection, "spend.v2") == _totals(orders, mistake=False)
    assert _written_refunds(connection, "refunds.v2") == _refunds(orders), "what was done before is not done again"
    assert _last_totals(connection, "spend") == _totals(orders, mistake=True), "the current version is left alone"

    old, new = register.find("usage", "v1"), register.find("usage", "v2")
    compared = compare_versions(spark, log_url, old, new)
    right, wrong = _totals(orders, mistake=False), _totals(orders, mistake=True)
    assert compared["spend"].same == sum(right[customer] == wrong[customer] for customer in right)
    assert compared["spend"].different == sum(right[customer] != wrong[customer] for customer in right)
    assert (compared["spend"].only_old, compared["spend"].only_new) == (0, 0)
    assert compared["refunds"].is_same
    assert compared["refunds"].same == _refunds(orders).total()

    assert current_topic(connection, "spend") == "spend"
    register.switch("usage", "v2", expected="v1")
    checkpoints = f"sqlite:{tmp_path / 'reader.db'}"
    with Consumer(connection, "spend", group="reader", checkpoints=checkpoints, end="latest") as reader:
        read = [json.loads(record.value or b"") for record in reader]
    assert {value["customer"]: value["total"] for value in read} == right

    more = _orders(20)
    _send(connection, more)
    with running_with(ONCE), _pipeline(spark, log_url, mistake=False) as pipe:
        assert pipe.version == "v2", "the program is the current version from now on"
        pipe.run()
    assert _last_totals(connection, "spend.v2") == _totals([*orders, *more], mistake=False)

    folder = Path(str(old.checkpoints))
    assert sorted(each.name for each in folder.iterdir()) == ["usage", "usage@v2"]
    retired = retire(connection, register.find("usage", "v1"), delete_topics=True)
    assert retired.deleted == ("spend", "refunds")
    assert sorted(each.name for each in folder.iterdir()) == ["usage@v2"]
    assert not {"spend", "refunds"} & set(connection.topics())
    with (
        running_with(replace(ONCE, version="v1")),
        pytest.raises(PipelineError, match="was retired"),
        _pipeline(spark, log_url, mistake=True),
    ):
        pass


def test_a_version_that_was_never_begun_is_not_run_by_mistake(
    spark: SparkSession, connection: Connection, log_url: str
) -> None:
    connection.create_topic("orders", 1)
    with (
        running_with(replace(ONCE, version="v7")),
        pytest.raises(ConfigError, match="has no version 'v7'; it has v1"),
        _pipeline(spark, log_url, mistake=False),
    ):
        pass


def test_a_new_version_does_not_write_into_a_topic_that_is_there(
    spark: SparkSession, connection: Connection, log_url: str
) -> None:
    for topic in ("orders", "spend.v2"):
        connection.create_topic(topic, 1)
    _, error = _reprocess(spark, log_url)
    assert isinstance(error, PipelineError)
    assert "topic 'spend.v2' already exists" in str(error)
    assert Register(connection).versions("usage") == []


def test_a_version_that_runs_elsewhere_is_not_removed_under_it(
    spark: SparkSession, connection: Connection, log_url: str
) -> None:
    """The lock of the old version is held by this very process, which no command would stop."""
    connection.create_topic("orders", 1)
    _send(connection, _orders(5))
    [begun], error = _reprocess(spark, log_url)
    assert error is None
    caught_up(begun)
    register = Register(connection)
    register.switch("usage", "v2", expected="v1")
    old = register.find("usage", "v1")
    folder = StateFolder(str(old.checkpoints)).below("usage")
    running = CheckpointFolder("usage", folder)
    running.open()
    try:
        with pytest.raises(PipelineRunningError, match="stop it there first"):
            retire(connection, old, stop_s=0.2)
        assert folder.names()
        assert register.find("usage", "v1").state == "retiring"
    finally:
        running.close()
    assert retire(connection, register.find("usage", "v1")).deleted == ()
    assert not folder.names()
    assert register.find("usage", "v1").state == "retired"
