"""Cases: the feed of a stream that has one, over several partitions."""

from __future__ import annotations

import time
import unittest
from collections import defaultdict
from collections.abc import Callable

from penstock.abc import Feature, Feed, Feeding, Grouping, TopicStream
from penstock.errors import OffsetOutOfRangeError
from penstock.model import NewRecord, Pointer, Record
from penstock.testing.conformance.streams.suite import (
    BRIEF_S,
    SETTLE_S,
    StreamSuite,
    check_batch,
    check_values,
    metadata_of,
    numbered,
)
from penstock.testing.conformance.suite import needs


class FeedFollower:
    """Polls a feed, and compares every batch with the previous one."""

    def __init__(self, feed: Feed, stream: TopicStream) -> None:
        self.feed = feed
        self.records: dict[int, list[Record]] = defaultdict(list)
        self._stream = stream
        self._next: dict[int, Pointer] = {}

    def add(self, partition: int, start: Pointer) -> None:
        self._next[partition] = start
        self.feed.add(partition, start)

    def remove(self, partition: int) -> None:
        del self._next[partition]
        self.feed.remove(partition)

    def poll(self, limit: int = 100, wait_s: float = BRIEF_S) -> int:
        batches = self.feed.poll(limit, wait_s)
        count = sum(map(len, batches))
        assert count <= limit, f"at most {limit} records were asked for, and {count} came"
        for batch in batches:
            check_batch(batch, self._stream.topic, batch.partition, limit)
            expected = self._next.get(batch.partition)
            assert expected is not None, f"{batch!r} came from a partition that is not in the feed"
            assert batch.start == expected, f"{batch!r} does not start at {expected}, where the one before it ended"
            self._next[batch.partition] = batch.next
            self.records[batch.partition] += batch
        return count

    def poll_until(self, reached: Callable[[], bool], what: str, limit: int = 100) -> None:
        deadline_s = time.monotonic() + SETTLE_S
        while not reached():
            self.poll(limit)
            counts = {partition: len(records) for partition, records in self.records.items()}
            assert time.monotonic() < deadline_s, f"{what}: not after {SETTLE_S:g} s; the partitions gave {counts}"

    def poll_until_count(self, count: int, limit: int = 100) -> None:
        self.poll_until(lambda: sum(map(len, self.records.values())) >= count, f"{count} records", limit)


