"""Compaction, one rule at a time: what is due, what stays, what goes, and when."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.errors import OffsetOutOfRangeError
from penstock.log.batches.batch import DELETE_HORIZON, NewRecord, StoredRecord, build_batch, records_of
from penstock.log.batches.compression import NAMES
from penstock.log.compacting import cleaning, compaction
from penstock.log.compacting.offset_map import NOT_FOUND, OffsetMap
from penstock.log.partition import PartitionLog
from tests.log.engine import (
    COMPACTED,
    NOW_MS,
    RETENTION_MS,
    batch_of,
    committed,
    compact,
    dirty_again,
    end_transaction,
    headers_from,
    open_log,
    put,
    put_values,
    read_all,
    records_from,
    reopen,
    segment_files,
    send,
)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path / "p", COMPACTED)


def what_is_left(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in committed(log)]


def test_the_last_record_of_each_key_stays_at_its_offset(log: PartitionLog) -> None:
    send(log, (b"a", b"1"), (b"b", b"1"))
    send(log, (b"a", b"2"), (b"c", b"1"))
    log.roll()
    send(log, (b"a", b"3"), (b"d", b"1"))
    log.roll()
    cleaned = compact(log)
    assert cleaned is not None
    assert what_is_left(log) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"a", b"3"), (5, b"d", b"1")]
    assert (log.log_start_offset, log.end_offset, log.clean_offset) == (0, 6, 6)


def test_the_active_segment_is_never_compacted(log: PartitionLog) -> None:
    send(log, (b"a", b"1"))
    log.roll()
    send(log, (b"a", b"2"))
    compact(log)
    assert what_is_left(log) == [(0, b"a", b"1"), (1, b"a", b"2")]


def test_small_cleaned_segments_become_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", COMPACTED | {"internal.segment.bytes": "400"})
    for number in range(40):
        send(log, (b"%d" % (number % 4), b"v"))
    sealed = len(log.segments)
    assert sealed > 5
    compact(log)
    assert len(log.segments) == 2
    assert [int(path.stem) for path in segment_files(tmp_path / "p")] == [0, log.segments[-1].base_offset]
    assert all(segment.size <= 400 for segment in log.segments)


def test_a_segment_of_which_everything_stays_is_not_written_again(log: PartitionLog) -> None:
    send(log, (b"a", b"1"), (b"b", b"1"))
    log.roll()
    inode = segment_files(log.folder)[0].stat().st_ino
    cleaned = compact(log)
    assert cleaned is not None
    assert not cleaned.files
    assert log.clean_offset == 2
    assert segment_files(log.folder)[0].stat().st_ino == inode
    assert compaction.plan(log, NOW_MS) is None, "there is nothing dirty any more"


@pytest.mark.parametrize("codec", range(5), ids=NAMES)
def test_what_is_left_of_a_batch_keeps_its_codec_times_headers_and_producer(log: PartitionLog, codec: int) -> None:
    headers = (("h", b"1"), ("none", None))
    records = [NewRecord(NOW_MS + 10 * n, b"%d" % n, b"value" * 20, headers) for n in range(4)]
    put(log, memoryview(build_batch(records, codec=codec, producer_id=5, producer_epoch=2, base_sequence=0)))
    put(log, batch_of([(b"3", b"new"), (b"0", b"new")]))
    log.roll()
    compact(log)
    header, batch = headers_from(log, 0)[0]
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 3, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (5, 2, 0, 3)
    assert (header.codec, header.max_timestamp) == (codec, NOW_MS + 20)
    assert list(records_of(batch)) == [StoredRecord(n, *records[n]) for n in (1, 2)]


def test_a_batch_of_which_everything_stays_is_copied_byte_for_byte(log: PartitionLog) -> None:
    send(log, (b"a", b"1"))
    put(log, batch_of([(b"b", b"1"), (b"c", b"1")], codec=4))
    send(log, (b"a", b"2"))
    log.roll()
    before = headers_from(log, 1)[0][1]
    compact(log)
    assert headers_from(log, 1)[0][1] == before


def test_records_without_a_key_are_dropped_as_they_mean_nothing_in_a_compacted_topic(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", {})
    send(log, (None, b"old"), (b"a", b"1"))
    log.set_config(open_log(tmp_path / "q", COMPACTED).config)
    log.roll()
    compact(log)
    assert what_is_left(log) == [(1, b"a", b"1")]


# When it is due.


@pytest.mark.parametrize(("ratio", "due"), [("0.4", True), ("0.6", False)])
def test_a_log_is_compacted_when_enough_of_it_is_dirty(tmp_path: Path, ratio: str, due: bool) -> None:
    log = open_log(tmp_path / "p", COMPACTED)
    send(log, (b"a", b"x" * 200))
    log.roll()
    compact(log)
    log.set_config(open_log(tmp_path / "q", COMPACTED | {"min.cleanable.dirty.ratio": ratio}).config)
    send(log, (b"b", b"y" * 200))
    log.roll()
    assert (compaction.plan(log, NOW_MS) is not None) == due


def test_old_dirty_records_are_compacted_however_few_they_are(tmp_path: Path) -> None:
    settings = COMPACTED | {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "5000"}
    log = open_log(tmp_path / "p", settings)
    send(log, (b"a", b"1"))
    send(log, (b"a", b"2"))
    assert compaction.plan(log, NOW_MS + 5000) is None
    assert len(log.segments) == 1
    compact(log, NOW_MS + 5001)
    assert len(log.segments) == 2, "the active segment was closed so that it could be compacted"
    assert what_is_left(log) == [(1, b"a", b"2")]


def test_young_records_are_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", COMPACTED | {"min.compaction.lag.ms": "5000"})
    for at_ms in (0, 0, 4000, 4000):
        put(log, batch_of([(b"a", b"%d" % at_ms)], at_ms=NOW_MS + at_ms))
        log.roll()
    assert compact(log, NOW_MS + 4999) is None
    compact(log, NOW_MS + 5000)
    assert [offset for offset, _, _ in what_is_left(log)] == [1, 2, 3]
    compact(log, NOW_MS + 9000)
    assert [offset for offset, _, _ in what_is_left(log)] == [3]


def test_a_topic_that_is_not_compacted_has_nothing_to_compact(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", {"min.cleanable.dirty.ratio": "0"})
    send(log, (b"a", b"1"))
    log.roll()
    assert compaction.plan(log, NOW_MS) is None
    assert compaction.plan(open_log(tmp_path / "q", COMPACTED), NOW_MS) is None


def test_where_the_map_is_too_small_compaction_goes_as_far_as_it_can_and_then_further(log: PartitionLog) -> None:
    for number in range(30):
        send(log, (b"%d" % number, b"1"), (b"same", b"%d" % number))
    log.roll()
    reached = [log.clean_offset]
    while compact(log, dedupe_buffer_bytes=24 * 16) is not None:
        reached.append(log.clean_offset)
    assert len(reached) > 3
    assert reached == sorted(set(reached))
    assert reached[-1] == 60
    assert [key for _, key, _ in what_is_left(log)] == [*(b"%d" % number for number in range(30)), b"same"]


def test_a_map_too_small_for_one_batch_is_an_error_that_names_the_setting(log: PartitionLog) -> None:
    send(log, *((b"%d" % number, b"1") for number in range(20)))
    log.roll()
    with pytest.raises(cleaning.DedupeBufferTooSmallError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        compact(log, dedupe_buffer_bytes=24 * 8)
    assert len(what_is_left(log)) == 20


def test_the_offset_map_holds_as_many_keys_as_fit_and_says_so() -> None:
    keys = [b"key-%d" % number for number in range(1000)]
    small = OffsetMap(24 * 100, 1000)
    taken = [small.put(key, number) for number, key in enumerate(keys)]
    assert sum(taken) == 75
    assert taken == sorted(taken, reverse=True)
    assert all(small.put(key, 5000 + number) for number, key in enumerate(keys[:75])), "known keys always fit"
    assert [small.get(key) for key in keys[:75]] == list(range(5000, 5075))
    assert {small.get(key) for key in keys[75:]} == {NOT_FOUND}
    large = OffsetMap(1 << 30, 1000)
    assert all(large.put(key, number) for number, key in enumerate(keys))
    assert [large.get(key) for key in keys] == list(range(1000))


# Tombstones.


def test_a_tombstone_outlives_what_it_deletes_by_delete_retention_ms(log: PartitionLog) -> None:
    send(log, (b"a", b"1"), (b"b", b"1"))
    send(log, (b"a", None))
    log.roll()
    compact(log, NOW_MS)
    assert what_is_left(log) == [(1, b"b", b"1"), (2, b"a", None)]
    header, batch = headers_from(log, 2)[0]
    assert header.attributes & DELETE_HORIZON
    assert header.base_timestamp == NOW_MS + RETENTION_MS
    assert [record.timestamp for record in records_of(batch)] == [NOW_MS], "its time has not changed"
    assert header.max_timestamp == NOW_MS
    dirty_again(log)
    compact(log, NOW_MS + RETENTION_MS - 1)
    assert (2, b"a", None) in what_is_left(log)
    dirty_again(log)
    compact(log, NOW_MS + RETENTION_MS)
    assert (2, b"a", None) not in what_is_left(log)
    assert log.offset_for_time(NOW_MS) is not None


def test_a_value_behind_a_tombstone_brings_its_key_back(log: PartitionLog) -> None:
    send(log, (b"a", b"1"))
    send(log, (b"a", None))
    send(log, (b"a", b"2"))
    log.roll()
    compact(log)
    assert what_is_left(log) == [(2, b"a", b"2")]


def test_a_tombstone_in_the_uncleaned_rest_of_a_segment_has_its_time_still_before_it(log: PartitionLog) -> None:
    for number in range(12):
        send(log, (b"%d" % number, b"1"))
    send(log, (b"0", None))
    log.roll()
    cleaned = compact(log, dedupe_buffer_bytes=24 * 8)
    assert cleaned is not None
    assert cleaned.clean_offset < 12
    header = headers_from(log, 12)[0][0]
    assert not header.attributes & DELETE_HORIZON


# Transactions.


def test_aborted_records_are_removed_at_once_and_their_marker_when_nothing_needs_it(log: PartitionLog) -> None:
    put(log, batch_of([(b"a", b"good")], producer_id=1, sequence=0, transactional=True))
    end_transaction(log, 1, commit=True)
    put(log, batch_of([(b"a", b"bad"), (b"b", b"bad")], producer_id=1, sequence=1, transactional=True))
    end_transaction(log, 1, commit=False)
    put(log, batch_of([(b"z", b"later")], producer_id=1, sequence=3))
    log.roll()
    compact(log)
    assert what_is_left(log) == [(0, b"a", b"good"), (5, b"z", b"later")]
    assert [header.base_offset for header, _ in headers_from(log, 0)] == [0, 1, 4, 5]
    assert len(log.aborted) == 1
    dirty_again(log)
    compact(log)
    assert not len(log.aborted), "no record of it is left"
    assert headers_from(log, 4)[0][0].attributes & DELETE_HORIZON
    dirty_again(log)
    compact(log, NOW_MS + RETENTION_MS)
    left = [header.base_offset for header, _ in headers_from(log, 0)]
    assert left[:3] == [0, 1, 5], "the commit marker is needed by the record before it, the abort marker by none"


def test_a_commit_marker_goes_after_the_last_record_of_its_transaction(log: PartitionLog) -> None:
    put(log, batch_of([(b"a", b"1")], producer_id=1, sequence=0, transactional=True))
    end_transaction(log, 1, commit=True)
    put(log, batch_of([(b"a", b"2")], producer_id=1, sequence=1))
    log.roll()
    compact(log)
    assert what_is_left(log) == [(2, b"a", b"2")]
    for later_ms, first in ((0, 1), (RETENTION_MS - 1, 1), (RETENTION_MS, 2)):
        dirty_again(log)
        compact(log, NOW_MS + later_ms)
        assert headers_from(log, 0)[0][0].base_offset == first


def test_nothing_behind_an_open_transaction_is_compacted(log: PartitionLog) -> None:
    send(log, (b"a", b"1"))
    log.roll()
    put(log, batch_of([(b"t", b"1")], producer_id=1, sequence=0, transactional=True))
    send(log, (b"a", b"2"))
    log.roll()
    send(log, (b"a", b"3"))
    log.roll()
    compact(log)
    assert [record.offset for record in read_all(log)] == [0, 1, 2, 3]
    end_transaction(log, 1, commit=True)
    log.roll()
    compact(log)
    assert what_is_left(log) == [(1, b"t", b"1"), (3, b"a", b"3")]


def test_an_aborted_record_does_not_supersede_an_older_one(log: PartitionLog) -> None:
    send(log, (b"a", b"good"))
    put(log, batch_of([(b"a", None)], producer_id=1, sequence=0, transactional=True))
    end_transaction(log, 1, commit=False)
    log.roll()
    compact(log)
    assert what_is_left(log) == [(0, b"a", b"good")]


@pytest.mark.parametrize("lost", ["", "checkpoint", "aborted-transactions", "*.penstock-index"])
def test_after_compaction_and_a_crash_transactions_are_as_they_were(log: PartitionLog, lost: str) -> None:
    for sequence in range(6):
        put(log, batch_of([(b"%d" % (sequence % 2), b"v")], producer_id=1, sequence=sequence, transactional=True))
        end_transaction(log, 1, commit=sequence % 3 != 1)
    put(log, batch_of([(b"open", b"v")], producer_id=2, sequence=0, transactional=True))
    log.roll()
    before = what_is_left(log)
    compact(log)
    for path in log.folder.glob(lost) if lost else ():
        path.unlink()
    again = open_log(log.folder, COMPACTED)
    assert again.last_stable_offset == log.last_stable_offset == 12
    assert what_is_left(again) == what_is_left(log)
    assert what_is_left(again)[-1] == before[-1]


# Producers.


@pytest.mark.parametrize("lost", ["", "checkpoint"])
def test_a_producer_is_still_known_when_all_its_records_were_compacted_away(log: PartitionLog, lost: str) -> None:
    put(log, batch_of([(b"a", b"1")], producer_id=1, sequence=0))
    put(log, batch_of([(b"a", b"2"), (b"a", b"3")], producer_id=1, sequence=1))
    send(log, (b"a", b"4"))
    log.roll()
    compact(log)
    assert what_is_left(log) == [(3, b"a", b"4")]
    header, _ = headers_from(log, 0)[0]
    assert (header.base_offset, header.last_offset, header.record_count) == (1, 2, 0)
    for path in log.folder.glob(lost) if lost else ():
        path.unlink()
    log = open_log(log.folder, COMPACTED)
    assert put(log, batch_of([(b"a", b"2"), (b"a", b"3")], producer_id=1, sequence=1)) == 1, "a duplicate"
    assert put(log, batch_of([(b"a", b"5")], producer_id=1, sequence=3)) == 4
    log.roll()
    compact(log)
    assert [header.base_offset for header, _ in headers_from(log, 0)] == [4], "it has written something newer"


# Together with everything else.


def test_retention_applies_as_well_where_a_topic_compacts_and_deletes(tmp_path: Path) -> None:
    settings = COMPACTED | {
        "cleanup.policy": "compact,delete",
        "retention.ms": "10000",
        "internal.segment.bytes": "300",
    }
    log = open_log(tmp_path / "p", settings)
    for number in range(20):
        put(log, batch_of([(b"%d" % (number % 3), b"v" * 20)], at_ms=NOW_MS - 20_000 + number))
    put(log, batch_of([(b"new", b"v")]))
    log.roll()
    compact(log)
    assert log.expire(NOW_MS) > 0
    assert [key for _, key, _ in what_is_left(log)][-1] == b"new"
    start = log.log_start_offset
    assert start > 0
    with pytest.raises(OffsetOutOfRangeError):
        log.read(0, 100, log.high_watermark)
    log.expire(NOW_MS + 20_000)
    assert what_is_left(log) == []
    assert reopen(tmp_path / "p", settings)[0].log_start_offset == 21


def test_a_log_that_lost_all_its_records_to_compaction_keeps_its_offsets(log: PartitionLog) -> None:
    send(log, (b"a", b"1"))
    send(log, (b"a", None))
    log.roll()
    compact(log, NOW_MS)
    dirty = send(log, (b"b", None))
    log.roll()
    compact(log, NOW_MS + RETENTION_MS)
    compact(log, NOW_MS + RETENTION_MS)
    send(log, (b"c", None))
    log.roll()
    compact(log, NOW_MS + 3 * RETENTION_MS)
    assert [offset for offset, _, _ in what_is_left(log)] == [dirty + 1]
    log.close()
    log, report = reopen(log.folder, COMPACTED)
    assert not report.damaged
    assert (log.log_start_offset, log.end_offset) == (0, 4)
    assert put_values(log, 1)[0].offset == 4


def test_lookups_work_in_what_is_left(log: PartitionLog) -> None:
    for number in range(60):
        put(log, batch_of([(b"%d" % (number % 9), b"v")], at_ms=NOW_MS + number * 10))
    log.roll()
    compact(log)
    left = committed(log)
    for offset in range(61):
        assert records_from(log, offset) == [record for record in left if record.offset >= offset]
    for at_ms in range(NOW_MS, NOW_MS + 620, 5):
        expected = next(((r.offset, r.timestamp) for r in left if r.timestamp >= at_ms), None)
        assert log.offset_for_time(at_ms) == expected


def test_writing_and_reading_go_on_while_compaction_runs(log: PartitionLog) -> None:
    for number in range(20):
        send(log, (b"%d" % (number % 3), b"%d" % number))
    log.roll()
    plan = compaction.plan(log, NOW_MS)
    assert plan is not None
    cleaned = cleaning.run(pickle.loads(pickle.dumps(plan)))
    added = put_values(log, 5)
    held = log.read(0, 1 << 20, log.high_watermark)
    log.roll()
    assert compaction.install(log, pickle.loads(pickle.dumps(cleaned)))
    assert what_is_left(log)[-5:] == [(record.offset, record.key, record.value) for record in added]
    assert held is not None
    assert held.file.fd >= 0, "whoever was sending the old segment can finish"
    assert [offset for offset, _, _ in what_is_left(log)][:3] == [17, 18, 19]


def test_cleaned_files_are_thrown_away_if_their_segments_were_deleted_meanwhile(log: PartitionLog) -> None:
    for number in range(20):
        send(log, (b"%d" % (number % 3), b"%d" % number))
        log.roll()
    plan = compaction.plan(log, NOW_MS)
    assert plan is not None
    cleaned = cleaning.run(plan)
    log.delete_records(5)
    assert not compaction.install(log, cleaned)
    assert not list(log.folder.glob("*.cleaned"))
    assert [record.offset for record in read_all(log)] == list(range(5, 20))
    compact(log)
    assert [record.offset for record in read_all(log)] == [17, 18, 19]


def test_compaction_can_be_stopped_and_leaves_nothing_behind(log: PartitionLog) -> None:
    for number in range(20):
        send(log, (b"%d" % (number % 3), b"%d" % number))
    log.roll()
    plan = compaction.plan(log, NOW_MS)
    assert plan is not None
    for turns in range(0, 40, 5):
        left = iter(range(turns))
        with pytest.raises(cleaning.CompactionStoppedError):
            cleaning.run(plan, stopped=lambda left=left: next(left, None) is None)  # type: ignore[misc]
        assert not list(log.folder.glob("*.cleaned"))
