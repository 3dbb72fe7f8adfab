"""About how many bytes records take, told by the indexes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.log.partition import PartitionLog
from penstock.log.reader import PartitionReader, offset_after
from tests.log.engine import open_log, put_values

RECORDS = 400


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    """Some hundred records of about one size, one in each batch, in many small segments."""
    log = open_log(tmp_path / "topic-0")
    put_values(log, RECORDS)
    yield log
    log.close()


def test_where_so_many_bytes_end_is_in_proportion(log: PartitionLog) -> None:
    whole_bytes = log.size_bytes
    for part in (0.1, 0.5, 0.9):
        offset, used_bytes = offset_after(log, 0, int(whole_bytes * part), RECORDS)
        assert offset == pytest.approx(RECORDS * part, abs=10)
        assert used_bytes == pytest.approx(whole_bytes * part, rel=0.1)


def test_it_ends_at_the_stop_and_not_behind(log: PartitionLog) -> None:
    assert offset_after(log, 0, 1 << 40, RECORDS) == (RECORDS, log.size_bytes)
    offset, used_bytes = offset_after(log, 100, 1 << 40, 200)
    assert offset == 200
    assert used_bytes == pytest.approx(log.size_bytes / 4, rel=0.1)
    assert offset_after(log, 50, 1000, 50)[0] == 50


def test_it_always_goes_on(log: PartitionLog) -> None:
    for start in range(RECORDS):
        assert offset_after(log, start, 1, RECORDS)[0] > start


def test_steps_of_some_bytes_come_to_the_end(log: PartitionLog) -> None:
    with PartitionReader(log.folder) as reader:
        offset = steps = 0
        while offset < RECORDS:
            offset, _ = reader.offset_after(offset, 1000, RECORDS)
            steps += 1
    assert steps == pytest.approx(log.size_bytes / 1000, rel=0.25)
