"""Cases: appending to a stream, and what survives when the appender is killed."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict

from penstock.abc import Feature, Stream, TopicStream
from penstock.errors import ConfigError, ConnectionClosedError, DeliveryError, TopicExistsError, UnknownTopicError
from penstock.model import Headers, NewRecord, Receipt, Record
from penstock.testing.conformance.child import Parent
from penstock.testing.conformance.streams.suite import (
    SETTLE_S,
    StreamSuite,
    check_values,
    metadata_of,
    numbered,
    ordered_record,
)
from penstock.testing.conformance.suite import needs

LARGE_BYTES = 500_000


class AppendingCases(StreamSuite):
    def test_values_come_back_as_they_were(self) -> None:
        stream = self.new_stream()
        values = [
            b"plain",
            b"",
            None,
            bytes(range(256)),
            b"\x00",
            "ü€😀".encode(),
            self.rng.randbytes(LARGE_BYTES),
            b"",
        ]
        self.put(stream, values)
        found = [record.value for record in self.everything(stream)]
        for number, (value, wanted) in enumerate(zip(found, values, strict=True)):
            assert value == wanted, f"value {number}, {_short(wanted)}, came back as {_short(value)}"

    @needs(Feature.OFFSETS)
    def test_consecutive_records_have_consecutive_pointers(self) -> None:
        stream = self.new_stream()
        self.put(stream, [b"%d" % number for number in range(5)])
        found = [record.offset for record in self.everything(stream)]
        assert found == list(range(found[0], found[0] + 5)), f"the pointers are {found}"

    @needs(Feature.KEYS)
    def test_keys_come_back_as_they_were(self) -> None:
        stream = self.new_stream()
        keys = [b"plain", b"", None, bytes(range(256)), "ü€😀".encode()]
        metadata_of(stream.append([NewRecord(stream.topic, b"", key) for key in keys]))
        found = [record.key for record in self.everything(stream)]
        assert found == keys, f"the keys {keys} came back as {found}"

    @needs(Feature.HEADERS)
    def test_headers_come_back_as_they_were(self) -> None:
        stream = self.new_stream()
        several: list[Headers] = [
            (),
            (("one", b"1"),),
            (("again", b"1"), ("other", b""), ("again", b"2"), ("again", None)),
            (("ü€😀", bytes(range(256))),),
        ]
        metadata_of(stream.append([NewRecord(stream.topic, b"", headers=headers) for headers in several]))
        found = [record.headers for record in self.everything(stream)]
        assert found == several, f"the headers {several} came back as {found}"

    @needs(Feature.TIMES)
    def test_a_record_without_a_timestamp_gets_the_time_when_it_was_appended(self) -> None:
        stream = self.new_stream()
        before_ms = time.time_ns() // 1_000_000
        self.put(stream, numbered(1))
        [record] = self.everything(stream)
        stamp_ms = record.timestamp_ms
        assert stamp_ms is not None, "a stream with positions at a time gave a record without a timestamp"
        assert abs(stamp_ms - before_ms) < 600_000, f"a record appended at {before_ms} has the timestamp {stamp_ms}"

    def test_there_is_a_receipt_for_each_record_that_says_where_it_stands(self) -> None:
        stream = self.new_stream()
        receipts = stream.append([ordered_record(stream, value, b"key") for value in numbered(20)])
        assert len(receipts) == 20, f"20 records were appended, and there are {len(receipts)} receipts"
        stored = metadata_of(receipts)
        for number, place in enumerate(stored):
            assert place.topic == stream.topic, f"the receipt for {stream.topic} tells of {place}"
            batch = self.read(stream, place.offset, 1, partition=place.partition)
            check_values(batch, numbered(1, number), f"the record at {place}")
        offsets = [place.offset for place in stored]
        assert offsets == sorted(set(offsets)), f"records in their order got the pointers {offsets}"

    def test_appending_nothing_gives_no_receipts(self) -> None:
        receipts = self.new_stream().append([])
        assert len(receipts) == 0, f"nothing was appended, and there are receipts: {receipts}"

    def test_many_appends_under_way_at_once_keep_their_order(self) -> None:
        stream = self.new_stream()
        values = numbered(500)
        receipts = [stream.append([ordered_record(stream, value, b"key")])[0] for value in values]
        metadata_of(receipts)
        check_values(self.everything(stream), values, "500 records appended one by one, without waiting")

    def test_one_append_takes_many_records(self) -> None:
        stream = self.filled(2000)
        check_values(self.everything(stream, limit=700), numbered(2000), "2000 records appended at once")

    def test_what_threads_append_at_the_same_time_is_all_stored_once_and_in_the_order_of_each(self) -> None:
        stream = self.new_stream()
        writers = [self.in_background(_append_for, stream, name) for name in (b"a", b"b", b"c", b"d")]
        for writer in writers:
            receipts = self.result_of(writer, "four threads that append", SETTLE_S)
            metadata_of(receipts)
        found: dict[bytes, list[bytes]] = defaultdict(list)
        for record in self.everything(stream):
            name, _, number = (record.value or b"").partition(b" ")
            found[name].append(number)
        assert set(found) == {b"a", b"b", b"c", b"d"}, f"four threads appended, and {set(found)} are found"
        for name, numbers in found.items():
            assert numbers == numbered(100), f"what thread {name!r} appended in order is stored as {numbers}"

    @needs(Feature.KEYS, Feature.PARTITIONS)
    def test_records_of_one_key_are_in_one_partition_in_their_order(self) -> None:
        stream = self.new_stream(partitions=4)
        keys = [b"key %d" % number for number in range(20)]
        receipts: list[Receipt] = []
        for round_number in range(10):
            receipts += stream.append([NewRecord(stream.topic, b"%d" % round_number, key) for key in keys])
        metadata_of(receipts)
        records = self.everything_everywhere(stream)
        for key in keys:
            mine = [record for record in records if record.key == key]
            check_values(mine, numbered(10), f"the records of {key!r}")
            homes = {record.partition for record in mine}
            assert len(homes) == 1, f"records of {key!r} are in the partitions {homes}"
        used = {record.partition for record in records}
        assert len(used) > 1, f"20 keys all went to partition {used} of 4"

    @needs(Feature.CHOSEN_PARTITION, Feature.PARTITIONS)
    def test_a_record_goes_to_the_partition_that_was_chosen(self) -> None:
        stream = self.new_stream(partitions=3)
        for partition in (2, 0, 1):
            records = [NewRecord(stream.topic, b"%d" % partition, b"same key", partition=partition)]
            [place] = metadata_of(stream.append(records))
            assert place.partition == partition, f"partition {partition} was chosen, but the record stands at {place}"
            check_values(self.everything(stream, partition), [b"%d" % partition], f"partition {partition}")

    @needs(Feature.CHOSEN_PARTITION)
    def test_a_record_for_a_partition_that_does_not_exist_is_refused(self) -> None:
        stream = self.new_stream()
        try:
            [receipt] = stream.append([NewRecord(stream.topic, b"lost", partition=99)])
            receipt.result(SETTLE_S)
        except (DeliveryError, UnknownTopicError):
            pass
        else:
            raise AssertionError(f"there is no partition 99, but a record for it was stored: {receipt}")
        self.put(stream, numbered(1))
        check_values(self.everything(stream), numbered(1), "the topic, whose first record was refused")

    def test_what_is_appended_after_close_is_refused(self) -> None:
        stream = self.filled(1)
        stream.close()
        with self.expect(ConnectionClosedError, "appending to a stream that was closed"):
            stream.append([NewRecord(stream.topic, b"late")])

    def test_close_settles_what_is_under_way(self) -> None:
        streams = self.open()
        stream = self.new_stream(stream=streams)
        receipts = stream.append([ordered_record(stream, value, b"key") for value in numbered(200)])
        stream.close()
        undecided = sum(not receipt.done for receipt in receipts)
        assert undecided == 0, f"after close, {undecided} of 200 receipts are neither stored nor refused"
        stored = [value for value, receipt in zip(numbered(200), receipts, strict=True) if receipt.error is None]
        check_values(self.everything(self.opened(streams, stream.topic)), stored, "what close said was stored")

    def test_closing_twice_does_no_harm(self) -> None:
        stream = self.new_stream()
        stream.close()
        stream.close()
        with self.expect(ConnectionClosedError, "a stream closed twice"):
            stream.append([NewRecord(stream.topic, b"late")])

    def test_topics_are_listed_and_not_created_twice(self) -> None:
        streams = self.open()
        topic = self.fresh_name()
        assert topic not in streams.topics(), f"topic {topic!r} is listed before it exists"
        streams.create_topic(topic, 1)
        assert topic in streams.topics(), f"topic {topic!r} was created and is not listed"
        with self.expect(TopicExistsError, "creating a topic that exists"):
            streams.create_topic(topic, 1)

    def test_a_topic_has_at_least_one_partition(self) -> None:
        with self.expect(ConfigError, "creating a topic without partitions"):
            self.open().create_topic(self.fresh_name(), 0)


def _append_for(stream: TopicStream, name: bytes) -> list[Receipt]:
    receipts: list[Receipt] = []
    for first in range(0, 100, 5):
        values = [b"%b %d" % (name, number) for number in range(first, first + 5)]
        receipts += stream.append([ordered_record(stream, value, name) for value in values])
    return receipts


def _short(value: bytes | None) -> str:
    return repr(value) if value is None or len(value) < 50 else f"{len(value)} bytes from {value[:20]!r}"


KILLS = 3
KEYS = (b"a", b"b", b"c")


class StreamCrashCases(StreamSuite):
    @needs(Feature.DURABLE)
    def test_what_was_stored_is_there_when_the_stream_is_opened_again(self) -> None:
        streams = self.open()
        stream = self.new_stream(stream=streams)
        self.put(stream, numbered(20))
        stream.close()
        streams.close()
        check_values(self.everything(self.opened(self.open(), stream.topic)), numbered(20), "after it was opened again")

    @needs(Feature.DURABLE)
    def test_nothing_acknowledged_is_lost_when_the_appender_is_killed(self) -> None:
        """Records one by one, killed while the next one is in flight, and then from where that one stopped."""
        streams = self.open()
        stream = self.new_stream(stream=streams)
        acknowledged: list[tuple[int, int, int]] = []
        first = 0
        for _ in range(KILLS):
            with self.child(append_and_tell, stream.topic, first) as child:
                said = [child.receive() for _ in range(self.rng.randint(1, 60))]
                said += child.kill()
            acknowledged += said
            first = said[-1][0] + 1000  # a gap, so that what was under way is told from what comes now
        records = self.everything_everywhere(stream)
        self._check_kept(records, acknowledged)
        self._check_order(records)

    @needs(Feature.DURABLE, Feature.IDEMPOTENCE)
    def test_nothing_is_stored_twice_when_the_appender_is_killed(self) -> None:
        stream = self.new_stream(stream=self.open())
        with self.child(append_and_tell, stream.topic, 0) as child:
            for _ in range(self.rng.randint(1, 100)):
                child.receive()
            child.kill()
        values = [record.value for record in self.everything_everywhere(stream)]
        repeated = {value for value in values if values.count(value) > 1}
        assert not repeated, f"each record was appended once, but {sorted(map(repr, repeated))} are stored repeatedly"

    def _check_kept(self, records: list[Record], acknowledged: list[tuple[int, int, int]]) -> None:
        there = {(record.partition, record.offset): record.value for record in records}
        lost = [said for said in acknowledged if there.get((said[1], said[2])) != b"%d" % said[0]]
        assert not lost, (
            f"{len(lost)} of {len(acknowledged)} acknowledged records are not where their receipts said, such as "
            f"(number, partition, pointer) {lost[0]}: there is {there.get(lost[0][1:])!r}"
        )

    def _check_order(self, records: list[Record]) -> None:
        """Unacknowledged records, where they are stored, are in order too."""
        for key in KEYS if Feature.KEYS in self.features else (None,):
            numbers = [int(record.value or b"-1") for record in records if key is None or record.key == key]
            disordered = [pair for pair in itertools.pairwise(numbers) if pair[0] > pair[1]]
            assert not disordered, f"of key {key!r}, {disordered[0][0]} stands before {disordered[0][1]}"


def append_and_tell(stream: Stream, parent: Parent, topic: str, first: int) -> None:
    """Append numbered records until killed, and report where each is. A few are in flight at any time."""
    opened = stream.open_topic(topic)
    for number in itertools.count(first, 4):
        numbers = range(number, number + 4)
        receipts = opened.append([ordered_record(opened, b"%d" % each, KEYS[each % 3]) for each in numbers])
        for each, place in zip(numbers, metadata_of(receipts), strict=True):
            parent.send((each, place.partition, place.offset))
