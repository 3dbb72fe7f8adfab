"""The spool's folder: damage, other versions, full disks, second owners, limits."""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from pathlib import Path

import msgspec
import pytest

from penstock.errors import BufferFullError, ConnectionClosedError, SpoolError, SpoolInUseError, StorageError
from penstock.log.disk import Disk
from penstock.log.statefile import write_state
from penstock.model import NewRecord
from penstock.producing.spooling import Spool
from penstock.testing import FaultyDisk
from tests.crash.power_cut import PowerCut

ALL = 1 << 40


def record(number: int) -> NewRecord:
    return NewRecord("orders", b"%d" % number, b"key", (("trace", b"1"),), 1_700_000_000_000)


def put(spool: Spool, *numbers: int) -> None:
    for number in numbers:
        spool.put([record(number)])


def numbers(spool: Spool) -> list[int]:
    found: list[int] = []
    after = -1
    while more := spool.peek(after, 1000, ALL):
        found += [int(each.record.value or b"") for each in more]
        after = more[-1].sequence
    return found


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def reopened(folder: Path) -> list[int]:
    spool = Spool(folder)
    try:
        return numbers(spool)
    finally:
        spool.close()


def test_a_spool_with_many_segments_is_opened_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=500)
    put(spool, *range(100))
    assert len(segments(tmp_path)) > 10
    spool.close()
    again = Spool(tmp_path, segment_bytes=500)
    assert numbers(again) == list(range(100))
    put(again, 100)
    again.close()
    assert reopened(tmp_path) == list(range(101))


def test_unistreams_torn_or_rotated_log_can_be_reopened(tmp_path: Path) -> None:
    """What unistream cannot: a log that was rotated, and whose last write was cut, opens with all that was kept."""
    spool = Spool(tmp_path, segment_bytes=500)
    put(spool, *range(50))
    spool.close()
    last = segments(tmp_path)[-1]
    last.write_bytes(last.read_bytes()[:-7])
    assert reopened(tmp_path) == list(range(49))
    assert reopened(tmp_path) == list(range(49))


def test_segments_are_deleted_once_they_are_committed(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=500)
    put(spool, *range(100))
    held = spool.peek(-1, 100, ALL)
    before = len(segments(tmp_path))
    spool.commit(held[49].sequence)
    assert len(segments(tmp_path)) < before / 2 + 2
    spool.commit(held[99].sequence)
    spool.close()
    assert not segments(tmp_path)
    assert reopened(tmp_path) == []


def test_what_does_not_fit_into_memory_is_read_from_the_files(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=2_000, memory_bytes=1_000)
    put(spool, *range(500))
    taken: list[int] = []
    while found := spool.peek(-1, 17, ALL):
        taken += [int(each.record.value or b"") for each in found]
        spool.commit(found[-1].sequence)
        put(spool, *range(500 + len(taken) - len(found), 500 + len(taken))) if len(taken) <= 200 else None
    assert taken == list(range(len(taken)))
    assert len(taken) > 600
    assert (len(spool), spool.size_bytes) == (0, 0)
    spool.close()


def test_records_around_damage_are_delivered_and_the_damage_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path)
    put(spool, *range(20))
    spool.close()
    (path,) = segments(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)
    with caplog.at_level(logging.ERROR):
        again = Spool(tmp_path)
    found = numbers(again)
    assert len(found) == 19
    assert found == sorted(found)
    assert len(again) == 19
    assert len(again.damaged) == 1
    assert str(path) in caplog.text
    again.commit(again.peek(-1, 1000, ALL)[-1].sequence)
    again.close()
    assert reopened(tmp_path) == []


@pytest.mark.parametrize("damaged", [0, 1, 2, 5])
def test_every_damaged_byte_spoils_one_record_at_most(tmp_path: Path, damaged: int) -> None:
    spool = Spool(tmp_path)
    put(spool, *range(5))
    spool.close()
    (path,) = segments(tmp_path)
    whole = path.read_bytes()
    for position in range(damaged, len(whole), 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        found = reopened(tmp_path)
        assert set(found) <= set(range(5))
        assert len(found) >= 4, f"byte {position} has spoilt more than its record: {found}"
        assert found == sorted(found)


def test_a_spool_of_another_version_is_refused(tmp_path: Path) -> None:
    Spool(tmp_path).close()
    write_state(tmp_path / "spool", msgspec.json.encode({"version": 7, "id": "x"}), Disk())
    with pytest.raises(SpoolError, match="version 7"):
        Spool(tmp_path)


def test_a_damaged_identity_or_position_loses_no_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path)
    first_id = spool.id
    put(spool, 0, 1, 2)
    spool.commit(spool.peek(-1, 1, ALL)[0].sequence)
    spool.close()
    (tmp_path / "spool").write_bytes(b"nonsense")
    (tmp_path / "position").write_bytes(b"\xff" * 64)
    with caplog.at_level(logging.ERROR):
        again = Spool(tmp_path)
    assert numbers(again) == [0, 1, 2]
    assert again.id != first_id
    assert "spool" in caplog.text
    assert "position" in caplog.text
    again.close()


