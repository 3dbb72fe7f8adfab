"""A queue as the source of a pipeline: drained into a log beside the checkpoints, at least once."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.abc import Delivery, Outcome
from penstock.errors import ConfigError, UrlError
from penstock.model import NewRecord
from penstock.queues.memory import MemoryQueue, open_memory
from penstock.spark import Pipeline
from penstock.spark.source import queue_spool
from penstock.spark.source.queue_spool import QueueSpool

_numbers = itertools.count()


@dataclass
class Job:
    id: int


@pytest.fixture
def queue_url() -> str:
    return f"memory:jobs{next(_numbers)}"


@pytest.fixture
def queue(queue_url: str) -> Iterator[MemoryQueue]:
    opened = open_memory(queue_url, {})
    yield opened
    opened.close()


def send(queue: MemoryQueue, numbers: range) -> None:
    queue.send([NewRecord("jobs", b'{"id": %d}' % number, b"k") for number in numbers])


class Dying(Exception):
    """The driver is killed here."""


class DiesBeforeSettling(MemoryQueue):
    """A connection whose process dies when it settles its third delivery."""

    settled = 0

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        self.settled += 1
        if self.settled == 3:
            raise Dying
        super().settle(delivery, outcome, delay_s)


class SettlesMany(MemoryQueue):
    """A queue that is `BatchSettling`, and counts the deliveries of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[int] = []

    def settle_all(
        self, deliveries: Sequence[Delivery], outcome: Outcome, delay_s: float = 0.0, reason: str = ""
    ) -> Sequence[Delivery]:
        self.requests.append(len(deliveries))
        for each in deliveries:
            self.settle(each, outcome, delay_s)
        return ()


def in_log(spool: QueueSpool) -> list[bytes | None]:
    with penstock.connect(spool.log_url) as log:
        return [record.value for record in log.read(spool.topic)]


def spool_of(
    queue: MemoryQueue, folder: Path, reached: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> QueueSpool:
    monkeypatch.setattr(queue_spool, "open_queue", lambda url: queue)
    return QueueSpool("memory:unused", {}, folder, lambda topic: reached[0])


def test_a_delivery_is_settled_once_it_is_in_the_log_and_delivered_again_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, dying = MemoryQueue(), DiesBeforeSettling()
    dying._contents = whole._contents
    send(whole, range(5))
    spool = spool_of(dying, tmp_path / "spool", [None], monkeypatch)
    with pytest.raises(Dying):
        spool.drain_what_is_there()
    assert len(whole) == 3, "two deliveries were settled"
    assert len(in_log(spool)) == 5
    spool.stop()  # as the end of the process does, this returns what is not settled to the queue
    again = spool_of(whole.another(), tmp_path / "spool", [None], monkeypatch)
    again.drain_what_is_there()
    found = in_log(again)
    again.stop()
    assert set(found) == {b'{"id": %d}' % number for number in range(5)}, "at least once"
    assert len(found) == 8, "what was stored and not settled is there twice"
    assert len(whole) == 0


def test_a_queue_that_settles_many_at_once_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = SettlesMany()
    send(queue, range(5))
    spool = spool_of(queue, tmp_path / "spool", [None], monkeypatch)
    spool.drain_what_is_there()
    assert queue.requests == [5]
    assert len(queue) == 0
    assert len(in_log(spool)) == 5
    spool.stop()


def test_what_all_queries_have_processed_leaves_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = MemoryQueue()
    reached: list[int | None] = [None]
    spool = spool_of(queue.another(), tmp_path / "spool", reached, monkeypatch)
    send(queue, range(6))
    spool.drain_what_is_there()
    for pointer, left in ((None, 6), (2, 6), (5, 4), (5, 1), (None, 1)):
        reached[0] = pointer
        spool.trim()
        assert len(in_log(spool)) == left
    reached[0] = 6
    spool.stop()
    assert in_log(spool) == []


def test_a_pipeline_reads_a_queue_and_goes_on_after_a_restart(
    spark: SparkSession,
    log_url: str,
    queue_url: str,
    queue: MemoryQueue,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[int] = []
    arrived = threading.Event()

    def keep(frame: DataFrame, _: int) -> None:
        seen.extend(row.id for row in frame.collect())
        if 25 in seen:
            arrived.set()

    def pipeline() -> Pipeline:
        made = Pipeline("work", log_url, spark=spark, checkpoints=str(tmp_path / "state"))
        made.write(made.read(queue_url, type=Job), keep, name="kept")
        return made

    send(queue, range(20))
    queue.send([NewRecord("jobs", b"no job")])
    with pipeline() as first:
        first.run(once=True, quiet=True)
        assert first.undecodable() == {queue_url.replace(":", "-"): 1}
    assert sorted(seen) == list(range(20))
    assert len(queue) == 0
    with penstock.connect(f"log:{tmp_path / 'state' / '.queues' / 'work'}") as log:
        assert list(log.read(queue_url.replace(":", "-"))) == [], "what was processed is removed"
    with caplog.at_level(logging.WARNING), pipeline() as second:
        second.start()
        send(queue, range(20, 26))
        assert arrived.wait(120)
    assert sorted(seen) == list(range(26))
    assert f"queue {queue_url} is drained into" in caplog.text
    assert "at least once" in caplog.text


def test_a_pipeline_on_a_queue_is_refused_when_it_is_made(spark: SparkSession) -> None:
    with pytest.raises(UrlError, match="is not a URL of a stream, but of a queue"):
        Pipeline("refused", "amqp://localhost/jobs", spark=spark)


def test_what_a_queue_cannot_do_is_refused(spark: SparkSession, log_url: str, queue_url: str, tmp_path: Path) -> None:
    with Pipeline("refused", log_url, spark=spark, checkpoints=str(tmp_path / "state")) as pipeline:
        with pytest.raises(ConfigError, match="are for topics, not for queues"):
            pipeline.read(queue_url, real_time=True)
        with pytest.raises(ConfigError, match="are for queues"):
            pipeline.read("orders", type=Job)
        with pytest.raises(UrlError, match="is not a URL of a queue"):
            pipeline.read("nobody://host/jobs")
        with pytest.raises(ConfigError, match="give the URL of the queue"):
            pipeline.read(MemoryQueue())  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no option 'speed'"):
            pipeline.read(queue_url, queue_options={"speed": 3})
