"""What a sync makes safe, and what is written while it runs and must wait for the next."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.log.disk import Disk
from penstock.log.partition import PartitionLog, SyncTicket
from tests.log.engine import NOW_MS, SMALL, batch_of, open_log, reopen, segment_files


class RecordingDisk(Disk):
    """Remembers how large each file was when it was synced last: what is behind that, a power cut may take."""

    def __init__(self) -> None:
        self.safe_bytes: dict[int, int] = {}
        self.safe_names: set[Path] = set()

    def sync(self, fd: int) -> None:
        found = os.fstat(fd)
        self.safe_bytes[found.st_ino] = found.st_size

    def sync_folder(self, folder: Path) -> None:
        self.safe_names |= set(folder.iterdir())

    def is_safe(self, path: Path) -> bool:
        found = path.stat()
        return path in self.safe_names and self.safe_bytes.get(found.st_ino, 0) == found.st_size


def ticket_of(log: PartitionLog) -> SyncTicket:
    ticket = log.sync_ticket()
    assert ticket is not None
    return ticket


def write(log: PartitionLog, size: int = 50) -> None:
    log.append(batch_of([(b"k", b"v" * size)]), NOW_MS)
    log.write()


def check_safe(log: PartitionLog, disk: RecordingDisk) -> None:
    assert log.synced_offset == log.end_offset
    assert [path.name for path in segment_files(log.folder) if path.stat().st_size and not disk.is_safe(path)] == []


def test_a_sync_covers_the_file_and_its_name(tmp_path: Path) -> None:
    disk = RecordingDisk()
    log = open_log(tmp_path / "p", SMALL, disk)
    assert log.sync_ticket() is None
    write(log)
    ticket = ticket_of(log)
    ticket.run()
    log.synced(ticket)
    check_safe(log, disk)
    assert tmp_path / "p" in disk.safe_names
    assert log.sync_ticket() is None


def test_what_is_only_staged_is_not_called_safe(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", SMALL, RecordingDisk())
    write(log)
    log.append(batch_of([(b"k", b"v")]), NOW_MS)
    ticket = ticket_of(log)
    ticket.run()
    log.synced(ticket)
    assert (log.synced_offset, log.end_offset) == (1, 2)
    log.write()
    assert ticket_of(log).offset == 2


def test_what_is_written_while_a_sync_runs_waits_for_the_next(tmp_path: Path) -> None:
    disk = RecordingDisk()
    log = open_log(tmp_path / "p", SMALL, disk)
    write(log)
    ticket = ticket_of(log)
    ticket.run()
    write(log)
    log.synced(ticket)
    assert log.synced_offset == 1
    log.sync()
    check_safe(log, disk)


def test_a_segment_that_was_closed_while_a_sync_ran_is_synced_again(tmp_path: Path) -> None:
    disk = RecordingDisk()
    log = open_log(tmp_path / "p", SMALL, disk)
    write(log)
    ticket = ticket_of(log)
    ticket.run()
    while len(log.segments) < 3:
        write(log)
    log.synced(ticket)
    log.sync()
    check_safe(log, disk)


def test_several_segments_can_wait_for_one_sync(tmp_path: Path) -> None:
    disk = RecordingDisk()
    log = open_log(tmp_path / "p", SMALL, disk)
    while len(log.segments) < 4:
        write(log)
    log.sync()
    check_safe(log, disk)


def test_a_checkpoint_never_speaks_of_what_is_not_safe(tmp_path: Path) -> None:
    disk = RecordingDisk()
    log = open_log(tmp_path / "p", SMALL, disk)
    for sequence in range(5):
        write(log, 150)
        log.append(batch_of([(b"k", b"v")], producer_id=3, sequence=sequence, transactional=True), NOW_MS)
        log.append_marker(producer_id=3, producer_epoch=0, commit=False, coordinator_epoch=0, now_ms=NOW_MS)
        log.checkpoint()
        check_safe(log, disk)
        aborted = log.folder / "aborted-transactions"
        assert disk.is_safe(aborted)


def test_after_a_crash_everything_that_readers_see_is_made_safe_first(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p")
    while len(log.segments) < 3:
        write(log)
    disk = RecordingDisk()
    log, _ = reopen(tmp_path / "p", SMALL, disk)
    assert log.high_watermark == log.end_offset
    check_safe(log, disk)


def test_flush_ms_is_due_once_the_oldest_write_has_waited_for_so_long(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", SMALL | {"flush.ms": "100"})
    assert not log.flush_due(NOW_MS)
    write(log)
    assert not log.flush_due(NOW_MS)
    assert not log.flush_due(NOW_MS + 99)
    assert log.flush_due(NOW_MS + 100)
    log.sync()
    assert not log.flush_due(NOW_MS + 200)
