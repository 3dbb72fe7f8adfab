"""Large batches, published by tasks in transactions that the driver commits: ADR 24, case by case.

A driver dies by an exception that nothing in the code catches; `test_kills` does the same by kill -9. Every test runs
on our broker, and on Apache Kafka with transaction version 2 and before it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock
from penstock import Connection
from penstock.errors import (
    ConfigError,
    DeliveryError,
    FencedError,
    PipelineError,
    TransactionAbortedError,
    TransactionLostError,
)
from penstock.spark import TopicTarget
from penstock.spark.sink import staging as staged_module
from penstock.spark.sink.publishing import Publisher, TaskTransaction
from penstock.spark.sink.staging import Part, StagingFolder
from penstock.spark.sink.target import Delivered, QueryIdentity
from penstock.spark.sink.task_transactions import Assignment, ParallelPublisher, TaskWriter, assigned
from penstock.spark.sink.topic_delivery import StagedRows, TransactionDelivery
from penstock.streams.kafka.producing.open_transactions import TransactionCoordinators
from penstock.streams.kafka.producing.transactions import TransactionalProducer
from penstock.streams.options import Options
from penstock.testing import TcpProxy
from tests.clients import wire
from tests.clients.waiting import eventually
from tests.servers import ApacheKafka, Penstock
from tests.spark.sink.frames import assert_numbers, numbered, numbers_in, once_each

QUICK: Final = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
SERVERS: Final = ("our broker", "Kafka, transaction version 2", "Kafka, transaction version 1")
_numbers = itertools.count(1)


class Killed(BaseException):
    """Stands for the end of the driver's process: nothing after it happens."""


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("server")
    if request.param == "our broker":
        running: Any = Penstock(folder, *itertools.chain(*(("--config", f"{k}={v}") for k, v in QUICK.items())))
    else:
        running = ApacheKafka(folder, QUICK, features={"transaction.version": int(request.param[-1])})
    with running:
        yield running


@pytest.fixture(scope="module")
def connection(server: Any) -> Iterator[Connection]:
    with penstock.connect(f"kafka://{server.bootstrap}") as connected:
        yield connected


@pytest.fixture
def coordinators(server: Any) -> Iterator[TransactionCoordinators]:
    asked = TransactionCoordinators(server.bootstrap, Options(), 30)
    yield asked
    asked.close()


