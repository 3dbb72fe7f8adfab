"""The consumer that is asked: poll, done, failed, commit, seek, wake."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming import Consumer, Retry
from penstock.dead_letters.opening import open_dead_letters
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    FencedError,
    GuaranteeError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from penstock.model import CheckpointKey, DeadLetterFilter, Record
from penstock.serde import Topic
from penstock.streams.memory import MemoryStream

Fill = Callable[..., None]


def take(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    while len(records) < count:
        more = consumer.poll(timeout_s=30, limit=count - len(records))
        assert more, f"only {len(records)} of {count} came"
        records.extend(more)
    return records


def test_records_come_in_order_and_what_is_done_does_not_come_again(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 20)
    with Consumer(streams, "orders", group="g", checkpoints=store) as consumer:
        records = take(consumer, 20)
        assert [record.offset for record in records] == list(range(20))
        for record in records:
            if record.offset not in (3, 11):
                consumer.done(record)
        consumer.commit()
        checkpoint = store.load(CheckpointKey("g", "orders", 0))
        assert checkpoint is not None
        assert (checkpoint.start, checkpoint.finished) == (3, ((4, 11), (12, 20)))
    with Consumer(streams, "orders", group="g", checkpoints=store) as consumer:
        assert [record.offset for record in take(consumer, 2)] == [3, 11]


def test_a_failed_record_comes_again_and_ends_with_the_dead_letters(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 2)
    with Consumer(streams, "orders", group="g", checkpoints=store, retry=Retry(2, first_delay_s=0)) as consumer:
        first, second = take(consumer, 2)
        consumer.done(second)
        consumer.failed(first, ValueError("no"))
        (again,) = take(consumer, 1)
        assert again.place == first.place
        consumer.failed(again, ValueError("still no"))
        consumer.commit()
        fill("orders", 1)
        take(consumer, 1)
    (letter,) = open_dead_letters("orders.dlq", streams).browse(DeadLetterFilter())
    assert (letter.error, letter.attempts) == ("ValueError: still no", 2)


def test_a_poll_is_woken_from_another_thread(streams: MemoryStream, store: MemoryCheckpoints) -> None:
    streams.create_topic("orders")
    with Consumer(streams, "orders", group="g", checkpoints=store) as consumer:
        threading.Timer(0.05, consumer.wakeup).start()
        assert consumer.poll() == []


def test_an_iterator_finishes_a_record_when_the_next_is_asked_for(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 3)
    with Consumer(streams, Topic("orders", int), group="g", checkpoints=store) as consumer:
        for record in consumer:
            if consumer.decode(record) == 2:
                break
        consumer.commit()
    checkpoint = store.load(CheckpointKey("g", "orders", 0))
    assert checkpoint is not None
    assert checkpoint.start == 2


def test_seek_goes_back(streams: MemoryStream, store: MemoryCheckpoints, fill: Fill) -> None:
    fill("orders", 5)
    with Consumer(streams, "orders", group="g", checkpoints=store) as consumer:
        for record in take(consumer, 5):
            consumer.done(record)
        consumer.commit()
        consumer.seek(0, 3)
        assert [record.offset for record in take(consumer, 2)] == [3, 4]
        with pytest.raises(OffsetOutOfRangeError, match="offset 6 has not been written yet"):
            consumer.seek(0, 6)
        with pytest.raises(UnknownTopicError):
            consumer.seek(7, 0)


def test_two_members_share_the_partitions_and_one_takes_over_when_the_other_leaves(
    store: MemoryCheckpoints,
) -> None:
    streams = MemoryStream(partitions=2)
    streams.create_topic("orders")
    options = {"group": "g", "checkpoints": store, "session_timeout_s": 1.0}
    with Consumer(streams, "orders", **options) as one:  # type: ignore[arg-type]
        with Consumer(streams, "orders", **options) as two:  # type: ignore[arg-type]
            wait_for(lambda: len(one.health().partitions) == len(two.health().partitions) == 1)
        wait_for(lambda: len(one.health().partitions) == 2)


def wait_for(condition: Callable[[], bool]) -> None:
    looked = threading.Event()
    for _ in range(3000):
        if condition():
            return
        looked.wait(0.01)
    raise AssertionError("it did not happen within 30 s")


def test_what_makes_no_sense_is_refused(streams: MemoryStream, store: MemoryCheckpoints, fill: Fill) -> None:
    with pytest.raises(UnknownTopicError):
        Consumer(streams, "nowhere", group="g", checkpoints=store)
    fill("orders", 1)
    with pytest.raises(ConfigError, match="workers is an option of handlers"):
        Consumer(streams, "orders", group="g", checkpoints=store, workers=3)  # type: ignore[call-arg]
    with pytest.raises(GuaranteeError, match=r"App\.handle"):
        Consumer(streams, "orders", group="g", checkpoints=store, guarantee="exactly-once")  # type: ignore[call-arg]
    with Consumer(streams, "orders", group="g", checkpoints=store) as consumer:
        (record,) = take(consumer, 1)
        consumer.done(record)
        with pytest.raises(ConfigError, match="is not pending"):
            consumer.done(record)


def test_options_of_connect_are_for_a_url(streams: MemoryStream) -> None:
    url = "kafka://127.0.0.1:9"
    with pytest.raises(ConfigError, match=r"setting group\.id is set by Penstock"):
        Consumer(url, "orders", group="billing", client={"librdkafka": {"group.id": "mine"}})
    with pytest.raises(ConfigError, match="client is for a URL"):
        Consumer(streams, "orders", group="billing", client={"acks": 1})


def test_a_rebalance_is_told_with_its_partitions(store: MemoryCheckpoints) -> None:
    streams = MemoryStream(partitions=2)
    streams.create_topic("orders")
    told: list[tuple[str, list[int]]] = []
    one = Consumer(
        streams,
        "orders",
        group="g",
        checkpoints=store,
        session_timeout_s=1.0,
        on_assigned=lambda partitions: told.append(("assigned", list(partitions))),
        on_revoked=lambda partitions: told.append(("revoked", list(partitions))),
    )
    with one:
        wait_for(lambda: told == [("assigned", [0, 1])])
        with Consumer(streams, "orders", group="g", checkpoints=store, session_timeout_s=1.0):
            wait_for(lambda: len(told) == 2)
            assert told[1][0] == "revoked"
        wait_for(lambda: len(told) == 3)
        assert told[2] == ("assigned", told[1][1])
    assert told[3:] == [("revoked", [0, 1])]


def test_a_run_with_an_end_ends_and_says_so(streams: MemoryStream, store: MemoryCheckpoints, fill: Fill) -> None:
    fill("orders", 5)
    with Consumer(streams, "orders", group="g", checkpoints=store, end="latest") as consumer:
        assert not consumer.has_ended
        assert [record.offset for record in consumer] == list(range(5))
        assert consumer.has_ended
        assert consumer.poll() == []


def test_a_closed_consumer_refuses_to_be_asked_instead_of_giving_nothing_for_ever(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 1)
    consumer = Consumer(streams, "orders", group="g", checkpoints=store)
    consumer.close()
    with pytest.raises(ConnectionClosedError, match="is closed"):
        consumer.poll(timeout_s=1)


def test_a_commit_that_nobody_waits_for_has_an_outcome_and_calls_back(streams: MemoryStream, fill: Fill) -> None:
    fill("orders", 5)
    heard: queue.SimpleQueue[tuple[BaseException | None, Mapping[int, int]]] = queue.SimpleQueue()
    with Consumer(streams, "orders", group="group", commit_interval_s=60) as consumer:
        for record in take(consumer, 5)[:3]:
            consumer.done(record)
        commit = consumer.commit(wait=False, on_commit=lambda error, pointers: heard.put((error, pointers)))
        assert commit.result(20) == {0: 3}
        assert heard.get(timeout=20) == (None, {0: 3})


def test_a_commit_of_a_partition_that_another_member_has_says_so(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 5)
    consumer = Consumer(streams, "orders", group="group", checkpoints=store, commit_interval_s=60)
    with consumer:
        [record, *_] = take(consumer, 5)
        [lease] = [each for each in store.leases("group") if each.name.startswith("partition:")]
        assert store.claim("group", lease.name, "thief", lease) is not None
        consumer.done(record)
        with pytest.raises(FencedError, match="partitions 0 of topic 'orders' moved to another member"):
            consumer.commit()


def test_a_commit_of_a_consumer_that_has_ended_fails_instead_of_waiting_for_ever(
    streams: MemoryStream, fill: Fill
) -> None:
    fill("orders", 1)
    consumer = Consumer(streams, "orders", group="group")
    take(consumer, 1)
    consumer.close()
    with pytest.raises(ConnectionClosedError):
        consumer.commit()


def test_a_record_is_saved_when_done_returns_where_each_is_saved(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 5)
    with Consumer(streams, "orders", group="group", checkpoints=store, commit_interval_s=0) as consumer:
        for number, record in enumerate(take(consumer, 5)):
            consumer.done(record)
            [checkpoint] = store.checkpoints("group").values()
            assert checkpoint.start == number + 1


def test_a_commit_that_is_asked_for_during_a_save_waits_for_the_next_one(streams: MemoryStream, fill: Fill) -> None:
    class Store(MemoryCheckpoints):
        during_save: Callable[[], object] | None = None

        def save(self, *arguments: Any, **options: Any) -> Any:
            if (during := self.during_save) is not None:
                self.during_save = None
                during()
            return super().save(*arguments, **options)

    fill("orders", 2)
    store = Store()
    commits = []
    with Consumer(streams, "orders", group="g", checkpoints=store, commit_interval_s=3600) as consumer:
        first, second = take(consumer, 2)

        def finish_second() -> None:
            consumer.done(second)
            commits.append(consumer.commit(wait=False))

        store.during_save = finish_second
        consumer.done(first)
        assert consumer.commit().result() == {0: 1}
        [commit] = commits
        assert commit.result(30) == {0: 2}