class FeedingCases(StreamSuite):
    def follow(self, stream: TopicStream) -> FeedFollower:
        if not isinstance(stream, Feeding):
            raise unittest.SkipTest("does not apply: the stream has no feed of its own")
        feed = stream.feed()
        self.addCleanup(feed.close)
        return FeedFollower(feed, stream)

    def follow_from_start(self, stream: TopicStream) -> FeedFollower:
        following = self.follow(stream)
        following.add(0, self.start_of(stream))
        return following

    def test_a_feed_gives_every_record_once_and_in_order(self) -> None:
        stream = self.filled(300)
        following = self.follow_from_start(stream)
        following.poll_until_count(300, limit=7)
        check_values(following.records[0], numbered(300), "everything that a feed gave")
        assert following.poll() == 0, "a feed that has come to the end gave more"

    @needs(Feature.PARTITIONS, Feature.CHOSEN_PARTITION)
    def test_a_feed_gives_the_records_of_all_its_partitions(self) -> None:
        stream = self.filled(100, partitions=3)
        following = self.follow(stream)
        for partition in range(3):
            following.add(partition, self.start_of(stream, partition))
        following.poll_until_count(300, limit=11)
        for partition in range(3):
            check_values(following.records[partition], numbered(100), f"partition {partition} of the feed")

    def test_a_feed_begins_where_it_is_told_to(self) -> None:
        stream = self.filled(20)
        following = self.follow(stream)
        following.add(0, self.everything(stream)[12].offset)
        following.poll_until_count(8)
        check_values(following.records[0], numbered(8, 12), "a feed from record 12 on")

    def test_a_waiting_poll_returns_as_soon_as_there_is_a_record(self) -> None:
        stream = self.new_stream()
        following = self.follow_from_start(stream)
        following.poll()
        waiting = self.in_background(following.poll, 10, SETTLE_S * 4)
        self.put(stream, numbered(1))
        self.result_of(waiting, "a waiting poll ends when a record comes", SETTLE_S)
        following.poll_until_count(1)
        check_values(following.records[0], numbered(1), "what a waiting poll gave when a record came")

    def test_a_poll_without_records_ends_once_the_wait_is_over(self) -> None:
        stream = self.new_stream()
        following = self.follow_from_start(stream)
        began_s = time.monotonic()
        for _ in range(3):
            assert following.poll(wait_s=BRIEF_S) == 0, "a feed of an empty topic gave records"
        waited_s = time.monotonic() - began_s
        assert waited_s >= BRIEF_S, f"three polls of {BRIEF_S} s without a record took {waited_s:.3f} s: it spins"

    def test_a_feed_without_partitions_waits_too(self) -> None:
        following = self.follow(self.new_stream())
        began_s = time.monotonic()
        assert following.poll(wait_s=BRIEF_S) == 0, "a feed without partitions gave records"
        assert time.monotonic() - began_s >= BRIEF_S / 2, "a poll of a feed without partitions returned at once"

    def test_wake_ends_a_poll_that_waits_and_also_one_that_is_about_to(self) -> None:
        stream = self.new_stream()
        following = self.follow_from_start(stream)
        following.feed.wake()
        waiting = self.in_background(following.poll, 10, SETTLE_S * 4)
        count = self.result_of(waiting, "a poll that was woken before it began ends at once", SETTLE_S)
        assert count == 0, "a poll that was woken gave records of an empty topic"
        waiting = self.in_background(following.poll, 10, SETTLE_S * 4)
        following.feed.wake()
        count = self.result_of(waiting, "a poll that is woken ends at once", SETTLE_S)
        assert count == 0, "a poll that was woken gave records of an empty topic"

    @needs(Feature.PARTITIONS, Feature.CHOSEN_PARTITION)
    def test_a_paused_partition_gives_nothing_and_goes_on_where_it_was(self) -> None:
        stream = self.filled(100, partitions=2)
        following = self.follow(stream)
        for partition in (0, 1):
            following.add(partition, self.start_of(stream, partition))
        following.poll_until(lambda: len(following.records[0]) >= 10, "ten records of partition 0", limit=10)
        following.feed.pause(0)
        seen = len(following.records[0])
        self.put(stream, numbered(50, 100), 1)
        following.poll_until(lambda: len(following.records[1]) >= 150, "the partition that is not paused")
        following.poll()
        paused = len(following.records[0])
        assert paused == seen, f"a paused partition gave {paused - seen} records"
        following.feed.resume(0)
        following.poll_until_count(250)
        check_values(following.records[0], numbered(100), "a partition that was paused for a while")

    @needs(Feature.PARTITIONS, Feature.CHOSEN_PARTITION)
    def test_a_removed_partition_gives_nothing_and_can_come_back_elsewhere(self) -> None:
        stream = self.filled(50, partitions=2)
        following = self.follow(stream)
        for partition in (0, 1):
            following.add(partition, self.start_of(stream, partition))
        following.poll_until(lambda: len(following.records[0]) >= 5, "five records of partition 0", limit=5)
        following.remove(0)
        del following.records[0]
        following.poll_until(lambda: len(following.records[1]) >= 50, "the partition that is left")
        following.poll()
        assert not following.records[0], f"a partition that was removed gave {following.records[0][:3]}"
        following.add(0, self.everything(stream, 0)[45].offset)
        following.poll_until_count(55)
        check_values(following.records[0], numbered(5, 45), "a partition that came back at record 45")

    def test_a_partition_that_is_added_again_goes_on_elsewhere(self) -> None:
        stream = self.filled(60)
        following = self.follow_from_start(stream)
        following.poll_until_count(10, limit=10)
        records = self.everything(stream)
        for index in (50, 3, 58):
            following.records.clear()
            following.add(0, records[index].offset)
            following.poll_until_count(60 - index)
            check_values(following.records[0], numbered(60 - index, index), f"a feed sent to record {index}")

    @needs(Feature.PARTITIONS, Feature.CHOSEN_PARTITION)
    def test_a_partition_whose_records_expired_is_removed_and_the_others_go_on(self) -> None:
        streams = self.open()
        stream = self.new_stream(2, streams)
        first = [self.put(stream, numbered(10), partition) for partition in (0, 1)]
        starts = [self.start_of(stream, partition) for partition in (0, 1)]
        self.expire_before(streams, stream.topic, 0, first[0][5].offset)
        following = self.follow(stream)
        for partition in (0, 1):
            following.add(partition, starts[partition])
        with self.expect(OffsetOutOfRangeError, "a feed whose records expired before they were read") as caught:
            following.poll_until(lambda: False, "an OffsetOutOfRangeError")
        assert caught.error.partition == 0, f"partition 0 has expired records, but the error names {caught.error}"
        following.poll_until(lambda: len(following.records[1]) >= 10, "the other partition")
        assert not following.records[0], f"a partition with expired records gave {following.records[0][:3]}"
        following.add(0, self.start_of(stream, 0))
        following.poll_until(lambda: len(following.records[0]) >= 5, "what has not expired")
        check_values(following.records[0], numbered(5, 5), "what has not expired")

    def test_a_stream_has_groups_of_its_own_if_it_says_so(self) -> None:
        stream = self.new_stream()
        says, has = Feature.GROUPS in self.features, isinstance(stream, Grouping)
        assert says == has, f"Feature.GROUPS declared: {says}; a method group_feed: {has}"

    @needs(Feature.KEYS)
    def test_a_feed_gives_keys_and_headers_like_a_read(self) -> None:
        stream = self.new_stream()
        headers = (("name", b"value"),) if Feature.HEADERS in self.features else ()
        metadata_of(stream.append([NewRecord(stream.topic, b"value", b"key", headers)]))
        following = self.follow_from_start(stream)
        following.poll_until_count(1)
        assert following.records[0] == self.everything(stream), "a feed and a read gave different records"
