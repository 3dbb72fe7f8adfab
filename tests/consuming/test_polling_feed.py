"""A feed by reading one partition at a time: fair, patient with what fails, and never busy with nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from penstock.abc import Feed
from penstock.consuming.loop.polling_feed import PollingFeed
from penstock.errors import BrokerUnavailableError, ConnectionClosedError, CorruptBatchError, OffsetOutOfRangeError
from penstock.model import Batch, Pointer
from penstock.model.clock import SystemClock
from penstock.model.retry import Retry
from penstock.testing import MemoryStream
from tests.consuming.counting_stream import CountingStream

QUICK = Retry(first_delay_s=0.02, max_delay_s=0.05)


@pytest.fixture
def stream() -> CountingStream:
    return CountingStream(partitions=3, count=100)


@pytest.fixture
def feed(stream: CountingStream) -> Iterator[PollingFeed]:
    feed = PollingFeed(stream, SystemClock(), backoff=QUICK)
    yield feed
    feed.close()


def poll_pointers(
    feed: Feed, counts: dict[int, int], limit: int = 1000, timeout_s: float = 20.0
) -> dict[int, list[int]]:
    """Poll until so many records of each partition have come; every batch must follow the one before."""
    deadline_s = time.monotonic() + timeout_s
    came: dict[int, list[int]] = {partition: [] for partition in counts}
    ends: dict[int, Pointer] = {}
    while any(len(came[partition]) < count for partition, count in counts.items()):
        assert time.monotonic() < deadline_s, f"only { ({p: len(c) for p, c in came.items()}) } of {counts} came"
        for batch in feed.poll(limit, 1.0):
            assert ends.get(batch.partition, batch.start) == batch.start
            ends[batch.partition] = batch.next
            came.setdefault(batch.partition, []).extend(batch.pointers())
    return came


def poll_into(feed: Feed, pointers: list[int], attempts: int = 100) -> None:
    for _ in range(attempts):
        pointers += [pointer for batch in feed.poll(1, 1.0) for pointer in batch.pointers()]


def test_all_partitions_come_in_order_from_where_they_were_to_begin(feed: PollingFeed) -> None:
    for partition, start in ((0, 0), (1, 50), (2, 99)):
        feed.add(partition, start)
    came = poll_pointers(feed, {0: 100, 1: 50, 2: 1}, limit=7)
    assert came == {0: list(range(100)), 1: list(range(50, 100)), 2: [99]}


def test_a_poll_gives_no_more_than_was_asked_for(feed: PollingFeed) -> None:
    feed.add(0, 0)
    feed.add(1, 0)
    sizes = list[int]()
    while sum(sizes) < 200:
        sizes.append(sum(map(len, feed.poll(3, 1.0))))
    assert max(sizes) == 3


def test_a_partition_that_gives_much_does_not_starve_the_others() -> None:
    stream = CountingStream(partitions=4, count=100_000)
    feed = PollingFeed(stream, SystemClock())
    try:
        for partition in range(4):
            feed.add(partition, 0)
        poll_pointers(feed, dict.fromkeys(range(4), 500), limit=10)
        came = poll_pointers(feed, {0: 5_000}, limit=10)
        assert all(came.get(partition) for partition in range(4)), {p: len(each) for p, each in came.items()}
    finally:
        feed.close()


def test_what_is_not_fetched_is_not_read_any_further(stream: CountingStream, feed: PollingFeed) -> None:
    stream.grow(count=10_000)
    feed.add(0, 0)
    assert sum(map(len, feed.poll(10, 5.0))) == 10
    assert feed.poll(10, 0.2)
    assert len(stream.reads) <= 5, "two batches ahead, and those that were fetched"


def test_a_new_record_wakes_a_poll_that_waits(stream: CountingStream, feed: PollingFeed) -> None:
    for partition in range(3):
        feed.add(partition, 100)
    assert feed.poll(10, 0.0) == []
    growing = threading.Timer(0.1, stream.grow, kwargs={"count": 1})
    growing.start()
    began_s = time.monotonic()
    batches = feed.poll(10, 20.0)
    assert batches
    assert time.monotonic() - began_s < 5


def test_wake_ends_a_poll_that_waits(feed: PollingFeed) -> None:
    feed.add(0, 100)
    waking = threading.Timer(0.05, feed.wake)
    waking.start()
    began_s = time.monotonic()
    assert feed.poll(10, 20.0) == []
    assert time.monotonic() - began_s < 5
    feed.wake()
    assert feed.poll(10, 20.0) == [], "a wake that came before the poll counts, too"


def test_an_idle_feed_asks_seldom(stream: CountingStream) -> None:
    feed = PollingFeed(stream, SystemClock(), threads=2)
    try:
        for partition in range(3):
            feed.add(partition, 100)
        assert feed.poll(10, 1.0) == []
        assert len(stream.reads) <= 30
    finally:
        feed.close()


class Hasty(CountingStream):
    """A stream that does not wait: it says at once that there is nothing."""

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        return super().read(partition, start, limit, 0.0)


def test_a_stream_that_does_not_wait_is_not_asked_in_a_hot_loop() -> None:
    stream = Hasty(partitions=2, count=0)
    feed = PollingFeed(stream, SystemClock())
    try:
        feed.add(0, 0)
        feed.add(1, 0)
        assert feed.poll(10, 1.0) == []
        assert len(stream.reads) <= 10
    finally:
        feed.close()


def test_more_partitions_than_threads_are_all_seen() -> None:
    stream = CountingStream(partitions=40, count=3)
    feed = PollingFeed(stream, SystemClock(), threads=4)
    try:
        for partition in range(40):
            feed.add(partition, 0)
        poll_pointers(feed, dict.fromkeys(range(40), 3))
        stream.grow(count=1)
        began_s = time.monotonic()
        poll_pointers(feed, dict.fromkeys(range(40), 1))
        assert time.monotonic() - began_s < 5
    finally:
        feed.close()


def test_a_read_that_fails_is_tried_again_later_and_the_others_go_on(stream: CountingStream, feed: PollingFeed) -> None:
    stream.failures[1] = [BrokerUnavailableError("away") for _ in range(4)]
    feed.add(0, 0)
    feed.add(1, 0)
    came = poll_pointers(feed, {0: 100, 1: 100})
    assert came[1] == list(range(100))
    assert not stream.failures[1]


def test_waits_between_failures_grow(stream: CountingStream) -> None:
    feed = PollingFeed(stream, SystemClock(), backoff=Retry(first_delay_s=0.05, factor=2.0, max_delay_s=10, jitter=0.0))
    try:
        stream.failures[0] = [BrokerUnavailableError("away") for _ in range(3)]
        began_s = time.monotonic()
        feed.add(0, 0)
        poll_pointers(feed, {0: 100})
        assert time.monotonic() - began_s >= 0.05 + 0.1 + 0.2
    finally:
        feed.close()


def test_records_that_expired_are_an_error_and_the_others_go_on() -> None:
    streams = MemoryStream()
    streams.create_topic("orders", 2)
    for number in range(20):
        streams.send("orders", b"%d" % number, partition=number % 2)
    streams.expire("orders", 0, 5)
    feed = PollingFeed(streams.open_topic("orders"), SystemClock())
    try:
        feed.add(0, 0)
        feed.add(1, 0)
        with pytest.raises(OffsetOutOfRangeError) as told:
            poll_pointers(feed, {0: 1, 1: 1000})
        assert told.value.partition == 0
        feed.add(0, 5)
        assert poll_pointers(feed, {0: 5})[0] == [5, 6, 7, 8, 9]
    finally:
        feed.close()


def test_what_was_read_before_an_error_comes_before_the_error(stream: CountingStream, feed: PollingFeed) -> None:
    feed.add(0, 90)
    assert poll_pointers(feed, {0: 1}, limit=1)[0] == [90]
    stream.failures[0] = [CorruptBatchError("damaged")] * 10
    pointers: list[int] = []
    with pytest.raises(CorruptBatchError):
        poll_into(feed, pointers)
    assert pointers == list(range(91, 91 + len(pointers)))
    stream.failures.clear()
    feed.add(0, 0)
    assert poll_pointers(feed, {0: 1})


def test_going_on_elsewhere_leaves_nothing_of_before(stream: CountingStream, feed: PollingFeed) -> None:
    feed.add(0, 0)
    poll_pointers(feed, {0: 1}, limit=1)
    feed.add(0, 80)
    assert poll_pointers(feed, {0: 20}, limit=6)[0] == list(range(80, 100))


def test_a_paused_partition_gives_nothing_until_it_is_resumed(feed: PollingFeed) -> None:
    feed.add(0, 0)
    feed.add(1, 0)
    feed.pause(0)
    came = [batch.partition for _ in range(10) for batch in feed.poll(20, 0.05)]
    assert set(came) == {1}
    feed.resume(0)
    assert poll_pointers(feed, {0: 100})[0] == list(range(100))


def test_a_removed_partition_gives_nothing_any_more(feed: PollingFeed) -> None:
    feed.add(0, 0)
    poll_pointers(feed, {0: 1}, limit=1)
    feed.remove(0)
    feed.remove(1)
    assert feed.poll(10, 0.1) == []


def test_a_closed_feed_is_not_used(stream: CountingStream) -> None:
    feed = PollingFeed(stream, SystemClock())
    feed.add(0, 100)
    feed.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-pull-orders")]
    with pytest.raises(ConnectionClosedError):
        feed.poll(1, 0.0)
    with pytest.raises(ConnectionClosedError):
        feed.add(0, 0)
