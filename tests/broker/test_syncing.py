"""Group commit: nobody is told that records are safe before they are, and one sync serves many."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from pathlib import Path

import pytest

from penstock.broker.syncing import Syncer
from penstock.errors import StorageError
from penstock.log.batches.batch import NewRecord, build_batch
from penstock.log.configs.topic_config import TopicConfig
from penstock.log.disk import Disk
from penstock.log.partition import PartitionLog
from penstock.log.segment import Resources


class GatedDisk(Disk):
    """Syncs when it is told to, counts them, and can be made to fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.syncs = 0
        self.fails = False

    def sync(self, fd: int) -> None:
        assert self.gate.wait(10), "the test never opened the gate"
        self.syncs += 1
        if self.fails:
            raise OSError(5, "Input/output error")
        super().sync(fd)


def partition(folder: Path, disk: Disk, number: int = 0) -> PartitionLog:
    log, _ = PartitionLog.open("orders", number, folder / f"orders-{number}", TopicConfig(), Resources(disk))
    return log


def write_one(log: PartitionLog) -> None:
    now_ms = time.time_ns() // 1_000_000
    log.append(memoryview(build_batch([NewRecord(now_ms, b"k", b"v")])), now_ms)
    log.write()


def test_readers_see_records_only_once_they_are_safe(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = GatedDisk()
        log = partition(tmp_path, disk)
        syncer = Syncer(asyncio.get_running_loop())
        syncer.usual_s = 1.0
        disk.gate.clear()
        write_one(log)
        waiting = asyncio.ensure_future(syncer.sync([log]))
        await asyncio.sleep(0)
        assert syncer.is_waiting(log)
        assert log.high_watermark == 0
        disk.gate.set()
        await waiting
        assert log.high_watermark == log.synced_offset == 1
        assert not syncer.is_waiting(log)
        syncer.close()

    asyncio.run(scenario())


def test_those_who_come_while_a_sync_runs_share_the_next(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = GatedDisk()
        log = partition(tmp_path, disk)
        syncer = Syncer(asyncio.get_running_loop())
        syncer.usual_s = 1.0
        disk.gate.clear()
        write_one(log)
        first = asyncio.ensure_future(syncer.sync([log]))
        await asyncio.sleep(0)
        later = []
        for _ in range(20):
            write_one(log)
            later.append(asyncio.ensure_future(syncer.sync([log])))
        await asyncio.sleep(0)
        disk.gate.set()
        await first
        assert log.high_watermark == 1, "the first sync started before the others were written"
        await asyncio.gather(*later)
        assert log.high_watermark == 21
        assert disk.syncs == 2
        syncer.close()

    asyncio.run(scenario())


def test_a_failed_sync_fails_those_who_waited_and_stops_the_partition_for_good(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = GatedDisk()
        broken, sound = partition(tmp_path, disk), partition(tmp_path, Disk(), 1)
        syncer = Syncer(asyncio.get_running_loop())
        write_one(broken)
        write_one(sound)
        disk.fails = True
        both = syncer.sync([broken, sound])
        with pytest.raises(StorageError, match="until the broker is restarted"):
            await both
        assert sound.high_watermark == 1
        assert broken.high_watermark == 0
        disk.fails = False
        with pytest.raises(StorageError):
            write_one(broken)
        with pytest.raises(StorageError):
            await syncer.sync([broken])
        write_one(sound)
        await syncer.sync([sound])
        assert sound.high_watermark == 2
        syncer.close()

    asyncio.run(scenario())


def test_records_that_something_else_made_safe_first_are_shown_too(tmp_path: Path) -> None:
    """A checkpoint syncs on its own account. Who was waiting is answered, so readers must see the records by then."""

    async def scenario() -> None:
        disk = GatedDisk()
        log = partition(tmp_path, disk)
        syncer = Syncer(asyncio.get_running_loop())
        syncer.usual_s = 1.0
        disk.gate.clear()
        write_one(log)
        first = asyncio.ensure_future(syncer.sync([log]))
        await asyncio.sleep(0)
        write_one(log)
        second = asyncio.ensure_future(syncer.sync([log]))
        await asyncio.sleep(0)
        disk.gate.set()
        log.sync()
        await asyncio.gather(first, second)
        assert log.high_watermark == 2
        syncer.close()

    asyncio.run(scenario())


def test_a_partition_that_was_deleted_meanwhile_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = GatedDisk()
        kept, deleted = partition(tmp_path, disk), partition(tmp_path, disk, 1)
        syncer = Syncer(asyncio.get_running_loop())
        for log in (kept, deleted):
            write_one(log)
        deleted.resources.files.close()
        shutil.rmtree(deleted.folder)
        failures: asyncio.Queue[int] = asyncio.Queue()
        for log in (deleted, kept):
            syncer.submit([log], lambda failed: failures.put_nowait(len(failed)))
        syncer.kick()
        assert [await asyncio.wait_for(failures.get(), 10) for _ in range(2)] == [1, 0]
        assert kept.synced_offset == 1
        syncer.close()

    asyncio.run(scenario())