def test_a_second_owner_is_told_the_folder_and_the_process(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(SpoolInUseError, match=f"{re.escape(str(tmp_path))} is in use by process {os.getpid()}"):
        Spool(tmp_path)
    spool.close()
    Spool(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be opened"):
        Spool(tmp_path / "file" / "spool")


def test_a_forked_process_does_not_hold_the_folder(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    put(spool, 1)
    read_end, write_end = os.pipe()
    here, is_here = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write_end)
        os.write(is_here, b".")
        os.read(read_end, 1)
        os._exit(0)
    os.close(read_end)
    os.close(is_here)
    try:
        assert os.read(here, 1) == b".", "the forked process did not begin"
        put(spool, 2)
        spool.close()
        assert reopened(tmp_path) == [1, 2]
    finally:
        os.close(write_end)
        os.close(here)
        os.waitpid(pid, 0)


def test_a_forked_process_cannot_use_the_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    put(spool, 1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            spool.put([record(2)])
        except ConnectionClosedError:
            spool.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert numbers(spool) == [1]
    spool.close()


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    disk = FaultyDisk()
    spool = Spool(tmp_path, segment_bytes=500, disk=disk)
    disk.fill(free_bytes=1_200)
    with pytest.raises(StorageError, match="disk is full"):
        put(spool, *range(100))
    taken = numbers(spool)
    assert taken == list(range(len(taken)))
    assert len(taken) > 5
    disk.free()
    put(spool, 100)
    assert numbers(spool) == [*taken, 100]
    spool.close()
    assert reopened(tmp_path) == [*taken, 100]


def test_a_spool_that_cannot_be_synced_takes_no_more(tmp_path: Path) -> None:
    disk = FaultyDisk()
    spool = Spool(tmp_path, flush="fsync", disk=disk)
    put(spool, 0)
    disk.fail("sync", code=errno.EIO, times=1)
    with pytest.raises(StorageError, match="accepts no more records"):
        put(spool, 1)
    with pytest.raises(StorageError, match="accepts no more records"):
        put(spool, 2)
    spool.close()
    assert reopened(tmp_path)[0] == 0


def test_one_sync_serves_all_who_wait_for_it(tmp_path: Path) -> None:
    disk = FaultyDisk()
    spool = Spool(tmp_path, flush="fsync", disk=disk)
    put(spool, 0)
    syncs = disk.calls["sync"]
    real, begun, go_on = disk.sync, threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        begun.set()
        assert go_on.wait(20)
        real(fd)

    disk.sync = slow  # type: ignore[method-assign]
    threads = [threading.Thread(target=put, args=(spool, number)) for number in range(1, 9)]
    threads[0].start()
    assert begun.wait(20)
    for thread in threads[1:]:
        thread.start()
    while len(spool) < 9:
        assert any(thread.is_alive() for thread in threads)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert sorted(numbers(spool)) == list(range(9))
    assert disk.calls["sync"] - syncs == 2, "the first had one of its own, the other seven share one"
    spool.close()


def test_the_files_of_a_spool_are_bounded(tmp_path: Path) -> None:
    limit = 100_000
    spool = Spool(tmp_path, limit_bytes=limit)
    with pytest.raises(BufferFullError, match="do not fit"):
        put(spool, *range(limit))
    assert len(spool) > 100
    for _ in range(20):
        held = spool.peek(-1, 100, ALL)
        spool.commit(held[-1].sequence)
        put(spool, *range(len(held)))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < limit * 1.5
    spool.close()


def test_numbers_never_come_again_whatever_was_lost(tmp_path: Path) -> None:
    """A power cut may take the newest files away; the stream may have had their records, and remembers the numbers."""
    seen: set[int] = set()
    for _ in range(5):
        spool = Spool(tmp_path)
        first = spool.put([record(0), record(1)])
        assert not seen & {first, first + 1}
        assert first > max(seen, default=-1)
        seen |= {first, first + 1}
        spool.close()
        for path in [*segments(tmp_path), tmp_path / "position"]:
            path.unlink()


def test_a_crash_while_the_end_is_cut_can_be_repeated(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    put(spool, *range(10))
    spool.close()
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes() + b"\x01" * 30)
    disk = FaultyDisk()
    disk.fail("truncate", times=1)
    with pytest.raises(StorageError, match="could not be truncated"):
        Spool(tmp_path, disk=disk)
    assert reopened(tmp_path) == list(range(10))


def test_a_missing_identity_is_not_taken_for_a_new_spool(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path)
    put(spool, *range(3))
    spool.close()
    assert not caplog.messages
    (tmp_path / "spool").unlink()
    assert reopened(tmp_path) == [0, 1, 2]
    assert caplog.messages == [
        f"{tmp_path / 'spool'} is missing, but the folder holds a spool; the spool gets a new id: records that were "
        "in flight may be delivered twice"
    ]


def test_what_a_spool_has_taken_with_fsync_survives_a_power_cut(tmp_path: Path) -> None:
    with PowerCut(tmp_path / "data") as power:
        spool = Spool(tmp_path / "data", flush="fsync", segment_bytes=500)
        put(spool, *range(20))
        power.leave(tmp_path / "left")
        spool.close()
    assert reopened(tmp_path / "left") == list(range(20))
