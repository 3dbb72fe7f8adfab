"""Cases: reading a stream, and locating positions."""

from __future__ import annotations

import time

from penstock.abc import Feature
from penstock.errors import ConfigError, ConnectionClosedError, OffsetOutOfRangeError, UnknownTopicError
from penstock.model import NewRecord, Position
from penstock.testing.conformance.streams.suite import (
    BRIEF_S,
    SETTLE_S,
    StreamSuite,
    check_batch,
    check_values,
    metadata_of,
    numbered,
)
from penstock.testing.conformance.suite import lacks, needs


class ReadingCases(StreamSuite):
    def test_records_are_read_in_the_order_in_which_they_were_appended(self) -> None:
        stream = self.new_stream()
        for first in range(0, 300, 100):
            self.put(stream, numbered(100, first))
        check_values(self.everything(stream), numbered(300), "what was appended in three calls")

    def test_reading_changes_nothing(self) -> None:
        stream = self.filled(50)
        first = self.everything(stream, limit=7)
        assert self.everything(stream, limit=20) == first, "reading a second time gave other records"
        middle = first[20].offset
        check_values(self.read(stream, middle, 5), numbered(5, 20), f"a read at {middle}, where record 20 stands")
        check_values(self.read(stream, middle, 5), numbered(5, 20), f"the same read at {middle} again")

    def test_a_batch_has_at_most_as_many_records_as_were_asked_for(self) -> None:
        stream = self.filled(20)
        start = self.start_of(stream)
        for limit in (1, 3, 20, 1000):
            batch = self.read(stream, start, limit)
            assert 1 <= len(batch) <= limit, f"a read of at most {limit} records gave {len(batch)}"
            check_values(batch, numbered(len(batch)), f"the first {len(batch)} records")

    def test_reading_goes_on_at_the_next_of_a_batch_without_gap_or_overlap(self) -> None:
        stream = self.filled(30)
        for limit in (1, 4, 29, 30):
            check_values(self.everything(stream, limit=limit), numbered(30), f"everything, {limit} at a time")

    def test_one_more_than_the_pointer_of_a_record_is_the_place_behind_it(self) -> None:
        stream = self.filled(5)
        for number, record in enumerate(self.everything(stream)[:-1]):
            batch = self.read(stream, record.offset + 1, 1)
            check_values(batch, numbered(1, number + 1), f"a read behind record {number}")

    def test_a_read_at_the_end_gives_an_empty_batch_once_the_wait_is_over(self) -> None:
        stream = self.filled(3)
        end = stream.span(0)[1]
        began_s = time.monotonic()
        batch = self.read(stream, end, wait_s=BRIEF_S)
        waited_s = time.monotonic() - began_s
        assert len(batch) == 0, f"there is nothing at the end, {end}, but a read gave {list(batch)}"
        assert batch.next >= end, f"an empty batch leads back, from {end} to {batch.next}"
        assert waited_s >= BRIEF_S / 2, f"a read that was to wait {BRIEF_S} s gave up after {waited_s:.3f} s"
        self.put(stream, numbered(1, 3))
        check_values(self.read(stream, batch.next), numbered(1, 3), "what came behind the empty batch")

    def test_a_new_topic_is_empty_and_can_be_read(self) -> None:
        stream = self.new_stream()
        first, end = stream.span(0)
        assert first == end, f"a new topic spans {first} to {end}"
        batch = self.read(stream, self.start_of(stream), wait_s=0.0)
        assert len(batch) == 0, f"a new topic has records: {list(batch)}"

    def test_a_waiting_read_returns_as_soon_as_there_is_a_record(self) -> None:
        stream = self.new_stream()
        end = stream.span(0)[1]
        waiting = self.in_background(stream.read, 0, end, 10, SETTLE_S * 4)
        self.put(stream, numbered(1))
        batch = self.result_of(waiting, "a waiting read ends when a record comes", SETTLE_S)
        check_values(batch, numbered(1), "what a waiting read gave when a record came")

    def test_threads_can_read_at_the_same_time(self) -> None:
        stream = self.filled(200)
        readers = [self.in_background(self.everything, stream, 0, limit) for limit in (7, 50, 13, 200)]
        for reader in readers:
            records = self.result_of(reader, "four threads that read", SETTLE_S)
            check_values(records, numbered(200), "what one of four reading threads got")

    def test_the_span_begins_at_the_first_record_and_ends_behind_the_last(self) -> None:
        stream = self.new_stream()
        stored = self.put(stream, numbered(10))
        first, end = stream.span(0)
        assert first <= stored[0].offset, f"the span begins at {first}, behind the first record at {stored[0].offset}"
        assert end > stored[-1].offset, f"the span ends at {end}, not behind the last record at {stored[-1].offset}"
        assert not self.read(stream, end, wait_s=0.0), "there is a record behind the end of the span"

    def test_earliest_is_the_first_record_and_latest_is_behind_the_last(self) -> None:
        stream = self.filled(3)
        check_values(self.read(stream, self.start_of(stream), 1), numbered(1), "the record at the earliest position")
        latest = stream.locate(0, Position.LATEST)
        self.put(stream, numbered(1, 3))
        check_values(self.read(stream, latest), numbered(1, 3), "what came after the latest position was asked for")

    def test_a_position_at_a_pointer_is_that_pointer(self) -> None:
        stream = self.new_stream()
        stored = self.put(stream, numbered(4))
        for pointer in (stored[2].offset, stored[3].offset + 1):
            found = stream.locate(0, Position.at_pointer(pointer))
            assert found == pointer, f"the position at pointer {pointer} was found at {found}"

    @needs(Feature.TIMES)
    def test_a_position_at_a_time_is_the_first_record_from_then_on(self) -> None:
        stream = self.new_stream()
        began_ms = time.time_ns() // 1_000_000 - 60_000
        for step_ms in (0, 10_000, 10_000, 5_000, 20_000):  # one of them out of order, as producers' clocks are
            metadata_of(stream.append([NewRecord(stream.topic, b"%d" % step_ms, timestamp_ms=began_ms + step_ms)]))
        records = self.everything(stream)
        times_ms = {record.timestamp_ms for record in records}
        for time_ms in sorted({at_ms + by for at_ms in times_ms if at_ms is not None for by in (-1, 0, 1)}):
            pointer = stream.locate(0, Position.at_time(time_ms))
            from_then = [record for record in records if (record.timestamp_ms or 0) >= time_ms]
            if from_then:
                found = self.read(stream, pointer, 1)[0]
                assert found == from_then[0], f"from {time_ms} on, the first is {from_then[0]}, but {found} was found"
            else:
                end = stream.span(0)[1]
                assert pointer == end, f"from {time_ms} on there is nothing, but {pointer} was found, not the end {end}"

    @lacks(Feature.TIMES)
    def test_a_position_at_a_time_is_refused(self) -> None:
        stream = self.new_stream()
        with self.expect(ConfigError, "a position at a time, without Feature.TIMES"):
            stream.locate(0, Position.at_time(1_700_000_000_000))

    def test_a_partition_that_does_not_exist_is_an_unknown_topic_error(self) -> None:
        stream = self.new_stream()
        missing = max(stream.partitions()) + 7
        with self.expect(UnknownTopicError, f"reading partition {missing}, which does not exist"):
            stream.read(missing, 0, 1, 0.0)
        with self.expect(UnknownTopicError, f"the span of partition {missing}, which does not exist"):
            stream.span(missing)
        with self.expect(UnknownTopicError, f"locating in partition {missing}, which does not exist"):
            stream.locate(missing, Position.EARLIEST)

    def test_a_topic_that_does_not_exist_is_an_unknown_topic_error(self) -> None:
        stream = self.opened(self.open(), self.fresh_name())
        with self.expect(UnknownTopicError, "the partitions of a topic that does not exist"):
            stream.partitions()

    def test_a_stream_that_was_closed_is_not_read(self) -> None:
        stream = self.filled(1)
        start = self.start_of(stream)
        stream.close()
        with self.expect(ConnectionClosedError, "reading a stream that was closed"):
            stream.read(0, start, 1, 0.0)

    def test_records_that_expired_are_never_skipped_silently(self) -> None:
        streams = self.open()
        stream = self.new_stream(stream=streams)
        stored = self.put(stream, numbered(10))
        start, left = self.start_of(stream), stored[6].offset
        self.expire_before(streams, stream.topic, 0, left)
        with self.expect(OffsetOutOfRangeError, f"a read at {start}, where records have expired"):
            stream.read(0, start, 10, 0.0)
        assert stream.span(0)[0] >= left, f"the span still begins at {stream.span(0)[0]}, before {left}"
        batch = stream.read(0, self.start_of(stream), 10, SETTLE_S)
        check_batch(batch, stream.topic, 0, 10)
        check_values(batch, numbered(4, 6), "what has not expired")

    @needs(Feature.PARTITIONS)
    def test_partitions_are_read_apart_from_each_other(self) -> None:
        stream = self.new_stream(partitions=3)
        assert list(stream.partitions()) == [0, 1, 2], f"a topic of 3 partitions has {list(stream.partitions())}"
        keys = [b"key %d" % number for number in range(30)]
        metadata_of(stream.append([NewRecord(stream.topic, key, key) for key in keys]))
        found = [record.value for record in self.everything_everywhere(stream)]
        assert sorted(map(repr, found)) == sorted(map(repr, keys)), f"3 partitions hold {found} instead of {keys}"