@pytest.fixture(autouse=True)
def rows_are_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "penstock.spark.sink.topic_delivery.stage", functools.partial(staged_module.stage, inline_bytes=200)
    )


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the driver die at a call: before it is done, or right after; the first time, or a later one."""

    def arrange(owner: type, step: str, after: bool, times: int = 1) -> None:
        real = getattr(owner, step)
        calls = itertools.count(1)

        def die(self: Any, *given: Any, **more: Any) -> Any:
            if next(calls) < times:
                return real(self, *given, **more)
            # A dead process says no goodbye: what is open stays open.
            monkeypatch.setattr(TransactionalProducer, "abort", lambda _: None)
            monkeypatch.setattr(owner, step, real)
            if after:
                real(self, *given, **more)
            raise Killed

        monkeypatch.setattr(owner, step, die)

    return arrange


class Runs:
    """Runs of one query into one topic, all of whose batches are large."""

    def __init__(self, server: Any, folder: Path) -> None:
        number = next(_numbers)
        self.topic = f"bulk-{number}"
        self.url = f"kafka://{server.bootstrap}"
        self.identity = QueryIdentity("shop", "bulk", f"bulk-query-{number}/topic", str(folder / "staging"))
        self.ids = f"penstock.spark.{self.identity.id}.tasks."
        self.opened: list[TransactionDelivery] = []

    def open(self, **options: Any) -> TransactionDelivery:
        options = {"partitions": 2, "parallel_above_bytes": 0, **options}
        delivery = TopicTarget(self.url, self.topic, **options).open(self.identity)
        assert isinstance(delivery, TransactionDelivery)
        self.opened.append(delivery)
        return delivery

    def close(self) -> None:
        for delivery in self.opened:
            delivery.close()

    def staged_files(self) -> list[Path]:
        return list(Path(self.identity.staging).rglob("*.arrow"))


@pytest.fixture
def runs(server: Any, tmp_path: Path) -> Iterator[Runs]:
    started = Runs(server, tmp_path)
    yield started
    started.close()


def last_of(delivery: TransactionDelivery) -> Any:
    return delivery._publisher.last


def parallel_of(delivery: TransactionDelivery) -> ParallelPublisher:
    assert delivery._parallel is not None
    return delivery._parallel


def test_the_servers_are_what_they_are_called(server: Any, request: pytest.FixtureRequest) -> None:
    answer = wire.call(server, "api_versions", 3, client_software_name="test", client_software_version="1")
    found = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    name = request.node.callspec.params["server"]
    assert found.get("transaction.version") == (None if name == "our broker" else int(name[-1]))


def test_a_large_batch_is_written_by_tasks_and_leaves_nothing_behind(
    spark: SparkSession,
    runs: Runs,
    connection: Connection,
    coordinators: TransactionCoordinators,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    through_the_driver: list[int] = []
    real = StagedRows.__call__

    def counting(self: StagedRows) -> Iterator[Any]:
        rows = list(real(self))
        through_the_driver.append(len(rows))
        return iter(rows)

    monkeypatch.setattr(StagedRows, "__call__", counting)
    delivery = runs.open()
    assert delivery.deliver(numbered(spark, 0, 1_000, 4), 0) == Delivered(1_000)
    assert_numbers(connection, runs.topic, once_each(0, 1_000))
    assert through_the_driver == [0]
    assert last_of(delivery).batch == 0
    assert last_of(delivery).open == ()
    assert delivery.deliver(numbered(spark, 0, 1_000, 4), 0) == Delivered(1_000, repeated=True)
    delivery.deliver(numbered(spark, 1_000, 2_000, 4), 1)
    assert_numbers(connection, runs.topic, once_each(0, 2_000))
    assert not runs.staged_files()
    assert not coordinators.open_ids(runs.ids)


def test_rows_that_came_inline_are_published_with_the_mark(
    spark: SparkSession, runs: Runs, connection: Connection
) -> None:
    delivery = runs.open()
    frame = numbered(spark, 0, 3, 1).union(numbered(spark, 3, 1_000, 1))
    assert delivery.deliver(frame, 0) == Delivered(1_000)
    assert_numbers(connection, runs.topic, once_each(0, 1_000))


STEPS: Final = [
    ("the files are staged", (ParallelPublisher, "publish", False)),
    ("the tasks have written", (ParallelPublisher, "_written", True)),
    ("before the mark is committed", (TransactionalProducer, "commit", False)),
    ("the mark is committed", (TransactionalProducer, "commit", True)),
    ("no transaction is ended", (TransactionCoordinators, "commit", False)),
    ("one is ended", (TransactionCoordinators, "commit", True)),
    ("all but one are ended", (TransactionCoordinators, "commit", False, 4)),
    ("all are ended", (Publisher, "replace_open", False)),
    ("the end is confirmed", (Publisher, "replace_open", True)),
    ("before the files are deleted", (StagingFolder, "remove", False)),
    ("after the files are deleted", (StagingFolder, "remove", True)),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("step", [step for _, step in STEPS], ids=[name for name, _ in STEPS])
def test_a_batch_counts_once_wherever_the_driver_dies(
    spark: SparkSession,
    runs: Runs,
    connection: Connection,
    coordinators: TransactionCoordinators,
    dying: Callable[..., None],
    step: Any,
) -> None:
    first = runs.open()
    first.deliver(numbered(spark, 0, 400, 4), 0)
    dying(*step)
    with pytest.raises(Killed):
        first.deliver(numbered(spark, 400, 800, 4), 1)
    second = runs.open()
    assert not coordinators.open_ids(runs.ids), "whoever opens the target ends what is open"
    second.deliver(numbered(spark, 400, 800, 3), 1)
    second.deliver(numbered(spark, 800, 1_200, 4), 2)
    assert_numbers(connection, runs.topic, once_each(0, 1_200))
    assert not coordinators.open_ids(runs.ids)
    assert not runs.staged_files()


def _is_ended(coordinators: TransactionCoordinators, transactional_id: str) -> bool:
    return not coordinators.owner(transactional_id).is_open


def expire(coordinators: TransactionCoordinators, transactions: tuple[TaskTransaction, ...]) -> None:
    """Wait until the broker has aborted all of them."""
    for each in transactions:
        eventually(f"{each.id} is aborted", functools.partial(_is_ended, coordinators, each.id), 60)


@pytest.mark.parametrize("ended", [0, 2])
def test_rows_of_transactions_that_expire_after_the_mark_are_published_again(
    spark: SparkSession,
    runs: Runs,
    connection: Connection,
    coordinators: TransactionCoordinators,
    dying: Callable[..., None],
    ended: int,
) -> None:
    first = runs.open(transaction_timeout_s=6)
    dying(TransactionCoordinators, "commit", False, ended + 1)
    with pytest.raises(Killed):
        first.deliver(numbered(spark, 0, 400, 4), 0)
    listed = last_of(first).open
    assert len(listed) == 4
    expire(coordinators, listed)
    seen = numbers_in(connection, runs.topic)
    assert len(seen) == 100 * ended, "the broker has aborted what was not ended"
    second = runs.open()
    assert second.deliver(numbered(spark, 0, 400, 3), 0) == Delivered(400, repeated=True)
    assert_numbers(connection, runs.topic, once_each(0, 400))
    second.deliver(numbered(spark, 400, 800, 4), 1)
    assert_numbers(connection, runs.topic, once_each(0, 800))
    assert not runs.staged_files()


def test_a_staged_file_that_is_lost_before_its_transaction_expires_stops_the_query_until_it_is_restored(
    spark: SparkSession,
    runs: Runs,
    connection: Connection,
    coordinators: TransactionCoordinators,
    dying: Callable[..., None],
) -> None:
    first = runs.open(transaction_timeout_s=6)
    dying(TransactionCoordinators, "commit", False, 3)
    with pytest.raises(Killed):
        first.deliver(numbered(spark, 0, 400, 4), 0)
    listed = last_of(first).open
    expire(coordinators, listed)
    lost = next(path for path in runs.staged_files() if path.name == listed[3].files[0])
    backup = lost.rename(lost.with_suffix(".backup"))
    for _ in range(2):  # starting it again does not help, and loses nothing more
        again = runs.open()
        with pytest.raises(PipelineError, match=rf"2 of its 4 transactions.*{lost.name}\. Restore them from a backup"):
            again.deliver(numbered(spark, 0, 400, 4), 0)
        assert len(numbers_in(connection, runs.topic)) == 200
        again.close()
    backup.rename(lost)
    mended = runs.open()
    assert mended.deliver(numbered(spark, 0, 400, 4), 0) == Delivered(400, repeated=True)
    assert_numbers(connection, runs.topic, once_each(0, 400))


@pytest.mark.parametrize(
    ("owner", "step", "after"),
    [(ParallelPublisher, "_written", True), (Publisher, "replace_open", False), (Publisher, "replace_open", True)],
    ids=["before the new mark", "at the new mark", "after the new mark"],
)
def test_a_driver_that_dies_while_it_publishes_again_repeats_nothing(
    spark: SparkSession,
    runs: Runs,
    connection: Connection,
    coordinators: TransactionCoordinators,
    dying: Callable[..., None],
    owner: type,
    step: str,
    after: bool,
) -> None:
    first = runs.open(transaction_timeout_s=6)
    dying(TransactionCoordinators, "commit", False, 2)
    with pytest.raises(Killed):
        first.deliver(numbered(spark, 0, 400, 4), 0)
    expire(coordinators, last_of(first).open)
    second = runs.open()
    dying(owner, step, after)
    with pytest.raises(Killed):
        second.deliver(numbered(spark, 0, 400, 4), 0)
    third = runs.open()
    third.deliver(numbered(spark, 0, 400, 4), 0)
    third.deliver(numbered(spark, 400, 800, 4), 1)
    assert_numbers(connection, runs.topic, once_each(0, 800))
    assert not coordinators.open_ids(runs.ids)


def test_a_transaction_that_expires_before_its_end_is_published_again_by_the_same_driver(
    spark: SparkSession,
    runs: Runs,
    connection: Connection,
    coordinators: TransactionCoordinators,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = ParallelPublisher.finish
    first = runs.open(transaction_timeout_s=6)

    def late(self: ParallelPublisher, spark: SparkSession) -> None:
        monkeypatch.setattr(ParallelPublisher, "finish", real)
        expire(coordinators, last_of(first).open)
        real(self, spark)

    monkeypatch.setattr(ParallelPublisher, "finish", late)
    assert first.deliver(numbered(spark, 0, 400, 4), 0) == Delivered(400)
    assert_numbers(connection, runs.topic, once_each(0, 400))


def test_a_committed_transaction_whose_id_was_taken_since_is_not_repeated(
    spark: SparkSession,
    runs: Runs,
    connection: Connection,
    coordinators: TransactionCoordinators,
    dying: Callable[..., None],
) -> None:
    first = runs.open()
    dying(Publisher, "replace_open", False)
    with pytest.raises(Killed):
        first.deliver(numbered(spark, 0, 400, 4), 0)
    for each in last_of(first).open:
        coordinators.fence(each.id)
        assert not coordinators.commit(each.id, each.producer_id, each.epoch), "the coordinator has forgotten"
    second = runs.open()
    assert second.deliver(numbered(spark, 0, 400, 4), 0) == Delivered(400, repeated=True)
    assert_numbers(connection, runs.topic, once_each(0, 400))


def writer_of(delivery: TransactionDelivery, batch_id: int) -> TaskWriter:
    return replace(parallel_of(delivery)._writer, batch_id=batch_id)


def test_attempts_that_do_not_count_are_aborted(
    spark: SparkSession,
    runs: Runs,
    connection: Connection,
    coordinators: TransactionCoordinators,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A first attempt flushes, and its result is lost; Spark's second attempt counts."""
    delivery = runs.open()
    real = ParallelPublisher._written
    lost: list[Any] = []

    def with_lost_attempts(self: ParallelPublisher, spark: SparkSession, batch: int, tasks: list[Assignment]) -> Any:
        self._witnesses()  # their topic is there before tasks write to it
        lost.extend(writer_of(delivery, batch).write(each, f"{self._own_ids}{each.number}.7") for each in tasks)
        return real(self, spark, batch, tasks)

    monkeypatch.setattr(ParallelPublisher, "_written", with_lost_attempts)
    delivery.deliver(numbered(spark, 0, 400, 4), 0)
    assert len(lost) == 4
    assert not coordinators.open_ids(runs.ids)
    assert_numbers(connection, runs.topic, once_each(0, 400))


