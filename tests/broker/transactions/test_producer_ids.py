"""Producer ids are given once, for ever."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.broker.transactions import FileProducerIds
from penstock.errors import StorageError
from penstock.log.disk import Disk


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


def blocks(path: Path, count: int, disk: Disk | None = None) -> list[range]:
    async def take() -> list[range]:
        source = FileProducerIds(path, disk)
        return [await source.next_block() for _ in range(count)]

    return asyncio.run(take())


def test_blocks_follow_each_other_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "producer-ids"
    assert blocks(path, 2) == [range(1000), range(1000, 2000)]
    assert blocks(path, 2) == [range(2000, 3000), range(3000, 4000)]


def test_blocks_reserved_at_the_same_time_differ(tmp_path: Path) -> None:
    async def take() -> list[range]:
        source = FileProducerIds(tmp_path / "producer-ids", block_size=10)
        return await asyncio.gather(*(source.next_block() for _ in range(20)))

    firsts = [block.start for block in asyncio.run(take())]
    assert sorted(firsts) == list(range(0, 200, 10))


@pytest.mark.parametrize("fail_at", range(1, 7))
def test_a_disk_that_fails_at_any_call_never_leads_to_an_id_being_given_twice(tmp_path: Path, fail_at: int) -> None:
    path = tmp_path / "producer-ids"
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


def test_an_unfinished_new_file_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "producer-ids"
    blocks(path, 1)
    (tmp_path / "producer-ids.new").write_bytes(b"half")
    assert blocks(path, 1) == [range(1000, 2000)]


def test_no_flipped_bit_leads_to_an_id_being_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "producer-ids"
    blocks(path, 3)
    intact = path.read_bytes()
    for position in range(8 * len(intact)):
        damaged = bytearray(intact)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        assert blocks(path, 1) == [range(3000, 4000)]


def test_a_file_that_cannot_be_repaired_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "producer-ids"
    path.write_bytes(os.urandom(40))
    with pytest.raises(StorageError, match="restore the file from a copy"):
        blocks(path, 1)
