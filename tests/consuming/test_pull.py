"""The consumer that is asked: poll, done, failed, commit, seek, wake."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming import Consumer, Retry
from penstock.consuming.dead_letters.opening import open_dead_letters
from penstock.errors import ConfigError, ConnectionClosedError, GuaranteeError, OffsetOutOfRangeError, UnknownTopicError
from penstock.model import CheckpointKey, LetterFilter, Record
from penstock.serde import Topic
from penstock.streams.memory import MemoryStreams

Fill = Callable[..., None]


def take(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    while len(records) < count:
        more = consumer.poll(timeout=30, limit=count - len(records))
        assert more, f"only {len(records)} of {count} came"
        records.extend(more)
    return records


def test_records_come_in_order_and_what_is_done_does_not_come_again(
    streams: MemoryStreams, store: MemoryCheckpoints, fill: Fill
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
    streams: MemoryStreams, store: MemoryCheckpoints, fill: Fill
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
    (letter,) = open_dead_letters("orders.dlq", streams).browse(LetterFilter())
    assert (letter.error, letter.attempts) == ("ValueError: still no", 2)


def test_a_poll_is_woken_from_another_thread(streams: MemoryStreams, store: MemoryCheckpoints) -> None:
    streams.create_topic("orders")
    with Consumer(streams, "orders", group="g", checkpoints=store) as consumer:
        threading.Timer(0.05, consumer.wakeup).start()
        assert consumer.poll() == []


def test_an_iterator_finishes_a_record_when_the_next_is_asked_for(
    streams: MemoryStreams, store: MemoryCheckpoints, fill: Fill
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


def test_seek_goes_back(streams: MemoryStreams, store: MemoryCheckpoints, fill: Fill) -> None:
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
    streams = MemoryStreams(partitions=2)
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


def test_what_makes_no_sense_is_refused(streams: MemoryStreams, store: MemoryCheckpoints, fill: Fill) -> None:
    with pytest.raises(UnknownTopicError):
        Consumer(streams, "nowhere", group="g", checkpoints=store)
    fill("orders", 1)
    with pytest.raises(ConfigError, match="workers is for handlers"):
        Consumer(streams, "orders", group="g", checkpoints=store, workers=3)
    with pytest.raises(GuaranteeError, match=r"App\.handle"):
        Consumer(streams, "orders", group="g", checkpoints=store, guarantee="exactly-once")
    with Consumer(streams, "orders", group="g", checkpoints=store) as consumer:
        (record,) = take(consumer, 1)
        consumer.done(record)
        with pytest.raises(ConfigError, match="not in hand"):
            consumer.done(record)


def test_a_rebalance_is_told_with_its_partitions(store: MemoryCheckpoints) -> None:
    streams = MemoryStreams(partitions=2)
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


def test_a_run_with_an_end_ends_and_says_so(streams: MemoryStreams, store: MemoryCheckpoints, fill: Fill) -> None:
    fill("orders", 5)
    with Consumer(streams, "orders", group="g", checkpoints=store, end="latest") as consumer:
        assert not consumer.has_ended
        assert [record.offset for record in consumer] == list(range(5))
        assert consumer.has_ended
        assert consumer.poll() == []


def test_a_closed_consumer_refuses_to_be_asked_instead_of_giving_nothing_for_ever(
    streams: MemoryStreams, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 1)
    consumer = Consumer(streams, "orders", group="g", checkpoints=store)
    consumer.close()
    with pytest.raises(ConnectionClosedError, match="has been closed"):
        consumer.poll(timeout=1)
