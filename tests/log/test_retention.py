"""Segments: when a new one is begun, and when an old one goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import OffsetOutOfRangeError, StorageError
from tests.log.engine import (
    NOW_MS,
    SMALL,
    batch_of,
    end_transaction,
    open_log,
    put,
    put_values,
    read_all,
    reopen,
    segment_files,
)

DAY_MS = 86_400_000


def test_a_segment_is_never_larger_than_its_limit(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p")
    expected = put_values(log, 40, per_batch=2)
    sizes = [path.stat().st_size for path in segment_files(tmp_path / "p")]
    assert max(sizes) <= 500
    assert min(sizes[:-1]) > 500 - 110, "a segment is closed only when the next batch does not fit"
    assert read_all(log) == expected


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p")
    put_values(log, 1)
    put(log, batch_of([(b"k", b"v" * 2000)]))
    put_values(log, 1)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]
    assert len(read_all(log)) == 3


def test_a_segment_that_was_lost_while_it_was_written_is_named_and_takes_no_more_records(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p")
    put_values(log, 1)
    (lost,) = segment_files(tmp_path / "p")
    lost.unlink()
    with pytest.raises(StorageError, match=rf"{lost.name} cannot be closed \(No such file or directory\)"):
        log.roll()
    with pytest.raises(StorageError, match="until the file is restored"):
        put_values(log, 1)


def test_a_segment_is_closed_when_its_first_record_is_too_old(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", {"segment.ms": "1000"})
    for at_ms in (0, 1000, 1001, 2000, 2002):
        put(log, batch_of([(b"k", b"v")], at_ms=NOW_MS + at_ms))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]


def test_segments_close_a_little_early_by_chance_where_that_is_wanted(tmp_path: Path) -> None:
    limits = set()
    for number in range(20):
        log = open_log(tmp_path / f"{number}", {"segment.ms": "1000", "segment.jitter.ms": "900"})
        put(log, batch_of([(b"k", b"v")], at_ms=NOW_MS))
        for at_ms in range(0, 1002, 1):
            if len(log.segments) == 2:
                break
            log.append(batch_of([(b"k", b"v")], at_ms=NOW_MS + at_ms), NOW_MS)
        limits.add(at_ms)
    assert len(limits) > 5
    assert all(100 <= limit <= 1001 for limit in limits)


def test_a_compacted_topic_closes_segments_in_time_for_max_compaction_lag(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", {"cleanup.policy": "compact", "max.compaction.lag.ms": "100"})
    for at_ms in (0, 100, 101):
        put(log, batch_of([(b"k", b"v")], at_ms=NOW_MS + at_ms))
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_segment_is_closed_when_its_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", {"segment.index.bytes": "48", "index.interval.bytes": "0"})
    put_values(log, 5)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]


def test_records_older_than_retention_ms_go_segment_by_segment(tmp_path: Path) -> None:
    settings = SMALL | {"retention.ms": str(DAY_MS)}
    log = open_log(tmp_path / "p", settings)
    put_values(log, 12, per_batch=2, start_ms=NOW_MS - DAY_MS)
    put_values(log, 12, per_batch=2, start_ms=NOW_MS)
    bases = [segment.base_offset for segment in log.segments]
    kept = next(segment.base_offset for segment in log.segments if segment.max_timestamp >= NOW_MS)
    assert log.expire(NOW_MS) == 0
    assert log.expire(NOW_MS + 100) == bases.index(kept) > 0
    assert log.log_start_offset == kept
    assert int(segment_files(tmp_path / "p")[0].stem) == kept
    assert read_all(log)[0].offset == kept
    with pytest.raises(OffsetOutOfRangeError, match="deleted by retention"):
        log.read(kept - 1, 100, log.high_watermark)
    log, _ = reopen(tmp_path / "p", settings)
    assert log.log_start_offset == kept


def test_when_everything_is_old_the_last_segment_goes_as_well_and_offsets_go_on(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", SMALL | {"retention.ms": "1000"})
    put_values(log, 10, start_ms=NOW_MS - DAY_MS)
    log.expire(NOW_MS)
    assert (log.log_start_offset, log.end_offset) == (10, 10)
    assert not read_all(log)
    assert put_values(log, 1)[0].offset == 10
    log, _ = reopen(tmp_path / "p")
    assert (log.log_start_offset, log.end_offset) == (10, 11)


def test_records_without_a_time_are_as_old_as_their_file(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", SMALL | {"retention.ms": "1000"})
    put(log, batch_of([(b"k", b"v")], at_ms=-1))
    written_ms = int(segment_files(tmp_path / "p")[0].stat().st_mtime * 1000)
    assert log.expire(written_ms + 500) == 0
    assert log.expire(written_ms + 1500) == 1


def test_retention_bytes_is_what_stays(tmp_path: Path) -> None:
    settings = SMALL | {"retention.bytes": "1100", "retention.ms": "-1"}
    log = open_log(tmp_path / "p", settings)
    expected = put_values(log, 40, per_batch=2)
    log.expire(NOW_MS)
    sizes = [path.stat().st_size for path in segment_files(tmp_path / "p")]
    assert 1100 <= sum(sizes) < 1100 + sizes[0]
    assert read_all(log) == expected[log.log_start_offset :]
    assert log.expire(NOW_MS) == 0


def test_records_that_are_not_published_yet_never_expire(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", SMALL | {"retention.ms": "1000", "retention.bytes": "1"})
    for _ in range(20):
        log.append(batch_of([(b"k", b"v" * 20)]), NOW_MS)
    log.write()
    assert log.expire(NOW_MS + DAY_MS) == 0
    log.publish(log.end_offset)
    assert log.expire(NOW_MS + DAY_MS) > 0


def test_a_topic_that_does_not_delete_keeps_everything(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", SMALL | {"cleanup.policy": "compact", "retention.ms": "1", "retention.bytes": "1"})
    expected = put_values(log, 20)
    assert log.expire(NOW_MS + DAY_MS) == 0
    assert read_all(log) == expected


@pytest.mark.parametrize("before", [0, 1, 5, 11, 12])
def test_deleted_records_are_gone_for_good(tmp_path: Path, before: int) -> None:
    log = open_log(tmp_path / "p")
    expected = put_values(log, 12, per_batch=2)
    assert log.delete_records(before) == before
    for _ in range(2):
        assert read_all(log) == expected[before:]
        if before:
            with pytest.raises(OffsetOutOfRangeError):
                log.read(before - 1, 100, log.high_watermark)
        assert all(segment.next_offset > before or segment is log.segments[-1] for segment in log.segments)
        log, _ = reopen(tmp_path / "p")
    assert put_values(log, 1)[0].offset == 12


def test_deleting_less_than_is_already_deleted_changes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p")
    put_values(log, 12)
    log.delete_records(7)
    assert log.delete_records(3) == 7


@pytest.mark.parametrize("before", [-1, 13])
def test_only_records_that_are_there_can_be_deleted(tmp_path: Path, before: int) -> None:
    log = open_log(tmp_path / "p")
    put_values(log, 12)
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_records(before)
    assert log.log_start_offset == 0


def test_aborted_transactions_are_forgotten_with_their_records_and_no_sooner(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p")
    markers = []
    for sequence in range(4):
        put(log, batch_of([(b"k", b"v" * 50)], producer_id=3, sequence=sequence, transactional=True))
        markers.append(end_transaction(log, 3, commit=False))
        put_values(log, 4)
    log.delete_records(markers[1])
    for _ in range(2):
        assert [entry.last_offset for entry in log.aborted.between(0, 1 << 62)] == markers[1:]
        log.close()
        log, report = reopen(tmp_path / "p")
        assert report.scanned_bytes == 0
