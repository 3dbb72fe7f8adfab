"""Real-time mode into a table of PostgreSQL: each row once, whatever is killed."""

from __future__ import annotations

import datetime
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps
from penstock.errors import CheckpointMismatchError, ConfigError
from penstock.spark import Pipeline, RealTime, SqlTable
from penstock.spark.realtime.tables import java_url
from penstock.spark.sessions.jars import connector_jars
from tests.consuming.eventually import wait_until
from tests.postgres import shared_postgres
from tests.sampling import times
from tests.seeds import seed_of
from tests.spark.killing import run_until

WAIT_S = 60
AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)


@dataclass
class Payment:
    card: str
    amount: int


PAYMENTS = ps.Topic("payments", Payment, key=lambda payment: payment.card)


@pytest.fixture
def database() -> str:
    if not any(jar.name.startswith("postgresql-") for jar in connector_jars()):
        pytest.skip("PostgreSQL's Java driver is missing: run `penstock spark jars --force` (or `make parts`)")
    return shared_postgres().fresh_database()


@pytest.fixture
def pipe(real_time: SparkSession, log_url: str, connection: ps.Connection) -> Iterator[Pipeline]:
    for topic in ("payments", "payments.dlq"):
        connection.create_topic(topic, 1)
    with Pipeline("payments", log_url, spark=real_time) as pipeline:
        yield pipeline


def rows(database: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        if connection.execute("SELECT to_regclass('results')").fetchone() == (None,):
            return []
        return connection.execute(query.encode()).fetchall()


def test_rows_are_in_the_table_before_their_batch_ends_and_once_after_a_restart(
    pipe: Pipeline, connection: ps.Connection, database: str, log_url: str, real_time: SparkSession
) -> None:
    def write(pipeline: Pipeline) -> None:
        large = pipeline.read(PAYMENTS, real_time=True).where("amount > 100").select("card", "amount")
        pipeline.write(large, SqlTable(database, "results"), name="large", trigger=RealTime("5 minutes"))

    write(pipe)
    pipe.start()
    for amount in (50, 150, 250):
        connection.send(PAYMENTS, Payment("ann", amount))
    select = "SELECT card, amount FROM results ORDER BY amount"
    wait_until(lambda: rows(database, select) == [("ann", 150), ("ann", 250)], WAIT_S)
    pipe.stop(drain_s=0)
    assert pipe.progress()["large"].batch_id == -1, "the batch has not ended, so that all of it comes again"
    connection.send(PAYMENTS, Payment("bob", 350)).result(timeout=WAIT_S)
    with Pipeline("payments", log_url, spark=real_time) as again:
        write(again)
        again.run(once=True, quiet=True)
    assert rows(database, select) == [("ann", 150), ("ann", 250), ("bob", 350)]


def test_a_row_replaces_that_with_its_key_and_values_of_every_type_arrive(
    pipe: Pipeline, connection: ps.Connection, database: str
) -> None:
    read = pipe.read(PAYMENTS, real_time=True)
    values = {
        "flag": F.lit(True),
        "ratio": F.lit(float("nan")),
        "price": F.lit(Decimal("12.345")),
        "at": F.lit(AT),
        "day": F.lit(AT.date()),
        "raw": F.lit(bytearray(b"\x00\xff")),
        "tags": F.array(F.lit("a"), F.lit('"b"')),
        "text": F.lit("it's \\ ünï ❄"),
        "nothing": F.lit(None).cast("string"),
    }
    frame = read.select("card", "amount", *(column.alias(name) for name, column in values.items()))
    pipe.write(frame, SqlTable(database, "results", key="card"), name="last", trigger=RealTime())
    pipe.start()
    for amount in (1, 2, 3):
        connection.send(PAYMENTS, Payment("ann", amount))
    wait_until(lambda: [amount for (amount,) in rows(database, "SELECT amount FROM results")] == [3], WAIT_S)
    pipe.stop(drain_s=0)
    ((card, _, flag, ratio, price, at, day, raw, tags, text, nothing),) = rows(database, "SELECT * FROM results")
    assert (card, flag, str(ratio), price, day) == ("ann", True, "nan", Decimal("12.345"), AT.date())
    assert (at, raw, tags, text, nothing) == (AT, b"\x00\xff", ["a", '"b"'], "it's \\ ünï ❄", None)


def test_a_table_that_refuses_a_row_ends_the_query_and_nothing_is_lost(
    pipe: Pipeline, connection: ps.Connection, database: str
) -> None:
    with psycopg.connect(database) as session:
        session.execute("CREATE TABLE results (card text, amount bigint CHECK (amount < 100))")
    frame = pipe.read(PAYMENTS, real_time=True).select("card", F.col("amount").cast("long").alias("amount"))
    target = SqlTable(database, "results")
    pipe.write(frame, target, name="checked", trigger=RealTime("1 second"), restart=ps.spark.Restart(attempts=0))
    pipe.start()
    connection.send(PAYMENTS, Payment("ann", 5))
    wait_until(lambda: rows(database, "SELECT amount FROM results") == [(5,)], WAIT_S)
    connection.send(PAYMENTS, Payment("ann", 500)).result(timeout=WAIT_S)
    with pytest.raises(Exception, match=r"results_amount_check"):
        pipe.wait(timeout_s=WAIT_S)
    with psycopg.connect(database) as session:
        session.execute("ALTER TABLE results DROP CONSTRAINT results_amount_check")
    pipe.start(once=True)
    assert pipe.wait(timeout_s=WAIT_S)
    assert rows(database, "SELECT amount FROM results ORDER BY amount") == [(5,), (500,)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda frame: frame.groupBy("card").count(), "it shuffles rows or keeps state, so that"),
        (lambda frame: frame.where(F.rand() > 0.5).select("card"), "gives other values for the same row"),
        (lambda frame: frame.select("card", F.udf(lambda card: card)("card").alias("same")), "a function in Python"),
    ],
)
def test_what_cannot_be_written_once_is_refused_with_the_reason(
    change: Callable[[Any], Any], why: str, pipe: Pipeline, database: str
) -> None:
    frame = change(pipe.read(PAYMENTS, real_time=True))
    with pytest.raises(ConfigError, match=why):
        pipe.write(frame, SqlTable(database, "results", key="card"), trigger=RealTime())


