"""A reader in one process while another writes, compacts, deletes and begins new segments as fast as it can."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import OffsetOutOfRangeError
from penstock.log.batches.batch import StoredRecord
from penstock.log.reader import PartitionReader
from tests.tidy.source import ROOT

RECORDS = 3000


@pytest.fixture
def writer(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.log.killed_writer", str(tmp_path / "topic-0"), "0", request.param]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT) as process:
        yield process
        process.kill()


def follow(reader: PartitionReader, writer: subprocess.Popen[bytes], offset: int) -> Iterator[StoredRecord]:
    for record in reader.follow(offset, poll_s=0.001):
        assert writer.poll() is None, "the writer ended by itself"
        yield record


@pytest.mark.parametrize("writer", ["plain"], indirect=True)
def test_a_follower_sees_every_record_once_and_in_order(tmp_path: Path, writer: subprocess.Popen[bytes]) -> None:
    for expected, record in enumerate(follow(PartitionReader(tmp_path / "topic-0"), writer, 0)):
        assert (record.offset, record.value) == (expected, b"%d" % expected)
        if expected == RECORDS:
            break


@pytest.mark.parametrize("writer", ["compact"], indirect=True)
def test_a_follower_of_a_log_that_is_being_compacted_never_goes_back_and_never_reads_nonsense(
    tmp_path: Path, writer: subprocess.Popen[bytes]
) -> None:
    reader = PartitionReader(tmp_path / "topic-0")
    reached = -1
    for record in follow(reader, writer, 0):
        assert record.offset > reached
        assert record.value == b"%d" % record.offset
        reached = record.offset
        if reached > RECORDS:
            break
    for _ in range(20):  # from the start, through segments that are replaced meanwhile
        records = list(reader.read())
        assert all(record.value == b"%d" % record.offset for record in records)
        newest = {record.key: record.offset for record in records}
        assert min(newest.values()) >= records[-1].offset - 9, "a key has lost its last value"


@pytest.mark.parametrize("writer", ["delete"], indirect=True)
def test_a_reader_of_a_log_whose_start_moves_reads_on_or_is_told(
    tmp_path: Path, writer: subprocess.Popen[bytes]
) -> None:
    reader = PartitionReader(tmp_path / "topic-0")
    while reader.end_offset < RECORDS:
        assert writer.poll() is None, "the writer ended by itself"
        try:
            records = list(reader.read())
        except OffsetOutOfRangeError:
            continue
        assert [record.value for record in records] == [b"%d" % record.offset for record in records]
        first = records[0].offset if records else 0
        assert [record.offset for record in records] == list(range(first, first + len(records)))
    assert reader.start_offset > 0
