"""Writing and reading: what goes in comes out, in order, at the offset that was promised."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
)
from penstock.log.batches.batch import (
    CONTROL,
    DELETE_HORIZON,
    NewRecord,
    StoredRecord,
    build_batch,
    read_header,
    records_of,
    seal_batch,
)
from penstock.log.configs.topic_config import TopicConfig
from penstock.log.lookup import Slice
from penstock.log.partition import PartitionLog
from penstock.log.segment import Resources
from tests.log.engine import (
    NOW_MS,
    SMALL,
    QuickDisk,
    batch_of,
    headers_from,
    open_log,
    put,
    put_values,
    read_all,
    records_from,
    reopen,
    segment_files,
)
from tests.sampling import examples


def test_records_come_back_in_order_with_their_keys_values_headers_and_times(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p")
    headers = (("trace", b"1"), ("empty", b""), ("none", None), ("trace", b"2"))
    written = [
        NewRecord(NOW_MS, b"key", b"value", headers),
        NewRecord(NOW_MS + 5, None, b"no key"),
        NewRecord(NOW_MS - 5, b"no value", None),
        NewRecord(NOW_MS, b"", b""),
    ]
    put(log, memoryview(build_batch(written)))
    assert read_all(log) == [StoredRecord(offset, *record) for offset, record in enumerate(written)]


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_is_kept_byte_for_byte_whatever_its_codec(tmp_path: Path, codec: int) -> None:
    log = open_log(tmp_path / "p", {})
    put_values(log, 3)
    batch = bytes(batch_of([(b"k", b"v" * 500)] * 3, codec=codec))
    put(log, memoryview(bytearray(batch)))
    header, stored = headers_from(log, 3)[0]
    assert header.base_offset == 3
    assert stored[8:] == batch[8:]


def test_nothing_is_readable_before_it_is_published(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p")
    log.append(batch_of([(b"k", b"v")]), NOW_MS)
    assert not records_from(log, 0)
    log.write()
    assert not records_from(log, 0)
    log.publish(log.end_offset)
    assert len(records_from(log, 0)) == 1


def test_many_staged_batches_become_one_write(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", {})
    for number in range(2500):  # more than one system call takes
        log.append(batch_of([(b"k", b"%d" % number)]), NOW_MS)
    log.write()
    log.publish(log.end_offset)
    assert [record.value for record in records_from(log, 0, max_bytes=1 << 20)] == [b"%d" % n for n in range(2500)]


def test_a_slice_has_at_least_one_whole_batch_and_no_more_bytes_than_asked_for(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", {})
    put_values(log, 10)
    size = segment_files(tmp_path / "p")[0].stat().st_size // 10
    assert length_of(log.read(0, 1, 10)) >= size
    assert log.read(0, 1, 10, at_least_one=False) is None
    assert length_of(log.read(0, 3 * size + 5, 10)) == 3 * size + 5
    assert length_of(log.read(4, 1 << 20, 6)) < 3 * size
    assert log.read(10, 1 << 20, 10) is None


def length_of(piece: Slice | None) -> int:
    assert piece is not None
    return piece.length


def test_a_log_is_the_same_after_it_was_closed_and_opened_again(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p")
    expected = put_values(log, 30, per_batch=3)
    log.close()
    for _ in range(3):
        log, report = reopen(tmp_path / "p")
        assert report.scanned_bytes == 0
        assert (log.log_start_offset, log.end_offset, log.high_watermark) == (0, 30, 30)
        assert read_all(log) == expected
        log.close()
    expected += put_values(log := open_log(tmp_path / "p"), 5)
    assert read_all(log) == expected


def test_a_log_that_was_not_closed_is_read_from_its_last_checkpoint_on(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", {})
    expected = put_values(log, 10)
    log.checkpoint()
    size = segment_files(tmp_path / "p")[0].stat().st_size
    expected += put_values(log, 10)
    log, report = reopen(tmp_path / "p", {})
    assert report.scanned_bytes == segment_files(tmp_path / "p")[0].stat().st_size - size
    assert report.truncated_bytes == 0
    assert read_all(log) == expected


@pytest.mark.parametrize("offset", [-1, 4, 100])
def test_an_offset_that_is_not_there_is_an_error(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path / "p")
    put_values(log, 3)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        log.read(offset, 100, log.high_watermark)
    assert (caught.value.offset, caught.value.start, caught.value.end) == (offset, 0, 3)


@settings(max_examples=examples(20, soak=600), deadline=None)
@given(
    times=st.lists(st.integers(0, 60), min_size=1, max_size=60),
    per_batch=st.integers(1, 4),
    interval=st.sampled_from([0, 100, 250, 4096]),
    deleted=st.integers(0, 60),
    reopened=st.booleans(),
)
def test_lookups_by_offset_and_by_time_agree_with_looking_at_every_record(
    tmp_path_factory: pytest.TempPathFactory,
    times: list[int],
    per_batch: int,
    interval: int,
    deleted: int,
    reopened: bool,
) -> None:
    folder = tmp_path_factory.mktemp("lookup") / "p"
    how = SMALL | {"index.interval.bytes": str(interval)}
    log = open_log(folder, how)
    for first in range(0, len(times), per_batch):
        records = [NewRecord(NOW_MS + time, b"k", b"v" * time) for time in times[first : first + per_batch]]
        put(log, memoryview(build_batch(records)))
    log.delete_records(min(deleted, log.end_offset))
    if reopened:
        log = open_log(folder, how)
    check_lookups(log, [StoredRecord(n, NOW_MS + t, b"k", b"v" * t) for n, t in enumerate(times)])


def check_lookups(log: PartitionLog, written: list[StoredRecord]) -> None:
    left = written[log.log_start_offset :]
    for record in left:
        assert records_from(log, record.offset) == left[record.offset - log.log_start_offset :]
    for at_ms in range(NOW_MS - 1, NOW_MS + 62):
        naive = next(((r.offset, r.timestamp) for r in left if r.timestamp >= at_ms), None)
        assert log.offset_for_time(at_ms) == naive
    newest = max(left, key=lambda record: (record.timestamp, -record.offset), default=None)
    assert log.offset_of_max_timestamp() == (newest and (newest.offset, newest.timestamp))


@pytest.mark.parametrize("seed", range(5))
def test_any_batch_that_arrives_damaged_is_refused(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    log = open_log(tmp_path / "p")
    good = bytes(batch_of([(b"key", b"value")] * 3))
    for _ in range(200):
        bad = bytearray(good)
        position = chance.randrange(8, len(bad))
        bad[position] ^= 1 << chance.randrange(8)
        if 12 <= position < 16:
            continue  # the leader epoch, which the log fills in itself
        print(f"seed {seed}: byte {position} is flipped")
        with pytest.raises((CorruptBatchError, InvalidRecordError)):
            log.append(memoryview(bad), NOW_MS)
    assert log.end_offset == 0


def test_batches_that_no_honest_client_sends_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", {"max.message.bytes": "200", "message.timestamp.after.max.ms": "10"})
    with pytest.raises(CorruptBatchError):
        log.append(memoryview(bytearray(10)), NOW_MS)
    with pytest.raises(InvalidRecordError):
        log.append(memoryview(build_batch([])), NOW_MS)
    for attributes in (CONTROL, DELETE_HORIZON):
        with pytest.raises(InvalidRecordError):
            log.append(memoryview(build_batch([NewRecord(NOW_MS, b"k", b"v")], attributes=attributes)), NOW_MS)
    with pytest.raises(RecordTooLargeError):
        log.append(batch_of([(b"k", b"v" * 200)]), NOW_MS)
    with pytest.raises(InvalidTimestampError):
        log.append(batch_of([(b"k", b"v")], at_ms=NOW_MS + 11), NOW_MS)
    with pytest.raises(InvalidRecordError, match="exactly one batch"):
        log.append(memoryview(bytearray(bytes(batch_of([(b"k", b"v")])) * 2)), NOW_MS)
    assert log.end_offset == 0


def test_a_topic_may_stamp_records_with_its_own_time_and_codec(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", {"message.timestamp.type": "LogAppendTime", "compression.type": "zstd"})
    appended = log.append(batch_of([(b"k", b"v")] * 2, at_ms=5), NOW_MS)
    assert appended.log_append_time == NOW_MS
    log.write()
    log.publish(log.end_offset)
    assert {record.timestamp for record in read_all(log)} == {NOW_MS}
    assert headers_from(log, 0)[0][0].codec == 4


@pytest.mark.parametrize(("codec", "weak", "strong"), [("gzip", "1", "9"), ("lz4", "1", "12"), ("zstd", "-50", "19")])
def test_a_topic_compresses_at_the_level_that_it_sets(tmp_path: Path, codec: str, weak: str, strong: str) -> None:
    seeded = random.Random(3)
    values = [b" ".join(b"%d" % seeded.randrange(1000) for _ in range(20)) for _ in range(500)]
    sizes = []
    for level in (weak, strong):
        log = open_log(tmp_path / level, {"compression.type": codec, f"compression.{codec}.level": level})
        put(log, batch_of([(b"k", value) for value in values]))
        assert [record.value for record in read_all(log)] == values
        sizes.append(headers_from(log, 0)[0][0].length)
    assert sizes[0] > 1.02 * sizes[1], f"{codec} at levels {weak} and {strong}: {sizes} bytes"


def test_a_compacted_topic_refuses_records_without_a_key(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", {"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecordError):
        log.append(batch_of([(b"k", b"v"), (None, b"v")]), NOW_MS)


@given(st.binary(max_size=200), st.integers(0, 4), st.integers(0, 5))
@settings(max_examples=examples(60, soak=3000))
def test_garbage_with_a_good_checksum_is_refused_or_read_but_never_crashes(
    garbage: bytes, codec: int, count: int
) -> None:
    header = read_header(build_batch([NewRecord(1, b"k", b"v")]))
    batch = seal_batch(header._replace(attributes=codec, record_count=count), garbage)
    try:
        records = list(records_of(batch))
    except CorruptBatchError:
        return
    assert len(records) == count


def test_indexes_take_no_more_memory_than_they_may(tmp_path: Path) -> None:
    config = TopicConfig.parse(SMALL | {"index.interval.bytes": "0"})
    resources = Resources(QuickDisk(), index_bytes=400)
    log, _ = PartitionLog.open("topic", 0, tmp_path / "p", config, resources)
    expected = put_values(log, 200)
    assert len(log.segments) > 20
    for _ in range(2):
        assert read_all(log) == expected
        sealed = [segment for segment in log.segments if segment.sealed]
        assert sum(segment.index_bytes for segment in sealed) <= 400