def test_counts_are_written_at_least_once_by_their_key(
    pipe: Pipeline, connection: ps.Connection, database: str
) -> None:
    counts = pipe.read(PAYMENTS, real_time=True).groupBy("card").count()
    target = SqlTable(database, "results", key="card", guarantee="at-least-once")  # type: ignore[arg-type]
    pipe.write(counts, target, name="counts", trigger=RealTime("1 second"), mode="update")
    pipe.start()
    for number in range(10):
        connection.send(PAYMENTS, Payment("ann" if number % 2 else "bob", number))
    select = 'SELECT card, "count" FROM results ORDER BY card'
    wait_until(lambda: rows(database, select) == [("ann", 5), ("bob", 5)], WAIT_S)
    pipe.stop(drain_s=0)


def test_a_query_does_not_change_between_batches_and_real_time(
    pipe: Pipeline, connection: ps.Connection, database: str, log_url: str, real_time: SparkSession
) -> None:
    def run(pipeline: Pipeline, name: str, trigger: RealTime | None) -> None:
        frame = pipeline.read(PAYMENTS, real_time=trigger is not None, engine="native").select("card", "amount")
        pipeline.write(frame, SqlTable(database, "results"), name=name, trigger=trigger)
        pipeline.run(once=True, quiet=True)

    connection.send(PAYMENTS, Payment("ann", 1)).result(timeout=WAIT_S)
    run(pipe, "first-in-batches", None)
    with Pipeline("payments", log_url, spark=real_time) as other:
        run(other, "first-in-real-time", RealTime())
    connection.send(PAYMENTS, Payment("ann", 2)).result(timeout=WAIT_S)
    for name, trigger in (("first-in-batches", RealTime()), ("first-in-real-time", None)):
        with (
            Pipeline("payments", log_url, spark=real_time) as changed,
            pytest.raises(CheckpointMismatchError, match="rename the query to start over"),
        ):
            run(changed, name, trigger)
    assert rows(database, "SELECT count(*) FROM results") == [(2,)]


def test_urls_for_java() -> None:
    url, settings = java_url("postgresql://ann:p%40ss@db.example:5433/shop?sslmode=require&application_name=fraud")
    assert url == "jdbc:postgresql://db.example:5433/shop"
    assert (
        settings.items()
        >= {"user": "ann", "password": "p@ss", "sslmode": "require", "ApplicationName": "fraud"}.items()
    )
    assert java_url("postgresql://ann@[::1]/shop")[0] == "jdbc:postgresql://[::1]:5432/shop"
    with pytest.raises(ConfigError, match="one host of PostgreSQL by TCP"):
        java_url("postgresql://ann@a,b/shop")
    with pytest.raises(ConfigError, match="does not support the setting 'target_session_attrs'"):
        java_url("postgresql://ann@a/shop?target_session_attrs=read-write")


@pytest.mark.timeout(900)
def test_each_row_is_written_once_though_the_driver_is_killed(
    real_time: SparkSession, log_url: str, connection: ps.Connection, database: str, tmp_path: Path
) -> None:
    randomness = random.Random(seed_of())
    connection.create_topic("numbers", 2)
    sent = 0
    stop = threading.Event()

    def send() -> None:
        nonlocal sent
        while not stop.is_set():
            connection.send("numbers", str(sent), partition=sent % 2)
            sent += 1
            stop.wait(0.002)

    sender = threading.Thread(target=send)
    sender.start()
    program = str(Path(__file__).with_name("killed_program.py"))
    arguments = [program, log_url, database, str(tmp_path / "checkpoints")]

    def count() -> int:
        with psycopg.connect(database) as session:
            if session.execute("SELECT to_regclass('halves')").fetchone() == (None,):
                return 0
            ((found,),) = session.execute("SELECT count(*) FROM halves").fetchall()
            return int(found)

    try:
        for _ in range(times(2, 12)):
            enough = count() + randomness.randrange(200, 2_000)
            assert run_until(lambda: count() >= enough, arguments, tmp_path), "it was killed in the middle"  # noqa: B023
    finally:
        stop.set()
        sender.join()
    connection.flush(timeout_s=WAIT_S)
    run_until(None, [*arguments, "once"], tmp_path)
    with psycopg.connect(database) as session:
        found = Counter(session.execute("SELECT number, half FROM halves").fetchall())
    expected = {(number, half): 1 for number in range(sent) if number % 10 != 9 for half in ("left", "right")}
    assert found == expected
