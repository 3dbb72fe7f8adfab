"""Reading a partition's files without its owner, while the owner does everything that owners do."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from penstock.errors import CorruptSegmentError, InvalidTopicError, OffsetOutOfRangeError, UnknownTopicError
from penstock.log.batches.batch import StoredRecord
from penstock.log.batches.compression import compress
from penstock.log.partition import PartitionLog
from penstock.log.reader import LogReader, PartitionReader
from penstock.log.segment import Resources
from penstock.log.store import TopicStore
from tests.log.batches import Batch, frame
from tests.log.engine import (
    NOW_MS,
    SMALL,
    QuickDisk,
    batch_of,
    compact,
    end_transaction,
    open_log,
    put,
    put_values,
    segment_files,
)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path / "topic-0", SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})


def test_a_reader_gives_every_record_from_any_offset_to_any_other(log: PartitionLog) -> None:
    expected = put_values(log, 30, per_batch=3)
    with PartitionReader(log.folder) as reader:
        assert list(reader.read()) == expected
        assert (reader.partition, reader.start_offset, reader.end_offset) == (0, 0, 30)
        for offset in range(31):
            assert list(reader.read(offset)) == expected[offset:]
            assert list(reader.read(offset, stop=offset + 7)) == expected[offset : offset + 7]


def test_a_reader_finds_the_first_record_at_or_after_a_time(log: PartitionLog) -> None:
    expected = put_values(log, 30, per_batch=3)
    reader = PartitionReader(log.folder)
    for record in expected:
        assert next(reader.from_time(record.timestamp)).timestamp >= record.timestamp
    assert list(reader.from_time(0)) == expected
    assert not list(reader.from_time(expected[-1].timestamp + 1))
    assert list(reader.from_time(expected[9].timestamp, stop=12)) == expected[9:12]


@pytest.mark.parametrize("count", [0, 1, 7, 30, 100])
def test_the_tail_is_the_last_records(log: PartitionLog, count: int) -> None:
    expected = put_values(log, 30, per_batch=3)
    assert PartitionReader(log.folder).tail(count) == (expected[-count:] if count else [])


def test_the_tail_is_as_long_as_asked_for_though_offsets_are_left_out(log: PartitionLog) -> None:
    for number in range(40):
        put(log, batch_of([(b"k%d" % (number % 20), b"%d" % number)]))
    log.roll()
    compact(log)
    end_transaction(log, 5, commit=True)
    assert [record.offset for record in PartitionReader(log.folder).tail(12)] == list(range(28, 40))


def test_a_reader_never_writes(log: PartitionLog) -> None:
    put_values(log, 30)
    for path in log.folder.glob("*.penstock-index"):
        path.unlink()
    before = {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in log.folder.iterdir()}
    reader = PartitionReader(log.folder)
    assert len(list(reader.read())) == 30
    reader.close()
    assert {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in log.folder.iterdir()} == before


def test_an_unfinished_write_is_not_there_yet(log: PartitionLog) -> None:
    expected = put_values(log, 10)
    last = segment_files(log.folder)[-1]
    whole = last.read_bytes()
    reader = PartitionReader(log.folder)
    batch = bytes(batch_of([(b"k", b"v")]))
    for length in range(0, len(batch), 7):
        last.write_bytes(whole + log.end_offset.to_bytes(8, "big") + batch[8:length])
        assert list(reader.read()) == expected
        assert list(PartitionReader(log.folder).read()) == expected
    last.write_bytes(whole + log.end_offset.to_bytes(8, "big") + batch[8:])
    assert [record.offset for record in reader.read()] == list(range(11))


def test_a_reader_sees_what_is_written_after_it_was_opened(log: PartitionLog) -> None:
    reader = PartitionReader(log.folder)
    assert not list(reader.read())
    expected: list[StoredRecord] = []
    for _ in range(12):
        expected += put_values(log, 3)
        assert list(reader.read()) == expected
    assert len(segment_files(log.folder)) > 3


def test_following_gives_records_as_they_come_and_ends_when_told_to(log: PartitionLog) -> None:
    expected = put_values(log, 5)
    stop = threading.Event()
    following = PartitionReader(log.folder).follow(2, poll_s=0, stop=stop)
    assert list(islice(following, 3)) == expected[2:]
    for _ in range(10):
        added = put_values(log, 4, per_batch=2)
        assert list(islice(following, 4)) == added
    stop.set()
    put_values(log, 1)
    assert not list(following)


def test_following_starts_at_the_end_where_no_offset_is_given(log: PartitionLog) -> None:
    put_values(log, 5)
    following = PartitionReader(log.folder).follow(poll_s=0)
    added = put_values(log, 1)
    assert next(following) == added[0]


def test_following_goes_on_in_a_partition_that_had_no_records_yet(tmp_path: Path) -> None:
    reader = PartitionReader(tmp_path / "topic-0")
    following = reader.follow(0, poll_s=0)
    expected = put_values(open_log(tmp_path / "topic-0"), 3)
    assert list(islice(following, 3)) == expected


def test_a_deleted_offset_is_an_error_and_the_rest_can_be_read(log: PartitionLog) -> None:
    expected = put_values(log, 30)
    reader = PartitionReader(log.folder)
    assert list(reader.read(0)) == expected
    log.delete_records(17)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        reader.read(16)
    assert caught.value.start == 17
    assert list(reader.read()) == expected[17:]
    with pytest.raises(OffsetOutOfRangeError):
        reader.read(31)


def test_segments_that_are_deleted_while_they_are_read_end_in_the_proper_error(log: PartitionLog) -> None:
    expected = put_values(log, 60)
    reader = PartitionReader(log.folder)
    stop = threading.Event()
    following = reader.follow(0, poll_s=0, stop=stop)
    assert next(following) == expected[0]
    log.delete_records(50)
    seen = [expected[0]]
    with pytest.raises(OffsetOutOfRangeError):
        seen += following
    assert seen == expected[: len(seen)]
    assert list(reader.read()) == expected[50:]


def test_a_reader_in_the_middle_of_a_segment_goes_on_after_it_is_compacted(log: PartitionLog) -> None:
    for number in range(60):
        put(log, batch_of([(b"k%d" % (number % 7), b"%d" % number)]))
    log.roll()
    reader = PartitionReader(log.folder)
    following = reader.follow(0, poll_s=0)
    seen = list(islice(following, 10))
    compact(log)
    put(log, batch_of([(b"end", b"")]))
    for record in following:
        seen.append(record)
        if record.key == b"end":
            break
    assert [record.offset for record in seen] == sorted({record.offset for record in seen})
    latest = {record.key: record.value for record in seen}
    assert latest == {b"k%d" % (n % 7): b"%d" % n for n in range(60)} | {b"end": b""}
    assert [record.offset for record in reader.read()] == [*range(53, 61)]


def test_two_readers_at_once_do_not_disturb_each_other(log: PartitionLog) -> None:
    expected = put_values(log, 20)
    reader = PartitionReader(log.folder)
    first, second = reader.read(), reader.read(5)
    mixed = [next(first), next(second), next(first)]
    put_values(log, 5)
    list(reader.read())
    assert mixed == [expected[0], expected[5], expected[1]]
    assert list(first) == expected[2:]
    assert list(second) == expected[6:]


def test_aborted_and_undecided_transactions_are_left_out(log: PartitionLog) -> None:
    for producer_id, value in ((1, b"committed"), (2, b"aborted"), (3, b"open")):
        put(log, batch_of([(b"k", value)] * 2, producer_id=producer_id, sequence=0, transactional=True))
        put(log, batch_of([(b"k", b"plain")]))
    end_transaction(log, 1, commit=True)
    committed = PartitionReader(log.folder)
    everything = PartitionReader(log.folder, isolation="read_uncommitted")
    assert [record.offset for record in committed.read()] == [0, 1, 2], "what follows is not decided yet"
    end_transaction(log, 2, commit=False)
    put(log, batch_of([(b"k", b"late")]))
    assert [record.value for record in committed.read()] == [b"committed"] * 2 + [b"plain"] * 2
    assert committed.end_offset == 6
    assert [record.value for record in everything.read()].count(b"aborted") == 2
    assert [record.offset for record in everything.read()] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 11]
    end_transaction(log, 3, commit=True)
    assert [record.value for record in committed.read(6)] == [b"open", b"open", b"plain", b"late"]


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_damage_is_raised_or_passed_over_as_the_reader_wants(log: PartitionLog, tmp_path: Path, where: str) -> None:
    expected = put_values(log, 30, per_batch=2)
    log.close()
    path = segment_files(log.folder)[1]
    content = bytearray(path.read_bytes())
    content[{"first": 70, "middle": len(content) // 2, "last": -3}[where]] ^= 4
    path.write_bytes(content)
    reader = PartitionReader(log.folder)
    seen: list[StoredRecord] = []
    with pytest.raises(CorruptSegmentError) as caught:
        seen += reader.read()
    damaged = caught.value.offset
    assert caught.value.file == str(path)
    assert seen == expected[:damaged]
    assert list(reader.read(damaged + 2)) == expected[damaged + 2 :]
    skipping = PartitionReader(log.folder, on_damage="skip")
    assert list(skipping.read()) == expected[:damaged] + expected[damaged + 2 :]


def test_options_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="read_committed"):
        PartitionReader(tmp_path / "topic-0", isolation="serializable")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="skip"):
        PartitionReader(tmp_path / "topic-0", on_damage="ignore")  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicError):
        PartitionReader(tmp_path / "no_number")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TopicStore]:
    store = TopicStore(tmp_path / "data", resources=Resources(QuickDisk()))
    yield store
    store.close()


def test_a_topic_is_read_by_its_name(store: TopicStore) -> None:
    topic = store.create("orders", 3, {})
    expected = [put_values(partition, 4) for partition in topic.partitions]
    with LogReader(store.folder, "orders") as reader:
        assert [list(partition.read()) for partition in reader.partitions()] == expected
        assert list(reader.partition(2).read()) == expected[2]
        with pytest.raises(UnknownTopicError, match="0 to 2"):
            reader.partition(3)
        store.add_partitions("orders", 4)
        assert not list(reader.partition(3).read())


def test_a_topic_that_is_not_there_is_an_error(store: TopicStore) -> None:
    with pytest.raises(UnknownTopicError):
        LogReader(store.folder, "orders")
    with pytest.raises(InvalidTopicError):
        LogReader(store.folder, "../topics")


def test_following_a_topic_that_is_deleted_ends_in_an_error(store: TopicStore) -> None:
    log = store.create("orders", 1, {}).partitions[0]
    expected = put_values(log, 3)
    following = LogReader(store.folder, "orders").partition(0).follow(0, poll_s=0)
    assert list(islice(following, 3)) == expected
    store.delete("orders")
    with pytest.raises(UnknownTopicError):
        next(following)


def test_following_a_topic_that_was_deleted_and_made_again_ends_in_an_error(store: TopicStore) -> None:
    put_values(store.create("orders", 1, {}).partitions[0], 9)
    following = LogReader(store.folder, "orders").partition(0).follow(0, poll_s=0)
    assert len(list(islice(following, 9))) == 9
    store.delete("orders")
    store.deletion_finished("orders")
    put_values(store.create("orders", 1, {}).partitions[0], 3)
    with pytest.raises(OffsetOutOfRangeError):
        next(following)


def test_a_reader_works_after_its_owner_crashed_in_the_middle_of_a_swap(log: PartitionLog) -> None:
    for number in range(60):
        put(log, batch_of([(b"k%d" % (number % 7), b"%d" % number)]))
    log.roll()
    expected = {b"k%d" % (n % 7): b"%d" % n for n in range(60)}
    before = log.folder.with_name("before-0")
    shutil.copytree(log.folder, before)
    compact(log)
    for path in segment_files(log.folder)[:-1]:  # the new files are in place, and the old ones not yet removed
        shutil.copy(path, before / path.name)
        shutil.copy(path.with_suffix(".penstock-index"), before / path.with_suffix(".penstock-index").name)
    records = list(PartitionReader(before).read())
    assert {record.key: record.value for record in records} == expected
    assert [record.offset for record in records] == sorted({record.offset for record in records})


def test_records_become_arrow(log: PartitionLog) -> None:
    pytest.importorskip("pyarrow")
    for codec in range(5):
        put(log, batch_of([(b"k%d" % codec, b"v" * codec), (b"x%d" % codec, None)], codec=codec))
    put(log, batch_of([(b"k", b"aborted")], producer_id=2, sequence=0, transactional=True))
    end_transaction(log, 2, commit=False)
    expected = put_values(log, 20)
    reader = PartitionReader(log.folder)
    rows = [row for batch in reader.to_arrow() for row in batch.to_pylist()]
    plain = [(record.offset, record.key, record.value) for record in reader.read()]
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == plain
    assert {row["partition"] for row in rows} == {0}
    rows = [row for batch in reader.to_arrow(15, 18, engine="numpy") for row in batch.to_pylist()]
    assert [row["key"] for row in rows] == [record.key for record in expected if 15 <= record.offset < 18]
    compacted = put_values(log, 1)
    log.roll()
    compact(log, NOW_MS)
    assert len(compacted) == 1
    assert [row["offset"] for batch in reader.to_arrow() for row in batch.to_pylist()] == [
        record.offset for record in reader.read()
    ]


def test_damage_is_not_turned_into_arrow(log: PartitionLog) -> None:
    pytest.importorskip("pyarrow")
    expected = put_values(log, 30, per_batch=2)
    log.close()
    path = segment_files(log.folder)[1]
    content = bytearray(path.read_bytes())
    content[130] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptSegmentError) as caught:
        list(PartitionReader(log.folder).to_arrow())
    lost = caught.value.offset
    rows = [row for batch in PartitionReader(log.folder, on_damage="skip").to_arrow() for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == [r.offset for r in expected if r.offset not in (lost, lost + 1)]


ALIKE = b"\x10\0\0\0\x01\x04ok\0"
"""A record with the first offset of its batch."""


@pytest.mark.parametrize("engine", ["plain", "numpy", "numba"])
@pytest.mark.parametrize("codec", [0, 4], ids=["none", "zstd"])
@pytest.mark.parametrize(
    ("section", "count"),
    [
        pytest.param(b"\xfe\xff\xff\xff\x0f" + ALIKE[1:], 1, id="a record of 2^31-1 bytes"),
        pytest.param(ALIKE, 1000, id="1000 records of which there is 1"),
        pytest.param(ALIKE + ALIKE[:3] + b"\x02" + ALIKE[4:], 1, id="1 record of which there are 2"),
        pytest.param(ALIKE + ALIKE, 2, id="the same offset twice"),
    ],
)
def test_a_stored_batch_that_lies_is_damage_and_what_follows_it_can_be_read(
    log: PartitionLog, engine: str, codec: int, section: bytes, count: int
) -> None:
    """Earlier versions let such batches in."""
    expected = put_values(log, 3)
    lying = bytearray(frame(Batch(0, (), count - 1, codec=codec), compress(codec, section), count))
    log.append_internal(lying)
    log.write()
    expected += put_values(log, 2)

    def offsets(reader: PartitionReader, start: int) -> list[int]:
        if engine == "plain":
            return [record.offset for record in reader.read(start)]
        return [offset for rows in reader.to_arrow(start, engine=engine) for offset in rows["offset"].to_pylist()]

    with PartitionReader(log.folder) as reader:
        with pytest.raises(CorruptSegmentError, match=f"{log.folder}"):
            offsets(reader, 0)
        assert offsets(reader, 3 + count) == [record.offset for record in expected[3:]]
    with PartitionReader(log.folder, on_damage="skip") as reader:
        assert offsets(reader, 0) == [record.offset for record in expected]
