"""Pipelines on the embedded log, from records to records: what comes out is counted by hand beside them."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import window

import penstock as ps
from penstock.errors import (
    CheckpointMismatchError,
    ConfigError,
    DeliveryError,
    GuaranteeError,
    PipelineError,
    PipelineRunningError,
    SchemaMismatchError,
    StoreUnavailableError,
    UnknownTopicError,
)
from penstock.observe.pipelines import find_pipelines
from penstock.spark import SqlTable
from penstock.spark.pipeline import Pipeline
from penstock.spark.run.batch_writer import BatchOutcome
from penstock.spark.run.queries import RunningQuery
from penstock.spark.run.restart import Restart
from penstock.spark.run.settings import Engine
from penstock.spark.run.triggers import RealTime
from penstock.spark.sessions.opening import has_connector

MINUTE = datetime.datetime(2026, 1, 1, 12, 0, tzinfo=datetime.UTC)


@dataclass
class Order:
    customer: str
    amount: int
    at: datetime.datetime


@dataclass
class Amount:
    customer: str
    amount: int


ORDERS = ps.Topic("orders", Order, key=lambda order: order.customer)


def order(customer: str, amount: int, second: int) -> Order:
    return Order(customer, amount, MINUTE + datetime.timedelta(seconds=second))


def send(connection: ps.Connection, *orders: Order) -> None:
    for each in orders:
        connection.send(ORDERS, each)
    connection.flush(timeout_s=30)


def values(connection: ps.Connection, topic: str) -> list[Any]:
    return [json.loads(record.value or b"null") for record in connection.read(topic)]


@pytest.fixture
def pipe(spark: SparkSession, log_url: str, connection: ps.Connection) -> Iterator[Pipeline]:
    connection.create_topic("orders", 2)
    with Pipeline("usage", log_url, spark=spark) as pipeline:
        yield pipeline


def again(pipe: Pipeline, name: str = "usage", attempts: int = 0) -> Pipeline:
    """The program started again."""
    return Pipeline(name, pipe.url, spark=pipe.spark, restart=Restart(attempts=attempts))


def spending(pipe: Pipeline) -> DataFrame:
    return (
        pipe.read(ORDERS)
        .withWatermark("at", "1 minute")
        .groupBy(window("at", "10 seconds"), "customer")
        .sum("amount")
        .withColumnRenamed("sum(amount)", "spent")
    )


def test_windows_are_exact_over_restarts_with_records_in_between(pipe: Pipeline, connection: ps.Connection) -> None:
    sent = [order(f"customer-{n % 7}", n, n) for n in range(300)]
    end = order("the end", 0, 10_000)
    for first in range(0, 300, 100):
        send(connection, *sent[first : first + 100])
        program = again(pipe)
        program.write(spending(program), "spend", key="customer")
        program.run(once=True)
        program.close()
    send(connection, end)
    program = again(pipe)
    program.write(spending(program), "spend", key="customer")
    program.run(once=True)
    program.close()
    expected: dict[tuple[str, str], int] = defaultdict(int)
    for each in sent:
        start = each.at.replace(second=each.at.second // 10 * 10)
        expected[start.isoformat(), each.customer] += each.amount
    found = [
        (datetime.datetime.fromisoformat(row["window"]["start"]).isoformat(), row["customer"], row["spent"])
        for row in values(connection, "spend")
    ]
    assert sorted(found) == sorted((start, customer, spent) for (start, customer), spent in expected.items())


@pytest.mark.sampled(1)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ["python", "native"])
def test_rows_in_order_are_never_late_however_unequal_their_partitions_are(
    pipe: Pipeline, connection: ps.Connection, engine: Engine
) -> None:
    """One partition has eleven rows where the other has one, and both were loaded one after the other."""
    if engine == "native" and not has_connector(pipe.spark):
        pytest.skip("Spark's Kafka connector is missing: penstock spark jars")
    for partition, step in ((0, 1), (1, 11)):
        for second in range(0, 3_300, step):
            connection.send(ORDERS, order("ann", 1, second), partition=partition)
    connection.flush(timeout_s=30)
    rows = pipe.read(ORDERS, max_records_per_batch=600, engine=engine)
    on_time = rows.withWatermark("at", "1 minute")
    pipe.write(on_time.groupBy(window("at", "10 seconds")).count(), "counts", name="counts")
    pipe.run(once=True)
    progress = pipe.progress()["counts"]
    assert progress.batch_id >= 5
    assert (progress.rows_read, progress.rows_late) == (3_600, 0)


def test_keys_of_results_are_those_that_were_asked_for(pipe: Pipeline, connection: ps.Connection) -> None:
    send(connection, order("ann", 1, 0), order("bob", 2, 0))
    pipe.write(pipe.read(ORDERS).select("customer", "amount"), "amounts", key="customer")
    pipe.run(once=True)
    found = {record.key: json.loads(record.value or b"")["amount"] for record in connection.read("amounts")}
    assert found == {b"ann": 1, b"bob": 2}


def test_results_that_change_leave_by_the_same_door(pipe: Pipeline, connection: ps.Connection) -> None:
    send(connection, order("ann", 1, 0), order("bob", 2, 0))
    pipe.write(pipe.read(ORDERS).groupBy("customer").sum("amount"), "totals", key="customer")
    pipe.run(once=True)
    send(connection, order("ann", 5, 0))
    program = again(pipe)
    program.write(program.read(ORDERS).groupBy("customer").sum("amount"), "totals", key="customer")
    program.run(once=True)
    program.close()
    found = [(row["customer"], row["sum(amount)"]) for row in values(connection, "totals")]
    assert sorted(found[:2]) == [("ann", 1), ("bob", 2)]
    assert found[2:] == [("ann", 6)]


def test_a_declared_topic_that_does_not_exist_yet_is_created_and_one_that_is_only_named_is_not(
    pipe: Pipeline, connection: ps.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    declared = ps.Topic("declared", Amount, partitions=3)
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        for _ in range(2):
            assert pipe.read(declared).isStreaming
    assert len(connection.admin().partitions_of("declared")) == 3
    assert caplog.text.count("topic declared did not exist: pipeline usage created it") == 1
    with pytest.raises(UnknownTopicError, match="named"):
        pipe.read("named")
    assert "named" not in connection.topics()


def test_one_query_serves_several_places(pipe: Pipeline, connection: ps.Connection) -> None:
    seen: list[tuple[int, int]] = []
    send(connection, *(order("ann", n, 0) for n in range(20)))
    pipe.write(
        pipe.read(ORDERS).select("amount"),
        "first",
        "second",
        lambda frame, batch: seen.append((batch, frame.count())),
    )
    pipe.run(once=True)
    for topic in ("first", "second"):
        assert sorted(row["amount"] for row in values(connection, topic)) == list(range(20))
    assert sum(rows for _, rows in seen) == 20
    assert pipe.progress()["first"].rows_read == 20
    assert pipe.progress()["first"].state == "finished"


def test_what_cannot_be_decoded_waits_in_the_dead_letters(pipe: Pipeline, connection: ps.Connection) -> None:
    send(connection, order("ann", 1, 0))
    connection.send("orders", b"{no json", key=b"bad")
    connection.send("orders", b'{"customer": "bob", "amount": "many", "at": "2026-01-01T12:00:00Z"}', key=b"wrong")
    send(connection, order("ann", 2, 0))
    pipe.write(pipe.read(ORDERS).select("amount"), "amounts")
    pipe.run(once=True)
    assert sorted(row["amount"] for row in values(connection, "amounts")) == [1, 2]
    letters = ps.open_dead_letters("orders.dlq", connection)
    found = {letter.record.key: letter for letter in letters.browse(ps.DeadLetterFilter())}
    letters.close()
    assert found.keys() == {b"bad", b"wrong"}
    assert found[b"bad"].record.value == b"{no json"
    assert found[b"bad"].group == "usage"
    assert pipe.undecodable() == {"orders": 2}
    assert all(letter.record.topic == "orders" for letter in found.values())


def test_rows_that_a_table_refuses_wait_in_the_dead_letters_of_the_topic_that_they_were_made_from(
    pipe: Pipeline, connection: ps.Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(connection, order("ann", 1, 0), order("", 2, 0), order("bob", 3, 0))
    target = SqlTable(f"sqlite:{tmp_path / 'spend.db'}", "spend", key="customer")
    rows = pipe.read(ORDERS).select(F.nullif(F.col("customer"), F.lit("")).alias("customer"), "amount")
    pipe.write(rows, target)
    pipe.run(once=True)
    with contextlib.closing(sqlite3.connect(tmp_path / "spend.db")) as database:
        assert sorted(database.execute("SELECT customer, amount FROM spend")) == [("ann", 1), ("bob", 3)]
    progress = pipe.progress()["spend"]
    assert (progress.rows_read, progress.rows_written, progress.rows_refused) == (3, 2, 1)
    assert find_pipelines(Path(pipe.folder.path).parent)["usage"].queries[0].rows_refused == 1
    with contextlib.closing(ps.open_dead_letters("orders.dlq", connection)) as letters:
        (letter,) = letters.browse(ps.DeadLetterFilter(group="usage"))
    assert letter.record.value == b'{"customer":null,"amount":2}'
    assert letter.error == "DeliveryError: table spend: key column `customer` is null"
    assert dict(letter.record.headers)["penstock-query"] == b"usage.spend"
    assert pipe.undecodable() == {"orders": 0}, "it was decoded"
    assert "go to the dead letters in orders.dlq" in caplog.text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_typed", [True, False])
def test_without_dead_letters_a_row_that_a_table_refuses_fails_the_query(
    pipe: Pipeline, connection: ps.Connection, tmp_path: Path, is_typed: bool
) -> None:
    send(connection, order("ann", 1, 0))
    records = pipe.read(ORDERS, dead_letters=None) if is_typed else pipe.read("orders")
    target = SqlTable(f"sqlite:{tmp_path / 'spend.db'}", "spend", key="customer")
    pipe.write(records.select(F.lit(None).cast("string").alias("customer")), target, restart=Restart(attempts=0))
    with pytest.raises(DeliveryError, match="no value in 'customer'"):
        pipe.run(once=True)


def test_late_rows_go_aside_once_and_none_is_lost(pipe: Pipeline, connection: ps.Connection) -> None:
    def run_once() -> int:
        program = again(pipe)
        rows = program.read(ORDERS, max_records_per_batch=4)
        on_time = program.on_time(rows, "at", window="10 seconds", grace="5 seconds", late="orders.late")
        program.write(on_time.groupBy(window("at", "10 seconds")).sum("amount"), "sums")
        program.run(once=True)
        late = program.progress()["sums"].rows_late
        program.close()
        return late

    send(connection, *(order("ann", 1, second) for second in (1, 2, 30, 31)))
    assert run_once() == 0
    send(connection, *(order("ann", amount, second) for amount, second in ((10, 3), (20, 28), (40, 33), (80, 4))))
    assert run_once() == 2
    send(connection, order("the end", 0, 900))
    send(connection, order("after the end", 0, 901))
    run_once()
    late = [(row["customer"], row["amount"]) for row in values(connection, "orders.late")]
    assert sorted(late) == [("ann", 10), ("ann", 80)]
    sums = sorted(row["sum(amount)"] for row in values(connection, "sums"))
    assert sums == sorted([1 + 1, 20, 1 + 1 + 40])


def test_stages_through_a_topic_follow_each_other_in_a_run_that_ends(pipe: Pipeline, connection: ps.Connection) -> None:
    send(connection, *(order(f"customer-{n % 3}", n, 0) for n in range(30)))
    pipe.write(pipe.read(ORDERS).select("customer", "amount"), ps.Topic("amounts", Amount), partitions=1)
    pipe.write(pipe.read(ps.Topic("amounts", Amount)).groupBy("customer").sum("amount"), "sums", key="customer")
    pipe.run(once=True)
    found = {row["customer"]: row["sum(amount)"] for row in values(connection, "sums")}
    assert found == {f"customer-{n}": sum(range(n, 30, 3)) for n in range(3)}


def test_it_runs_in_the_background_until_it_is_stopped(pipe: Pipeline, connection: ps.Connection) -> None:
    connection.create_topic("amounts", 1)
    pipe.write(pipe.read(ORDERS).select("amount"), "amounts")
    pipe.start()
    assert not pipe.wait(0.0)
    send(connection, *(order("ann", n, 0) for n in range(50)))
    with connection.read("amounts", follow=True, limit=50, timeout_s=60) as reader:
        assert sorted(json.loads(record.value or b"")["amount"] for record in reader) == list(range(50))
    pipe.stop()
    assert pipe.wait(0.0)
    assert pipe.progress()["amounts"].state == "stopped"
    send(connection, order("ann", 50, 0))
    program = again(pipe)
    program.write(program.read(ORDERS).select("amount"), "amounts")
    program.run(once=True)
    program.close()
    assert sorted(row["amount"] for row in values(connection, "amounts")) == list(range(51))


def test_a_query_that_fails_is_started_again_and_goes_on(pipe: Pipeline, connection: ps.Connection) -> None:
    failures = [StoreUnavailableError("the store is away"), OSError("the disk is full")]
    seen: list[int] = []

    def moody(frame: DataFrame, batch: int) -> None:
        if failures:
            raise failures.pop()
        seen.extend(row.amount for row in frame.collect())

    send(connection, order("ann", 1, 0), order("ann", 2, 0))
    pipe.write(
        pipe.read(ORDERS).select("amount"),
        moody,
        name="moody",
        restart=Restart(attempts=2, first_delay_s=0.01, max_delay_s=0.02),
    )
    pipe.run(once=True)
    assert sorted(seen) == [1, 2]
    assert pipe.progress()["moody"].restarts == 2


def test_a_query_that_fails_too_often_ends_the_pipeline_with_the_reason(
    pipe: Pipeline, connection: ps.Connection
) -> None:
    def broken(frame: DataFrame, batch: int) -> None:
        raise ZeroDivisionError("never")

    send(connection, order("ann", 1, 0))
    quick = Restart(attempts=1, first_delay_s=0.01, max_delay_s=0.02)
    pipe.write(pipe.read(ORDERS), broken, name="broken", restart=quick)
    with pytest.raises(PipelineError, match=r"'broken' of pipeline 'usage' failed after 2 attempts: .*never") as failed:
        pipe.run(once=True)
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    assert pipe.progress()["broken"].state == "failed"


@pytest.mark.sampled(1)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("late", [None, "late"])
def test_a_run_killed_between_delivery_and_commit_is_taken_up_by_the_next_without_a_failure(
    pipe: Pipeline, connection: ps.Connection, monkeypatch: pytest.MonkeyPatch, late: str | None
) -> None:
    def run(pipeline: Pipeline) -> None:
        with pipeline:
            rows = pipeline.on_time(pipeline.read(ORDERS), "at", grace="1 minute", late=late)
            pipeline.write(rows.groupBy("customer").sum("amount"), "spent", key="customer")
            pipeline.run(once=True)

    send(connection, order("ann", 1, 0))
    run(again(pipe, attempts=3))
    send(connection, order("ann", 2, 0), order("bob", 5, 0))

    def die(self: RunningQuery, outcome: BatchOutcome) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(RunningQuery, "_delivered", die)
        with pytest.raises(PipelineError, match="killed"):
            run(again(pipe))
    send(connection, order("ann", 4, 0))
    last = again(pipe, attempts=3)
    run(last)
    assert "STATE_STORE_COMMIT_VALIDATION_FAILED" not in (last.progress()["spent"].error or "")
    spent = [(row["customer"], row["sum(amount)"]) for row in values(connection, "spent")]
    assert sorted(spent) == [("ann", 1), ("ann", 3), ("ann", 7), ("bob", 5)]


def test_what_comes_too_late_for_some_of_its_windows_is_among_the_late_rows_with_those_windows(
    pipe: Pipeline, connection: ps.Connection
) -> None:
    for batch in ([order("ann", 1, 0), order("bob", 2, 100)], [order("cem", 4, 85), order("dan", 8, 10)]):
        send(connection, *batch)
        with again(pipe, attempts=3) as program:
            rows = program.on_time(
                program.read(ORDERS),
                "at",
                grace="1 second",
                window="20 seconds",
                slide="10 seconds",
                late="orders.late",
            )
            program.write(rows.groupBy(window("at", "20 seconds", "10 seconds")).sum("amount"), "spend", mode="update")
            program.run(once=True)
            assert program.progress()["spend"].rows_late == (0 if batch[0].customer == "ann" else 2)

    def moment(text: str) -> float:
        return (datetime.datetime.fromisoformat(text) - MINUTE).total_seconds()

    late = {row["customer"]: row["late_windows"] for row in values(connection, "orders.late")}
    ends = {customer: [moment(each["end"]) for each in missed] for customer, missed in late.items()}
    # The watermark was 99 when the second batch came: the windows up to 90 had been given out, and that to 100 had not.
    assert ends == {"cem": [90], "dan": [20, 30]}
    spent = [(moment(row["window"]["end"]), row["sum(amount)"]) for row in values(connection, "spend")]
    assert sorted(spent) == [(10, 1), (20, 1), (100, 4), (110, 2), (120, 2)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reads", ["read", "table"])
def test_without_dead_letters_what_cannot_be_decoded_fails_the_query(
    pipe: Pipeline, connection: ps.Connection, reads: str
) -> None:
    send(connection, order("ann", 1, 0))
    connection.send("customers", b"no JSON", key="ann").result(30)
    customers = ps.Topic("customers", Amount)
    if reads == "read":
        frame = pipe.read(customers, dead_letters=None).select("customer")
    else:
        frame = pipe.read(ORDERS).select("customer").join(pipe.table(customers, dead_letters=False), "customer", "left")
    pipe.write(frame.select("customer"), "names")
    with pytest.raises(PipelineError, match=r"customers.* cannot be decoded, and there are no dead letters"):
        pipe.run(once=True)
    assert pipe.undecodable() == ({"orders": 0} if reads == "table" else {})
    assert "customers.dlq" not in connection.topics()


def test_a_pipeline_runs_once_at_a_time(pipe: Pipeline, connection: ps.Connection) -> None:
    pipe.write(pipe.read(ORDERS).select("amount"), "amounts")
    pipe.start()
    second = again(pipe)
    second.write(second.read(ORDERS).select("amount"), "amounts")
    with pytest.raises(PipelineRunningError, match="'usage' is already running"):
        second.run(once=True)
    with pytest.raises(PipelineError, match="is already running"):
        pipe.start()
    second.close()
    pipe.stop()


def test_a_change_that_its_state_cannot_survive_is_refused_and_named(pipe: Pipeline, connection: ps.Connection) -> None:
    def run(pipeline: Pipeline, key: Column, result: Column) -> None:
        with pipeline:
            pipeline.write(pipeline.read(ORDERS).groupBy(key.alias("of")).agg(result.alias("result")), "results")
            pipeline.run(once=True)

    send(connection, order("ann", 1, 0))
    run(pipe, F.col("customer"), F.sum("amount"))
    with pytest.raises(CheckpointMismatchError, match=r"aggregate sum\(amount\) became max\(amount\).*--reprocess"):
        run(again(pipe), F.col("customer"), F.max("amount"))
    with pytest.raises(CheckpointMismatchError, match=r"grouping key customer became .*substring"):
        run(again(pipe), F.substring("customer", 1, 1), F.sum("amount"))
    send(connection, order("ann", 2, 0))
    run(again(pipe), F.col("customer"), F.sum("amount"))
    assert [row["result"] for row in values(connection, "results")] == [1, 3]


def test_the_checkpoint_of_another_pipeline_is_refused(pipe: Pipeline, tmp_path: Path) -> None:
    folder = Path(pipe.folder.path)
    folder.mkdir(parents=True)
    (folder / "pipeline.json").write_text('{"format": 1, "pipeline": "movers"}')
    pipe.write(pipe.read(ORDERS), "copies")
    with pytest.raises(CheckpointMismatchError, match="'movers'"):
        pipe.run(once=True)


def test_mistakes_are_told_where_they_are_made(pipe: Pipeline) -> None:
    orders = pipe.read(ORDERS)
    with pytest.raises(ConfigError, match="write needs a target"):
        pipe.write(orders)
    with pytest.raises(ConfigError, match="is not streaming"):
        pipe.write(pipe.spark.range(3), "x")
    with pytest.raises(SchemaMismatchError, match="customer"):
        pipe.write(orders.select("amount"), ps.Topic("copies", Order))
    with pytest.raises(GuaranteeError, match="at-least-once"):
        pipe.write(orders.select("amount"), "x", trigger=RealTime())
    with pytest.raises(ConfigError, match="trigger"):
        pipe.write(orders, "x", trigger=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="append"):
        pipe.write(orders.groupBy("customer").count(), "x", mode="append")
    pipe.write(orders.select("amount"), "x")
    with pytest.raises(ConfigError, match="already exists"):
        pipe.write(orders.select("amount"), "x")
    with pytest.raises(ConfigError, match="engine"):
        Pipeline("other", pipe.url, engine="fast")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no queries"):
        again(pipe, "other").run()
    with pytest.raises(ConfigError, match="would stay empty"):
        pipe.read("orders", dead_letters="x.dlq")
    with pytest.raises(PipelineError, match="not started"):
        pipe.wait()