@pytest.mark.parametrize("moment", ["before the mark", "after the mark"])
def test_a_zombie_that_takes_the_id_of_an_attempt_that_counts_changes_nothing(
    spark: SparkSession,
    runs: Runs,
    connection: Connection,
    coordinators: TransactionCoordinators,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """It writes the same rows under the same transactional id, and leaves its own transaction open."""
    delivery = runs.open()
    owner, step = (ParallelPublisher, "finish") if moment == "after the mark" else (Publisher, "publish")
    real: Any = getattr(owner, step)
    written = ParallelPublisher._written
    results: list[TaskTransaction] = []
    zombies: list[TaskTransaction] = []

    def noting(self: ParallelPublisher, *given: Any) -> Any:
        found = written(self, *given)
        results.extend(found)
        return found

    def with_zombie(self: Any, *given: Any) -> Any:
        monkeypatch.undo()
        victim = results[1]
        outcome = writer_of(delivery, 0).write(Assignment(1, victim.files), victim.id)
        assert isinstance(outcome, TaskTransaction)
        zombies.append(outcome)
        return real(self, *given)

    monkeypatch.setattr(ParallelPublisher, "_written", noting)
    monkeypatch.setattr(owner, step, with_zombie)
    assert delivery.deliver(numbered(spark, 0, 400, 4), 0) == Delivered(400)
    assert zombies[0].epoch > results[1].epoch
    assert_numbers(connection, runs.topic, once_each(0, 400))
    assert not coordinators.open_ids(runs.ids)


def test_an_attempt_whose_id_is_taken_while_it_writes_does_not_report(
    spark: SparkSession,
    runs: Runs,
    coordinators: TransactionCoordinators,
    monkeypatch: pytest.MonkeyPatch,
    dying: Callable[..., None],
) -> None:
    delivery = runs.open()
    dying(ParallelPublisher, "_written", True)
    with pytest.raises(Killed):
        delivery.deliver(numbered(spark, 0, 400, 4), 0)
    files = tuple(path.name for path in runs.staged_files())
    writer = writer_of(delivery, 0)
    for moment in ("_rows", "_flush"):
        real = getattr(TaskWriter, moment)

        def overtaken(self: TaskWriter, given: Any, real: Any = real) -> Any:
            outcome = real(self, given)
            if real.__name__ == "_rows":
                outcome = iter([list(rows) for rows in outcome])
            coordinators.fence(f"{runs.ids}zombie")
            return outcome

        with monkeypatch.context() as patch:
            patch.setattr(TaskWriter, moment, overtaken)
            with pytest.raises(TransactionLostError):
                writer.write(Assignment(0, files), f"{runs.ids}zombie")
    coordinators.fence(f"{runs.ids}zombie")
    runs.open()  # ends the others, or they would hold up the readers of witnesses


def test_an_old_driver_is_fenced_wherever_it_is(
    spark: SparkSession,
    runs: Runs,
    connection: Connection,
    coordinators: TransactionCoordinators,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for batch, (owner, step) in enumerate(
        [(Publisher, "publish"), (ParallelPublisher, "finish"), (Publisher, "replace_open")]
    ):
        older, newer = runs.open(), None
        real: Any = getattr(owner, step)

        def overtaken(self: Any, *given: Any, real: Any = real, batch: int = batch) -> Any:
            nonlocal newer
            patch.undo()
            newer = runs.open()
            newer.deliver(numbered(spark, 400 * batch, 400 * batch + 400, 3), batch)
            return real(self, *given)

        with monkeypatch.context() as patch:
            patch.setattr(owner, step, overtaken)
            patch.setattr(
                "penstock.spark.sink.topic_delivery.stage", functools.partial(staged_module.stage, inline_bytes=200)
            )
            with pytest.raises(FencedError):
                older.deliver(numbered(spark, 400 * batch, 400 * batch + 400, 4), batch)
        assert_numbers(connection, runs.topic, once_each(0, 400 * batch + 400))


def test_a_mark_whose_commit_was_not_answered_is_looked_up(
    spark: SparkSession, runs: Runs, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = runs.open()
    commit = TransactionalProducer.commit

    def unanswered(self: TransactionalProducer) -> None:
        monkeypatch.setattr(TransactionalProducer, "commit", commit)
        commit(self)
        raise TransactionLostError("the answer was lost")

    monkeypatch.setattr(TransactionalProducer, "commit", unanswered)
    assert delivery.deliver(numbered(spark, 0, 400, 4), 0) == Delivered(400)
    assert_numbers(connection, runs.topic, once_each(0, 400))


def test_a_record_that_can_never_be_stored_is_named_and_its_batch_is_not_seen(
    spark: SparkSession, runs: Runs, connection: Connection, coordinators: TransactionCoordinators
) -> None:
    connection.create_topic(runs.topic, 1, {"max.message.bytes": "2000"})
    delivery = runs.open(partitions=1)
    big = numbered(spark, 0, 100).withColumn(
        "value", F.when(F.col("value") == "70", F.repeat(F.lit("x"), F.lit(5_000)))
    )
    with pytest.raises(DeliveryError, match=r"max\.message\.bytes"):
        delivery.deliver(big, 0)
    assert not coordinators.open_ids(runs.ids)
    assert not numbers_in(connection, runs.topic)
    delivery.deliver(numbered(spark, 0, 100), 0)
    assert_numbers(connection, runs.topic, once_each(0, 100))


def test_transactions_that_expire_again_and_again_stop_the_query_and_lose_nothing(
    spark: SparkSession, runs: Runs, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = runs.open()
    real = ParallelPublisher._written

    def aborting(self: ParallelPublisher, *given: Any) -> Any:
        written = real(self, *given)
        for each in written:
            self._coordinators.fence(each.id)
        return written

    with monkeypatch.context() as patch:
        patch.setattr(ParallelPublisher, "_written", aborting)
        with pytest.raises(TransactionAbortedError, match="transaction_timeout_s"):
            delivery.deliver(numbered(spark, 0, 100), 0)
    assert not numbers_in(connection, runs.topic)
    assert delivery.deliver(numbered(spark, 0, 100), 0) == Delivered(100, repeated=True)
    assert_numbers(connection, runs.topic, once_each(0, 100))


def test_small_batches_go_through_the_driver(
    spark: SparkSession, runs: Runs, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("a small batch is not published by tasks")

    monkeypatch.setattr(ParallelPublisher, "publish", refused)
    runs.open(parallel_above_bytes=10_000_000).deliver(numbered(spark, 0, 400, 4), 0)
    runs.open(parallel_above_bytes=None).deliver(numbered(spark, 400, 800, 4), 1)
    assert_numbers(connection, runs.topic, once_each(0, 800))


def test_a_batch_that_cannot_be_completed_stops_the_run_before_it_computes_anything(
    spark: SparkSession,
    runs: Runs,
    connection: Connection,
    dying: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dying(TransactionCoordinators, "commit", False, 2)
    with pytest.raises(Killed):
        runs.open().deliver(numbered(spark, 0, 400, 4), 0)

    def refused(*_: Any) -> None:
        raise ConfigError("only the SASL mechanism PLAIN is supported")

    with monkeypatch.context() as other_login:
        other_login.setattr(TransactionCoordinators, "__init__", refused)
        with pytest.raises(PipelineError, match=r"batch 0 .* are not yet committed.* the SASL mechanism PLAIN"):
            runs.open()
    with monkeypatch.context() as old_brokers:
        old_brokers.setattr(TransactionCoordinators, "is_supported", lambda _: False)
        with pytest.raises(PipelineError, match=r"not yet committed.*the brokers are older than Kafka 3\.0"):
            runs.open()
    assert runs.staged_files(), "the run that can complete the batch may need them"
    runs.open(parallel_above_bytes=None).deliver(numbered(spark, 0, 400, 4), 0)
    assert_numbers(connection, runs.topic, once_each(0, 400))


def test_a_large_batch_is_published_while_the_first_broker_hangs(
    spark: SparkSession, server: Any, runs: Runs, connection: Connection
) -> None:
    with TcpProxy(server.port) as hung:
        hung.freeze()
        runs.url = f"kafka://{hung.address},{server.bootstrap}"
        delivery = runs.open(transaction_timeout_s=20)
        asked = hung.connections
        assert delivery.deliver(numbered(spark, 0, 1_000, 4), 0) == Delivered(1_000)
        assert parallel_of(delivery)._coordinators.bootstrap().endswith(hung.address), "it was asked last"
        assert asked > 0
    assert_numbers(connection, runs.topic, once_each(0, 1_000))


def test_a_broker_that_is_killed_between_the_steps_costs_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Penstock(tmp_path / "broker") as server, penstock.connect(f"kafka://{server.bootstrap}") as connection:
        runs = Runs(server, tmp_path)
        try:
            delivery = runs.open()
            steps = [(Publisher, "publish"), (ParallelPublisher, "finish"), (Publisher, "replace_open")]
            for batch, (owner, step) in enumerate(steps):
                real: Any = getattr(owner, step)

                def killing(self: Any, *given: Any, real: Any = real) -> Any:
                    server.kill()
                    server.start()
                    return real(self, *given)

                with monkeypatch.context() as patch:
                    patch.setattr(owner, step, killing)
                    first = 400 * batch
                    assert delivery.deliver(numbered(spark, first, first + 400, 4), batch) == Delivered(400)
            assert_numbers(connection, runs.topic, once_each(0, 1_200))
        finally:
            runs.close()


def test_files_are_spread_by_size_and_partitions_stay_in_order() -> None:
    parts = [Part(number, 1, size, "", f"f{number}", None) for number, size in enumerate([5, 90, 10, 80, 7] * 10)]
    tasks = assigned(parts, 1)
    assert len(tasks) == 16
    assert sorted(name for task in tasks for name in task.files) == sorted(f"f{number}" for number in range(50))
    assert all(list(task.files) == sorted(task.files, key=lambda name: int(name[1:])) for task in tasks)
    sizes = {part.file: part.size_bytes for part in parts}
    loads = [sum(sizes[name] for name in task.files) for task in tasks]
    assert max(loads) - min(loads) <= 90
