"""Topics as targets: a batch counts once, whatever happens between staging it and hearing that it was committed."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock
from penstock import Connection, Topic
from penstock.errors import (
    CheckpointMismatchError,
    ConfigError,
    DeliveryError,
    FencedError,
    GuaranteeError,
    SchemaMismatchError,
    TransactionLostError,
)
from penstock.producing.partitioners import partition_of_key
from penstock.spark import TopicTarget
from penstock.spark.sink import staging as staged_module
from penstock.spark.sink.staging import StagingFolder
from penstock.spark.sink.target import Delivered, Delivery, QueryIdentity, Target
from penstock.spark.sink.topic import IDEMPOTENCY_KEY_HEADER
from penstock.spark.values.columns import WRITTEN
from penstock.streams.kafka.producing.transactions import TransactionalProducer
from tests.spark.sink.frames import numbered, numbers_in, once_each


class Killed(BaseException):
    """Stands for the end of the driver's process: nothing after it happens."""


@pytest.fixture
def open_target(identity: QueryIdentity) -> Iterator[Callable[[Target], Delivery]]:
    """Opens a target as another run of the same query, and closes it in the end."""
    opened: list[Delivery] = []

    def open_one(target: Target) -> Delivery:
        opened.append(target.open(identity))
        return opened[-1]

    yield open_one
    for delivery in opened:
        delivery.close()


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bool], None]:
    """Has the process die at a step of a transaction: before it is done, or right after."""

    def arrange(step: str, after: bool) -> None:
        real = getattr(TransactionalProducer, step)

        def die(self: TransactionalProducer, *given: Any, **more: Any) -> None:
            monkeypatch.undo()
            # A dead process says no goodbye: what is open stays open.
            monkeypatch.setattr(TransactionalProducer, "abort", lambda _: None)
            if after:
                real(self, *given, **more)
            raise Killed

        monkeypatch.setattr(TransactionalProducer, step, die)

    return arrange


def test_rows_are_records_in_the_partitions_of_their_keys(
    spark: SparkSession, url: str, topic: str, sink_connection: Connection, open_target: Callable[[Target], Delivery]
) -> None:
    delivery = open_target(TopicTarget(url, topic, partitions=3))
    assert delivery.deliver(numbered(spark, 0, 100), 0) == Delivered(100)
    found = list(sink_connection.read(topic))
    assert {int(record.value or b"") for record in found} == set(range(100))
    assert all(record.partition == partition_of_key(record.key or b"", 3) for record in found)


def test_a_declared_topic_is_created_with_its_partitions(
    spark: SparkSession, url: str, topic: str, sink_connection: Connection, open_target: Callable[[Target], Delivery]
) -> None:
    delivery = open_target(TopicTarget(url, Topic(topic, str, partitions=3)))
    assert delivery.deliver(numbered(spark, 0, 10), 0) == Delivered(10)
    assert len(sink_connection.open_topic(topic).partitions()) == 3


def test_everything_about_a_record_is_kept(
    spark: SparkSession, url: str, topic: str, sink_connection: Connection, open_target: Callable[[Target], Delivery]
) -> None:
    when = datetime.datetime(2025, 3, 1, 12, tzinfo=datetime.UTC)
    row = (b"k", b"v", [("trace", b"1"), ("empty", None)], None, 1, when)
    nothing = (None, None, None, None, None, None)
    delivery = open_target(TopicTarget(url, topic, partitions=2))
    delivery.deliver(spark.createDataFrame([row, nothing], WRITTEN), 0)
    first, second = sorted(sink_connection.read(topic), key=lambda record: record.key is None)
    assert (first.key, first.value, first.partition, first.timestamp) == (b"k", b"v", 1, when)
    assert first.headers == (("trace", b"1"), ("empty", None))
    assert (second.key, second.value, second.headers) == (None, None, ())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("step", "after"),
    [
        ("begin", False),
        ("append_rows", False),
        ("append_rows", True),
        ("produce", True),
        ("commit", False),
        ("commit", True),
    ],
)
def test_a_batch_counts_once_wherever_the_driver_dies(
    spark: SparkSession,
    url: str,
    topic: str,
    sink_connection: Connection,
    open_target: Callable[[Target], Delivery],
    dying: Callable[[str, bool], None],
    step: str,
    after: bool,
) -> None:
    target = TopicTarget(url, topic, partitions=2)
    first = open_target(target)
    first.deliver(numbered(spark, 0, 10), 0)
    dying(step, after)
    with pytest.raises(Killed):
        first.deliver(numbered(spark, 10, 20), 1)
    second = open_target(target)
    committed = (step, after) == ("commit", True)
    assert second.deliver(numbered(spark, 10, 20, partitions=1), 1) == Delivered(10, repeated=committed)
    second.deliver(numbered(spark, 20, 30), 2)
    assert numbers_in(sink_connection, topic) == once_each(0, 30)


