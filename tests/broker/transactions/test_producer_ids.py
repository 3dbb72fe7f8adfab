"""Producer ids are given once, for ever."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.broker.transactions.producer_ids import FileProducerIds
from penstock.errors import StorageError
from penstock.log.disk import Disk
from penstock.log.statefile import write_state


class FailingDisk(Disk):
    """Fails at the k-th call that writes or syncs, and leaves what was done before."""

    def __init__(self, fail_at: int) -> None:
        self.calls = 0
        self.fail_at = fail_at

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise OSError(28, "No space left on device")

    def write_all(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        self._count()
        super().write_all(fd, buffers, position)

    def sync(self, fd: int) -> None:
        self._count()
        super().sync(fd)

    def sync_folder(self, folder: Path) -> None:
        self._count()
        super().sync_folder(folder)


NOW_MS = 1_700_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a new data folder."""
    path = tmp_path / "producer-ids"
    FileProducerIds(path).create()
    return path


def blocks(path: Path, count: int, disk: Disk | None = None, highest_known: int = -1) -> list[range]:
    async def take() -> list[range]:
        source = FileProducerIds(path, disk, highest_known=lambda: highest_known, wall_ms=lambda: NOW_MS)
        return [await source.next_block() for _ in range(count)]

    return asyncio.run(take())


def test_blocks_follow_each_other_also_after_a_restart(path: Path) -> None:
    assert blocks(path, 2) == [range(1000), range(1000, 2000)]
    assert blocks(path, 2) == [range(2000, 3000), range(3000, 4000)]


def test_blocks_reserved_at_the_same_time_differ(path: Path) -> None:
    async def take() -> list[range]:
        source = FileProducerIds(path, block_size=10)
        return await asyncio.gather(*(source.next_block() for _ in range(20)))

    firsts = [block.start for block in asyncio.run(take())]
    assert sorted(firsts) == list(range(0, 200, 10))


@pytest.mark.parametrize("fail_at", range(1, 7))
def test_a_disk_that_fails_at_any_call_never_leads_to_an_id_being_given_twice(path: Path, fail_at: int) -> None:
    given: list[int] = []
    complaints: list[str] = []
    disk = FailingDisk(fail_at)
    for _ in range(4):
        try:
            given += blocks(path, 1, disk)[0]
        except StorageError as error:
            complaints.append(str(error))
    assert len(set(given)) == len(given) == 3000
    assert [str(path) in complaint for complaint in complaints] == [True]
    assert blocks(path, 1)[0].start > max(given)


def test_an_unfinished_new_file_is_passed_over(tmp_path: Path, path: Path) -> None:
    blocks(path, 1)
    (tmp_path / "producer-ids.new").write_bytes(b"half")
    assert blocks(path, 1) == [range(1000, 2000)]


def test_no_flipped_bit_leads_to_an_id_being_given_twice(path: Path) -> None:
    blocks(path, 3)
    intact = path.read_bytes()
    for position in range(8 * len(intact)):
        damaged = bytearray(intact)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        assert blocks(path, 1) == [range(3000, 4000)]


@pytest.mark.parametrize("known", [-1, 0, 4_711, NOW_MS + 5])
@pytest.mark.parametrize("lost", ["missing", "damaged", "no number"])
def test_without_the_file_ids_go_on_above_all_that_anybody_remembers(
    path: Path, lost: str, known: int, caplog: pytest.LogCaptureFixture
) -> None:
    blocks(path, 1)
    if lost == "missing":
        path.unlink()
    elif lost == "damaged":
        path.write_bytes(os.urandom(40))
    else:
        write_state(path, b"twelve", Disk())
    first = max(known + 1, NOW_MS)
    assert blocks(path, 2, highest_known=known) == [range(first, first + 1000), range(first + 1000, first + 2000)]
    (warning,) = caplog.messages
    assert warning.startswith(f"{path} is ")
    assert f"ids from {first} on" in warning
    assert blocks(path, 1, highest_known=first + 1999) == [range(first + 2000, first + 3000)]
    assert len(caplog.messages) == 1


def test_a_file_restored_from_an_old_copy_does_not_bring_old_ids_back(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = path.read_bytes()
    blocks(path, 5)
    path.write_bytes(copy)
    assert blocks(path, 1, highest_known=4_001) == [range(NOW_MS, NOW_MS + 1000)]
    (warning,) = caplog.messages
    assert "says that ids from 0 on are free, but producer id 4001 is in use" in warning


def test_a_file_that_is_replaced_while_the_broker_runs_does_not_bring_old_ids_back(path: Path) -> None:
    async def take() -> list[int]:
        source = FileProducerIds(path, wall_ms=lambda: NOW_MS)
        first = [*await source.next_block(), *await source.next_block()]
        FileProducerIds(path).create()
        return [*first, *await source.next_block()]

    given = asyncio.run(take())
    assert len(set(given)) == len(given)
