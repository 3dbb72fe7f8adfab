"""A disk that refuses: what was acknowledged stays readable, what was not is told, and all is well when it recovers."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.log.partition import PartitionLog
from penstock.log.segment import Resources
from penstock.log.store import TopicStore
from penstock.testing import FaultyDisk
from tests.log.engine import (
    NOW_MS,
    SMALL,
    batch_of,
    compact,
    end_transaction,
    open_log,
    put,
    put_values,
    read_all,
    reopen,
)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.mark.parametrize("free_bytes", [0, 1, 60, 150, 300])
def test_a_write_to_a_full_disk_is_refused_and_works_again_when_space_returns(
    tmp_path: Path, disk: FaultyDisk, free_bytes: int
) -> None:
    log = open_log(tmp_path / "p", {}, disk)
    expected = put_values(log, 5)
    disk.fill(free_bytes)
    for _ in range(3):
        staged = [log.append(batch_of([(b"k", b"v" * 100)]), NOW_MS).base_offset for _ in range(3)]
        assert staged == [5, 6, 7]
        with pytest.raises(StorageError, match="No space left"):
            log.write()
        assert log.end_offset == 5
        assert read_all(log) == expected
    disk.free()
    expected += put_values(log, 5)
    assert read_all(log) == expected
    assert read_all(open_log(tmp_path / "p", {})) == expected


def test_a_full_disk_while_a_segment_is_rolled_loses_nothing_and_acknowledges_nothing(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    log = open_log(tmp_path / "p", SMALL, disk)
    expected = put_values(log, 5)
    disk.fill(0)
    log.append(batch_of([(b"first", b"v")]), NOW_MS)
    with pytest.raises(StorageError):
        log.append(batch_of([(b"second", b"v" * 900)]), NOW_MS)  # needs a new segment, so the first must be written
    with pytest.raises(StorageError):
        log.write()  # whoever sent the first must hear that it is lost
    disk.free()
    expected += put_values(log, 3)
    assert [record.offset for record in expected] == list(range(8))
    assert read_all(log) == expected
    assert read_all(open_log(tmp_path / "p")) == expected


def test_a_segment_that_cannot_be_created_is_tried_again(tmp_path: Path, disk: FaultyDisk) -> None:
    log = open_log(tmp_path / "p", SMALL, disk)
    expected = put_values(log, 5)
    disk.fail("open", code=errno.EMFILE)
    with pytest.raises(StorageError):
        log.append(batch_of([(b"k", b"v" * 900)]), NOW_MS)
    expected += put_values(log, 5)
    assert read_all(log) == expected
    assert read_all(open_log(tmp_path / "p")) == expected


def test_a_producer_whose_batch_was_refused_can_send_it_again(tmp_path: Path, disk: FaultyDisk) -> None:
    log = open_log(tmp_path / "p", {}, disk)
    put(log, batch_of([(b"k", b"0")], producer_id=4, sequence=0))
    disk.fill(0)
    log.append(batch_of([(b"k", b"1")], producer_id=4, sequence=1), NOW_MS)
    with pytest.raises(StorageError):
        log.write()
    disk.free()
    assert put(log, batch_of([(b"k", b"1")], producer_id=4, sequence=1)) == 1
    assert put(log, batch_of([(b"k", b"1")], producer_id=4, sequence=1)) == 1, "a duplicate"
    assert [record.value for record in read_all(log)] == [b"0", b"1"]


def test_a_marker_that_was_refused_leaves_its_transaction_open(tmp_path: Path, disk: FaultyDisk) -> None:
    log = open_log(tmp_path / "p", {}, disk)
    put(log, batch_of([(b"k", b"0")], producer_id=4, sequence=0, transactional=True))
    disk.fill(0)
    with pytest.raises(StorageError):
        end_transaction(log, 4, commit=False)
    assert log.last_stable_offset == 0
    assert not log.aborted.between(0, 1 << 62)
    disk.free()
    put_values(log, 1)
    end_transaction(log, 4, commit=False)
    assert [(entry.first_offset, entry.last_offset) for entry in log.aborted.between(0, 1 << 62)] == [(0, 2)]
    log.close()
    log, report = reopen(tmp_path / "p", {})
    assert report.scanned_bytes == 0, "the file of aborted transactions must say what the log says"
    assert [(entry.first_offset, entry.last_offset) for entry in log.aborted.between(0, 1 << 62)] == [(0, 2)]


def test_short_writes_are_completed(tmp_path: Path, disk: FaultyDisk) -> None:
    disk.largest_write_bytes = 7
    log = open_log(tmp_path / "p", SMALL, disk)
    expected = put_values(log, 20, per_batch=3)
    log.close()
    assert read_all(open_log(tmp_path / "p")) == expected


def test_an_input_output_error_refuses_the_write_and_keeps_the_rest(tmp_path: Path, disk: FaultyDisk) -> None:
    log = open_log(tmp_path / "p", {}, disk)
    expected = put_values(log, 5)
    disk.fail("write")
    log.append(batch_of([(b"k", b"v")]), NOW_MS)
    with pytest.raises(StorageError, match="Input/output error"):
        log.write()
    assert read_all(log) == expected
    expected += put_values(log, 1)
    assert read_all(log) == expected


def test_a_write_that_can_neither_be_done_nor_undone_stops_the_partition(tmp_path: Path, disk: FaultyDisk) -> None:
    log = open_log(tmp_path / "p", {}, disk)
    expected = put_values(log, 5)
    disk.fill(10)
    disk.fail("truncate", times=None)
    log.append(batch_of([(b"k", b"v")]), NOW_MS)
    with pytest.raises(StorageError):
        log.write()
    disk.free()
    disk.heal()
    with pytest.raises(StorageError):
        log.append(batch_of([(b"k", b"v")]), NOW_MS)
    assert read_all(open_log(tmp_path / "p", {})) == expected


def test_a_failed_sync_stops_the_partition_until_it_is_opened_again(tmp_path: Path, disk: FaultyDisk) -> None:
    log = open_log(tmp_path / "p", {}, disk)
    expected = put_values(log, 5)
    log.sync()
    assert log.synced_offset == 5
    log.append(batch_of([(b"k", b"v")]), NOW_MS)
    log.write()
    disk.fail("sync", times=1)
    with pytest.raises(StorageError, match="restarted"):
        log.sync()
    assert log.synced_offset == 5
    with pytest.raises(StorageError, match="restarted"):
        log.append(batch_of([(b"k", b"v")]), NOW_MS)  # the disk works again, but nobody knows what it has thrown away
    with pytest.raises(StorageError, match="restarted"):
        log.checkpoint()
    with pytest.raises(StorageError, match="restarted"):
        log.delete_records(3)
    assert log.synced_offset == 5
    log.close()
    log = open_log(tmp_path / "p", {})
    assert read_all(log)[:5] == expected
    assert put_values(log, 1)


def test_a_read_error_is_told_and_passes(tmp_path: Path, disk: FaultyDisk) -> None:
    expected = put_values(open_log(tmp_path / "p"), 20)
    log = open_log(tmp_path / "p", SMALL, disk)
    disk.fail("read", times=None)
    with pytest.raises(StorageError, match="could not be read"):
        read_all(log)
    disk.heal()
    assert read_all(log) == expected


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, disk: FaultyDisk) -> None:
    log = open_log(tmp_path / "p", {}, disk)
    expected = put_values(log, 5)
    log.checkpoint()
    expected += put_values(log, 5)
    disk.fill(20)
    with pytest.raises(StorageError, match="checkpoint"):
        log.checkpoint()
    assert not list((tmp_path / "p").glob("*~"))
    disk.free()
    assert read_all(open_log(tmp_path / "p", {})) == expected
    log.checkpoint()
    assert reopen(tmp_path / "p", {})[1].scanned_bytes == 0


def test_compaction_on_a_full_disk_changes_nothing_and_leaves_nothing_behind(tmp_path: Path, disk: FaultyDisk) -> None:
    settings = SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    log = open_log(tmp_path / "p", settings, disk)
    for number in range(30):
        put(log, batch_of([(b"k%d" % (number % 3), b"%d" % number)]))
    before = read_all(log)
    files = sorted((tmp_path / "p").iterdir())
    for free_bytes in (0, 100):
        disk.fill(free_bytes)
        with pytest.raises(StorageError):
            compact(log)
        assert sorted((tmp_path / "p").iterdir()) == files
        assert read_all(log) == before
    disk.free()
    assert compact(log)
    assert len(read_all(log)) < len(before)


def test_a_topic_that_cannot_be_written_down_is_not_there_and_can_be_tried_again(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    store = TopicStore(tmp_path, resources=Resources(disk))
    disk.fill(10)
    with pytest.raises(StorageError):
        store.create("t", 1, {})
    assert store.get("t") is None
    disk.free()
    store.create("t", 1, {})
    store.close()


def test_a_topic_can_be_deleted_from_a_full_disk(tmp_path: Path, disk: FaultyDisk) -> None:
    store = TopicStore(tmp_path, resources=Resources(disk))
    put_values(store.create("t", 1, {}).partitions[0], 5)
    disk.fill(0)
    store.delete("t")
    assert store.get("t") is None
    store.close()


@pytest.fixture
def tiny_filesystem(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_real_full_file_system_behaves_the_same(tiny_filesystem: Path) -> None:
    ballast = tiny_filesystem / "ballast"
    ballast.write_bytes(bytes(300_000))
    log = open_log(tiny_filesystem / "p", {"internal.segment.bytes": "200000"})
    acknowledged = fill_until_refused(log)
    assert acknowledged > 10
    assert [record.offset for record in read_all(log)] == list(range(acknowledged))
    ballast.unlink()
    put(log, batch_of([(b"k", b"after")]))
    log.close()
    log = open_log(tiny_filesystem / "p")
    assert [record.offset for record in read_all(log)] == list(range(acknowledged + 1))
    assert read_all(log)[-1].value == b"after"
    log.close()
    log.resources.files.close()


def fill_until_refused(log: PartitionLog) -> int:
    for number in range(1000):
        try:
            put(log, batch_of([(b"k", b"%d" % number * 1000)]))
        except StorageError:
            return number
    pytest.fail("the disk never became full")


def test_while_the_disk_stays_full_each_refused_write_reads_little(tmp_path: Path, disk: FaultyDisk) -> None:
    log = open_log(tmp_path / "p", {}, disk)
    expected = put_values(log, 300)
    put(log, batch_of([(b"k", b"0")], producer_id=4, sequence=0, transactional=True))
    put(log, batch_of([(b"k", b"0")], producer_id=5, sequence=0, transactional=True))
    marker = end_transaction(log, 5, commit=False)
    disk.fill(0)
    for turn in range(5):
        disk.calls.clear()
        log.append(batch_of([(b"k", b"1")], producer_id=4, sequence=1, transactional=True), NOW_MS + 60_000)
        log.append_marker(producer_id=4, producer_epoch=0, commit=False, coordinator_epoch=0, now_ms=NOW_MS)
        with pytest.raises(StorageError):
            log.write()
        assert turn == 0 or disk.calls["read"] == 0
        assert log.end_offset == 303
        assert log.last_stable_offset == 300
        assert [entry.last_offset for entry in log.aborted.between(0, 1 << 62)] == [marker]
        assert log.segments[-1].max_timestamp == expected[-1].timestamp
    disk.fill(200)
    put(log, batch_of([(b"k", b"1")], producer_id=4, sequence=1, transactional=True))
    with pytest.raises(StorageError):
        put(log, batch_of([(b"k", b"2" * 200)], producer_id=4, sequence=2, transactional=True))
    disk.free()
    assert put(log, batch_of([(b"k", b"2")], producer_id=4, sequence=2, transactional=True)) == 304
    end_transaction(log, 4, commit=False)
    again = open_log(tmp_path / "p", {})
    assert read_all(again) == read_all(log)
    assert again.aborted.between(0, 1 << 62) == log.aborted.between(0, 1 << 62)
    assert [(state.producer_id, state.last_sequence) for state in again.producers.producers()] == [
        (state.producer_id, state.last_sequence) for state in log.producers.producers()
    ]