def test_another_query_is_not_held_up_by_a_driver_that_died_before_its_commit(
    spark: SparkSession,
    url: str,
    topic: str,
    identity: QueryIdentity,
    sink_connection: Connection,
    open_target: Callable[[Target], Delivery],
    dying: Callable[[str, bool], None],
) -> None:
    dead = open_target(TopicTarget(url, topic))
    dying("produce", True)
    with pytest.raises(Killed):
        dead.deliver(numbered(spark, 0, 10), 0)
    other = TopicTarget(url, f"{topic}-other").open(replace(identity, id=f"{identity.id}-other"))
    try:
        other.deliver(numbered(spark, 0, 10), 0)
    finally:
        other.close()
    assert numbers_in(sink_connection, f"{topic}-other") == once_each(0, 10)
    assert not numbers_in(sink_connection, topic)


def test_a_commit_that_was_not_answered_is_looked_up_and_not_done_again(
    spark: SparkSession,
    url: str,
    topic: str,
    sink_connection: Connection,
    open_target: Callable[[Target], Delivery],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delivery = open_target(TopicTarget(url, topic))
    commit = TransactionalProducer.commit

    def unanswered(self: TransactionalProducer) -> None:
        monkeypatch.undo()
        commit(self)
        raise TransactionLostError("the answer was lost")

    monkeypatch.setattr(TransactionalProducer, "commit", unanswered)
    assert delivery.deliver(numbered(spark, 0, 10), 0) == Delivered(10)
    delivery.deliver(numbered(spark, 10, 20), 1)
    assert numbers_in(sink_connection, topic) == once_each(0, 20)


def test_an_older_run_is_fenced_and_the_newer_one_goes_on(
    spark: SparkSession, url: str, topic: str, sink_connection: Connection, open_target: Callable[[Target], Delivery]
) -> None:
    target = TopicTarget(url, topic)
    older = open_target(target)
    older.deliver(numbered(spark, 0, 10), 0)
    newer = open_target(target)
    with pytest.raises(FencedError, match="newer run"):
        older.deliver(numbered(spark, 10, 20), 1)
    newer.deliver(numbered(spark, 10, 20), 1)
    with pytest.raises(FencedError):
        older.deliver(numbered(spark, 20, 30), 2)
    newer.deliver(numbered(spark, 20, 30), 2)
    assert numbers_in(sink_connection, topic) == once_each(0, 30)


def test_a_checkpoint_older_than_what_was_delivered_is_refused(
    spark: SparkSession, url: str, topic: str, open_target: Callable[[Target], Delivery]
) -> None:
    delivery = open_target(TopicTarget(url, topic))
    delivery.deliver(numbered(spark, 0, 1), 5)
    assert delivery.deliver(numbered(spark, 0, 1), 5).repeated
    with pytest.raises(CheckpointMismatchError, match="batch 4 was computed for"):
        delivery.deliver(numbered(spark, 0, 1), 4)


def test_large_batches_go_through_files_of_which_none_is_left(
    spark: SparkSession,
    url: str,
    topic: str,
    identity: QueryIdentity,
    sink_connection: Connection,
    open_target: Callable[[Target], Delivery],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_files = functools.partial(staged_module.stage, inline_bytes=1_000)
    monkeypatch.setattr("penstock.spark.sink.topic_delivery.stage", in_files)
    leftover = Path(identity.staging) / "7" / "partition-00000-attempt-0.arrow"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"torn")
    delivery = open_target(TopicTarget(url, topic, partitions=2))
    assert not leftover.exists()
    read: list[str] = []
    open_file = StagingFolder.read

    def noting(self: StagingFolder, batch_id: int, name: str, host: str) -> Any:
        read.append(name)
        return open_file(self, batch_id, name, host)

    monkeypatch.setattr(StagingFolder, "read", noting)
    assert delivery.deliver(numbered(spark, 0, 2_000), 0) == Delivered(2_000)
    assert len(read) == 2
    assert numbers_in(sink_connection, topic) == once_each(0, 2_000)
    assert not list(Path(identity.staging).rglob("*.arrow"))


def test_a_record_that_can_never_be_stored_is_named_and_its_batch_is_not_seen(
    spark: SparkSession, url: str, topic: str, sink_connection: Connection, open_target: Callable[[Target], Delivery]
) -> None:
    sink_connection.create_topic(topic, 1, {"max.message.bytes": "2000"})
    delivery = open_target(TopicTarget(url, topic))
    big = numbered(spark, 0, 5).withColumn("value", F.repeat(F.lit("x"), F.lit(5_000)))
    with pytest.raises(DeliveryError, match=r"max\.message\.bytes"):
        delivery.deliver(big, 0)
    delivery.deliver(numbered(spark, 0, 5), 0)
    assert numbers_in(sink_connection, topic) == once_each(0, 5)


def test_a_partition_that_is_not_there_is_named(
    spark: SparkSession, url: str, topic: str, open_target: Callable[[Target], Delivery]
) -> None:
    delivery = open_target(TopicTarget(url, topic, partitions=1))
    with pytest.raises(DeliveryError, match=r"[Uu]nknown partition|no such partition"):
        delivery.deliver(numbered(spark, 0, 5).withColumn("partition", F.lit(7)), 0)


def test_rows_may_name_their_topics_and_missing_ones_are_created(
    spark: SparkSession, url: str, topic: str, sink_connection: Connection, open_target: Callable[[Target], Delivery]
) -> None:
    frame = numbered(spark, 0, 10).withColumn("topic", F.concat(F.lit(f"{topic}-"), F.col("value").cast("int") % 2))
    target = TopicTarget(url, None)
    target.check(frame.schema, "append")
    open_target(target).deliver(frame, 0)
    assert set(numbers_in(sink_connection, f"{topic}-0")) == {0, 2, 4, 6, 8}
    assert set(numbers_in(sink_connection, f"{topic}-1")) == {1, 3, 5, 7, 9}


def test_at_least_once_writes_from_the_tasks(
    spark: SparkSession, url: str, topic: str, sink_connection: Connection, open_target: Callable[[Target], Delivery]
) -> None:
    delivery = open_target(TopicTarget(url, topic, partitions=2, guarantee="at-least-once"))  # type: ignore[arg-type]
    assert delivery.deliver(numbered(spark, 0, 1_000), 0) == Delivered(1_000)
    delivery.deliver(numbered(spark, 0, 1_000), 0)
    assert set(numbers_in(sink_connection, topic).values()) == {2}


def test_consumers_with_the_declared_key_take_each_row_once(
    spark: SparkSession, tmp_path: Path, url: str, topic: str, open_target: Callable[[Target], Delivery]
) -> None:
    target = TopicTarget(url, topic, guarantee="at-least-once", idempotency_key="order")  # type: ignore[arg-type]
    frame = spark.range(20).select(F.col("id").alias("order"), F.lit("paid").alias("state"))
    target.check(frame.schema, "append")
    delivery = open_target(target)
    delivery.deliver(frame, 0)
    delivery.deliver(frame, 0)
    seen: list[Any] = []
    app = penstock.App(url, group="once", checkpoints=f"sqlite:{tmp_path / 'checkpoints.db'}")
    orders = Topic(topic, dict, serde="json")
    app.handle(orders, idempotency_key=f"header:{IDEMPOTENCY_KEY_HEADER}", end="latest")(seen.append)
    app.run()
    assert sorted(value["order"] for value in seen) == list(range(20))


@dataclass
class Spend:
    customer: str
    amount: int


def test_typed_topics_are_written_as_the_library_writes_them(
    spark: SparkSession, url: str, topic: str, sink_connection: Connection, open_target: Callable[[Target], Delivery]
) -> None:
    spends: Topic[Spend] = Topic(topic, Spend, key=lambda spend: spend.customer)
    target = TopicTarget(url, spends)
    frame = spark.createDataFrame([("ann", 3), ("bob", 4)], "customer string, amount bigint")
    target.check(frame.schema, "update")
    open_target(target).deliver(frame, 0)
    found = {record.key: spends.decode(record.value) for record in sink_connection.read(topic)}
    assert found == {b"ann": Spend("ann", 3), b"bob": Spend("bob", 4)}
    with pytest.raises(SchemaMismatchError, match="amount"):
        target.check(frame.drop("amount").schema, "append")


def test_a_stream_without_transactions_takes_rows_at_least_once_only(
    spark: SparkSession, topic: str, open_target: Callable[[Target], Delivery]
) -> None:
    with pytest.raises(GuaranteeError, match="transactions"):
        TopicTarget("memory:sink", topic)
    with penstock.connect("memory:sink") as connection:
        target = TopicTarget("memory:sink", topic, guarantee="at-least-once")  # type: ignore[arg-type]
        assert open_target(target).deliver(numbered(spark, 0, 10), 0) == Delivered(10)
        assert numbers_in(connection, topic) == once_each(0, 10)


def test_what_cannot_be_is_refused_when_the_target_is_made(url: str, topic: str, spark: SparkSession) -> None:
    frame = numbered(spark, 0, 1)
    with pytest.raises(GuaranteeError, match="at-most-once"):
        TopicTarget(url, topic, guarantee="at-most-once")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="partitions"):
        TopicTarget(url, topic, partitions=0)
    with pytest.raises(ConfigError, match="transaction_timeout_s"):
        TopicTarget(url, topic, transaction_timeout_s=0)
    with pytest.raises(ConfigError, match="compacted"):
        TopicTarget(url, topic, compact=True).check(frame.drop("key").schema, "append")
    with pytest.raises(SchemaMismatchError, match="no column 'x' for the key"):
        TopicTarget(url, topic, key="x").check(frame.schema, "append")
    with pytest.raises(SchemaMismatchError, match="no column 'x' for the idempotency key"):
        TopicTarget(url, topic, idempotency_key="x").check(frame.schema, "append")
    with pytest.raises(SchemaMismatchError, match="each row must be a record"):
        TopicTarget(url, None).check(frame.schema, "append")
