"""A stream in memory: what it can do beyond what every stream does."""

from __future__ import annotations

import datetime
import random
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from penstock.abc import Feature, Stream
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    GroupError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    StreamError,
    TopicExistsError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import NewRecord, Position, Record
from penstock.model.administration import Span, TopicSummary
from penstock.streams.connecting import open_stream
from penstock.streams.memory import MemoryStream
from penstock.streams.url import MemoryUrl, parse_url
from penstock.testing import VirtualClock
from tests.clients.names import fresh
from tests.seeds import seed_of

REAL_S = 10.0


def values(records: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.fixture
def streams() -> MemoryStream:
    return MemoryStream()


def test_it_is_a_system_of_streams_without_groups_transactions_and_durability(streams: MemoryStream) -> None:
    assert isinstance(streams, Stream)
    assert not streams.features & {Feature.GROUPS, Feature.TRANSACTIONS, Feature.DURABLE}
    assert streams.open_topic("any").features == streams.features


def test_what_is_sent_can_be_read(streams: MemoryStream) -> None:
    when = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    receipt = streams.send("orders", {"id": 1}, "key", headers={"a": "b"}, timestamp=when)
    assert receipt.result(0) == penstock.RecordMetadata("orders", 0, 0)
    [record] = streams.read("orders")
    assert (record.key, record.value, record.headers) == (b"key", b'{"id":1}', (("a", b"b"),))
    assert record.timestamp == when
    streams.flush()
    assert streams.unacknowledged == 0


def test_a_topic_is_created_by_the_first_record_with_the_partitions_of_the_memory() -> None:
    streams = MemoryStream(partitions=3)
    streams.send("orders", b"x", partition=2).result(0)
    assert list(streams.open_topic("orders").partitions()) == [0, 1, 2]
    assert streams.topics() == ["orders"]


def test_topics_are_created_and_deleted(streams: MemoryStream) -> None:
    streams.create_topic("b", 2)
    streams.create_topic("a")
    assert streams.topics() == ["a", "b"]
    with pytest.raises(TopicExistsError):
        streams.create_topic("a")
    streams.delete_topic("a")
    with pytest.raises(UnknownTopicError):
        streams.delete_topic("a")
    with pytest.raises(InvalidTopicError):
        streams.create_topic("not a name")
    with pytest.raises(InvalidTopicError):
        streams.send("not a name", b"x")
    with pytest.raises(ConfigError):
        MemoryStream(partitions=0)


def test_who_waits_for_a_topic_that_is_deleted_is_told(streams: MemoryStream) -> None:
    streams.create_topic("topic")
    stream = streams.open_topic("topic")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(stream.read, 0, 0, 1, 3600.0)
        streams.delete_topic("topic")
        with pytest.raises(UnknownTopicError):
            waiting.result(REAL_S)
    streams.send("topic", b"new").result(0)
    assert values(stream.read(0, 0, 10, 0.0)) == [b"new"]


def test_records_without_a_key_that_are_appended_together_stay_together() -> None:
    streams = MemoryStream(partitions=4)
    stream = streams.open_topic("topic")
    homes = [
        {receipt.result(0).partition for receipt in stream.append([NewRecord("topic", b"x")] * 10)} for _ in range(8)
    ]
    assert all(len(home) == 1 for home in homes)
    assert set.union(*homes) == {0, 1, 2, 3}


def test_expired_records_are_out_of_range_and_never_skipped(streams: MemoryStream) -> None:
    for number in range(10):
        streams.send("topic", b"%d" % number, timestamp=1000 + 10 * number)
    streams.expire("topic", 0, 4)
    stream = streams.open_topic("topic")
    with pytest.raises(OffsetOutOfRangeError) as refusal:
        stream.read(0, 3, 1, 0.0)
    assert (refusal.value.partition, refusal.value.start, refusal.value.end) == (0, 4, 10)
    assert stream.span(0) == (4, 10)
    assert stream.locate(0, Position.at_time(1000)) == 4
    assert stream.locate(0, Position.at_time(1055)) == 6
    streams.expire("topic", 0, 1000)
    assert stream.span(0) == (10, 10)
    streams.send("topic", b"next")
    assert values(stream.read(0, 10, 1, 0.0)) == [b"next"]


def test_a_time_is_found_among_what_is_left_when_later_times_have_expired(streams: MemoryStream) -> None:
    for time_ms in (1_000, 9_000, 2_000, 3_000):
        streams.send("topic", b"%d" % time_ms, timestamp=time_ms)
    streams.expire("topic", 0, 2)
    assert streams.open_topic("topic").locate(0, Position.at_time(2_500)) == 3


def test_a_reader_that_waits_where_records_expire_is_told(streams: MemoryStream) -> None:
    streams.send("topic", b"0")
    streams.skip("topic", 0, 5)
    stream = streams.open_topic("topic")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(stream.read, 0, 1, 1, 3600.0)
        streams.expire("topic", 0, 4)
        with pytest.raises(OffsetOutOfRangeError):
            waiting.result(REAL_S)


def test_pointers_without_records_are_passed_over(streams: MemoryStream) -> None:
    streams.send("topic", b"0")
    streams.skip("topic", 0, 3)
    streams.send("topic", b"4")
    streams.skip("topic", 0, 2)
    stream = streams.open_topic("topic")
    assert stream.span(0) == (0, 7)
    first = stream.read(0, 0, 1, 0.0)
    assert (first.next, values(first)) == (1, [b"0"])
    second = stream.read(0, 1, 10, 0.0)
    assert (second.start, second.next, list(second.pointers())) == (1, 7, [4])
    assert (stream.read(0, 5, 10, 0.0).next, len(stream.read(0, 5, 10, 0.0))) == (7, 0)
    feed = stream.feed()
    feed.add(0, 5)
    [batch] = feed.poll(10, 0.0)
    assert (batch.start, batch.next, len(batch)) == (5, 7, 0)
    assert feed.poll(10, 0.0) == ()


def test_partitions_can_be_added(streams: MemoryStream) -> None:
    streams.create_topic("topic", 2)
    streams.add_partitions("topic", 5)
    assert len(streams.open_topic("topic").partitions()) == 5
    with pytest.raises(ConfigError):
        streams.add_partitions("topic", 5)


def test_a_feed_serves_all_partitions_in_turn() -> None:
    streams = MemoryStream(partitions=2)
    stream = streams.open_topic("topic")
    for partition in (0, 1):
        stream.append([NewRecord("topic", b"x", partition=partition)] * 10)
    feed = stream.feed()
    for partition in (0, 1):
        feed.add(partition, 0)
    turns = [[batch.partition for batch in feed.poll(5, 0.0)] for _ in range(4)]
    assert turns == [[0], [1], [0], [1]]


def test_a_record_for_another_topic_is_refused_and_nothing_is_stored(streams: MemoryStream) -> None:
    with pytest.raises(ConfigError, match="'other'"):
        streams.open_topic("topic").append([NewRecord("topic", b"a"), NewRecord("other", b"b")])
    assert streams.topics() == []


def test_a_limit_of_nothing_is_refused(streams: MemoryStream) -> None:
    streams.create_topic("topic")
    with pytest.raises(penstock.StreamError):
        streams.open_topic("topic").read(0, 0, 0, 0.0)


def test_a_pointer_that_is_no_number_is_refused(streams: MemoryStream) -> None:
    streams.create_topic("topic")
    with pytest.raises(ConfigError, match="is not a pointer of a stream in memory"):
        streams.open_topic("topic").locate(0, Position.at_pointer("1-2"))


def test_its_clock_stamps_records_and_ends_waiting() -> None:
    clock = VirtualClock(wall_ms=1_000_000)
    streams = MemoryStream(clock=clock)
    streams.send("topic", b"x")
    [record] = streams.read("topic")
    assert record.timestamp_ms == 1_000_000
    stream = streams.open_topic("topic")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(stream.read, 0, 1, 1, 60.0)
        clock.wait_for_sleepers(1)
        clock.advance(59)
        assert not waiting.done()
        clock.advance(1)
        assert len(waiting.result(REAL_S)) == 0


def test_closing_a_stream_ends_the_wait_of_its_reader(streams: MemoryStream) -> None:
    clock = VirtualClock()
    streams = MemoryStream(clock=clock)
    streams.create_topic("topic")
    stream = streams.open_topic("topic")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(stream.read, 0, 0, 1, 60.0)
        clock.wait_for_sleepers(1)
        stream.close()
        with pytest.raises(ConnectionClosedError):
            waiting.result(REAL_S)


def test_a_callback_of_a_receipt_may_use_the_stream(streams: MemoryStream) -> None:
    stream = streams.open_topic("topic")
    seen: list[int] = []
    receipts = stream.append([NewRecord("topic", b"x")] * 3)
    for receipt in receipts:
        receipt.add_done_callback(lambda _: seen.append(len(stream.read(0, 0, 10, 0.0))))
    assert seen == [3, 3, 3]


def test_reading_ends_where_the_end_was_or_follows(streams: MemoryStream) -> None:
    streams.create_topic("topic", 2)
    for number in range(6):
        streams.send("topic", b"%d" % number, partition=number % 2)
    with streams.read("topic") as reader:
        streams.send("topic", b"late", partition=0)
        assert sorted(map(str, values(reader))) == sorted(map(str, [b"%d" % number for number in range(6)]))
    assert len(list(streams.read("topic", limit=3))) == 3
    assert values(streams.read("topic", {1: 1}, partitions=[1])) == [b"3", b"5"]
    assert values(streams.read("topic", "latest")) == []
    assert len(list(streams.read("topic", follow=True, timeout_s=0.01))) == 7
    with pytest.raises(OffsetOutOfRangeError):
        streams.read("topic", {0: 99})
    with pytest.raises(UnknownTopicError):
        streams.read("topic", partitions=[2])
    with pytest.raises(ConfigError):
        streams.read("topic", "yesterday")
    with pytest.raises(UnknownTopicError):
        streams.read("other")


def test_a_reader_that_is_closed_before_its_end_does_not_pretend_to_have_come_there(streams: MemoryStream) -> None:
    for _ in range(3):
        streams.send("topic", b"x")
    reader = streams.read("topic")
    reader.close()
    with pytest.raises(ConnectionClosedError):
        next(reader)
    following = streams.read("topic", "latest", follow=True)
    threading.Timer(0.05, following.close).start()
    assert list(following) == []


def test_a_memory_that_was_closed_is_not_used(streams: MemoryStream) -> None:
    streams.close()
    with pytest.raises(ConnectionClosedError):
        streams.send("topic", b"x")
    with pytest.raises(ConnectionClosedError):
        streams.open_topic("topic")


def test_a_url_leads_to_the_same_records_everywhere_in_the_process() -> None:
    url = f"memory:{fresh()}"
    with penstock.connect(url) as connection:
        connection.create_topic("topic", 1)
        connection.send("topic", "hello", key="k").result(0)
        connection.flush()
    with penstock.connect(url) as connection:
        assert connection.topics() == ["topic"]
        with connection.read("topic") as reader:
            assert values(reader) == [b"hello"]
        assert len(connection.open_topic("topic").read(0, 0, 10, 0.0)) == 1
    with penstock.connect(f"memory:{fresh()}") as other:
        assert other.topics() == []
    opened = open_stream(url)
    assert (opened.url, opened.topics()) == (url, ["topic"])
    opened.close()


def test_a_connection_without_administration_does_what_topics_can_and_names_what_is_missing() -> None:
    with penstock.connect(f"memory:{fresh()}") as connection:
        connection.create_topic("topic", 2)
        connection.send("topic", b"x", partition=1).result(0)
        admin, groups = connection.admin(), connection.group_admin()
        assert Feature.ADMIN not in connection.features
        assert admin.all() == [TopicSummary("topic", (0, 1), False)]
        assert admin.spans([("topic", 0), ("topic", 1), ("gone", 0)]) == {
            ("topic", 0): Span(0, 0),
            ("topic", 1): Span(0, 1),
        }
        assert (admin.earliest("topic", [1]), admin.ends("topic", [0, 1])) == ({1: 0}, {0: 0, 1: 1})
        assert admin.config("topic") == []
        with pytest.raises(UnknownTopicError, match="there are: topic"):
            admin.require("gone")
        with pytest.raises(ConfigError, match=f"cannot add partitions: it has no {Feature.ADMIN}"):
            admin.add_partitions("topic", 3)
        with pytest.raises(StreamError, match="sizes of topics are not known"):
            admin.sizes()
        assert groups.all() == []
        with pytest.raises(GroupError, match=f"has no {Feature.GROUPS}"):
            groups.describe("billing")
        with pytest.raises(ConfigError, match=f"has no {Feature.GROUPS}"):
            connection.read_as_member("billing", "topic")
        with pytest.raises(ConfigError, match="does not speak Kafka's protocol"):
            _ = connection.bootstrap
        with pytest.raises(ConfigError, match=r"retention\.ms means nothing"):
            connection.create_topic("topic", config={"retention.ms": "1"})
    with pytest.raises(ConnectionClosedError):
        connection.send("topic", b"x")
    with pytest.raises(ConfigError, match="acks means nothing to memory:"):
        penstock.connect("memory:", acks=1)
    with pytest.raises(ConfigError, match="exit_when_idle_s"):
        penstock.connect("memory:", exit_when_idle_s=10)


def test_a_memory_url_has_a_name_or_none() -> None:
    assert parse_url("memory:orders") == MemoryUrl("orders")
    assert parse_url("memory:") == MemoryUrl("")
    with pytest.raises(UrlError, match="write memory:orders"):
        parse_url("memory://orders")


def test_it_agrees_with_a_plain_list_whatever_is_done_to_it() -> None:
    """Appends, gaps, expiry, and reads and polls of any size, held against a list of pointers and values."""
    rng = random.Random(seed_of())
    for _ in range(30):
        streams = MemoryStream()
        streams.create_topic("topic")
        stream, feed = streams.open_topic("topic"), streams.open_topic("topic").feed()
        model: list[tuple[int, bytes, int]] = []
        first = end = fed = 0
        feed.add(0, 0)
        for step in range(200):
            action = rng.choice(("append", "append", "skip", "expire", "read", "poll", "time"))
            if action == "append":
                values_now = [b"%d" % (step * 10 + number) for number in range(rng.randint(1, 5))]
                times_ms = [rng.randint(1, 1000) for _ in values_now]
                stream.append(
                    [NewRecord("topic", v, timestamp_ms=t) for v, t in zip(values_now, times_ms, strict=True)]
                )
                model += [(end + i, v, t) for i, (v, t) in enumerate(zip(values_now, times_ms, strict=True))]
                end += len(values_now)
            elif action == "skip":
                count = rng.randint(1, 3)
                streams.skip("topic", 0, count)
                end += count
            elif action == "expire" and rng.random() < 0.3:
                before = rng.randint(first, end)
                streams.expire("topic", 0, before)
                first = before
                model = [entry for entry in model if entry[0] >= first]
            elif action == "read":
                start, limit = rng.randint(first, end), rng.randint(1, 8)
                expected = [entry for entry in model if entry[0] >= start]
                batch = stream.read(0, start, limit, 0.0)
                assert list(zip(batch.pointers(), batch.values(), strict=True)) == [e[:2] for e in expected[:limit]]
                assert batch.next == (end if len(expected) <= limit else expected[limit - 1][0] + 1)
            elif action == "poll" and fed >= first:
                for batch in feed.poll(rng.randint(1, 8), 0.0):
                    assert batch.start == fed
                    between = [entry[:2] for entry in model if fed <= entry[0] < batch.next]
                    assert list(zip(batch.pointers(), batch.values(), strict=True)) == between
                    fed = batch.next
            elif action == "poll":
                with pytest.raises(OffsetOutOfRangeError):
                    feed.poll(1, 0.0)
                feed.add(0, first)
                fed = first
            elif action == "time":
                time_ms = rng.randint(1, 1001)
                found = next((pointer for pointer, _, at_ms in model if at_ms >= time_ms), end)
                assert stream.locate(0, Position.at_time(time_ms)) == found
        assert stream.span(0) == (first, end)
