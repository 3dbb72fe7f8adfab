"""Compaction of a log with damage in it: nothing is made worse, and nothing that is gone comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import CorruptSegmentError
from penstock.log.batches.batch import StoredRecord, read_header, seal_batch
from penstock.log.partition import PartitionLog
from tests.log.engine import (
    COMPACTED,
    NOW_MS,
    RETENTION_MS,
    batch_of,
    committed,
    compact,
    dirty_again,
    one_slice,
    open_log,
    put,
    records_from,
    segment_files,
    send,
)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path / "p", COMPACTED)


def damage(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_segment_is_left_as_it_is_and_the_others_are_compacted(log: PartitionLog, number: int) -> None:
    for segment in range(3):
        for turn in range(3):
            send(log, (b"a", b"%d.%d" % (segment, turn)), (b"only-%d" % segment, b"1"))
        log.roll()
    path = segment_files(log.folder)[number]
    damage(path, -2)  # in the last batch
    content = path.read_bytes()
    log = open_log(log.folder, COMPACTED)
    cleaned = compact(log)
    assert cleaned is not None
    assert [(each.file, each.position > 0) for each in cleaned.damaged] == [(str(path), True)]
    assert path.read_bytes() == content
    assert log.clean_offset == 18
    keys = []
    for segment in range(3):
        if segment != number:
            keys += [record.key for record in records_from(log, 6 * segment, 6 * segment + 6)]
    assert keys.count(b"a") == (0 if number == 2 else 1), "a good record in a damaged segment counts"
    assert {b"only-0", b"only-1", b"only-2"} - {b"only-%d" % number} <= set(keys)
    good = records_from(log, 6 * number, 6 * number + 4)
    assert [record.offset for record in good] == [6 * number + each for each in range(4)]


def test_records_that_cannot_be_read_though_their_checksum_is_right_are_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", {})
    good = read_header(batch_of([(b"a", b"1")]))
    log.append_internal(seal_batch(good, b"this is not a record"))  # earlier versions took it from clients
    log.write()
    put(log, batch_of([(b"a", b"2")]))
    put(log, batch_of([(b"a", b"3")]))
    log.set_config(open_log(tmp_path / "q", COMPACTED).config)
    log.roll()
    content = segment_files(log.folder)[0].read_bytes()
    cleaned = compact(log)
    assert cleaned is not None
    assert len(cleaned.damaged) == 1
    assert segment_files(log.folder)[0].read_bytes() == content


def test_a_flipped_bit_in_a_compacted_segment_is_never_served(log: PartitionLog) -> None:
    for number in range(6):
        send(log, (b"%d" % (number % 3), b"%d" % number), (b"x%d" % number, b"%d" % number))
    log.roll()
    compact(log)
    expected = committed(log)
    log.close()
    path = segment_files(log.folder)[0]
    content = path.read_bytes()
    for position in range(len(content)):
        spoilt = bytearray(content)
        spoilt[position] ^= 1 << position % 8
        path.write_bytes(spoilt)
        check_truth_or_error(open_log(log.folder, COMPACTED), expected, position)
    path.write_bytes(content)


def check_truth_or_error(log: PartitionLog, expected: list[StoredRecord], position: int) -> None:
    refused = 0
    for offset in range(log.end_offset):
        try:
            found = one_slice(log, offset)
        except CorruptSegmentError:
            refused += 1
        else:
            assert found, f"byte {position}"
            assert found == [record for record in expected if record.offset >= offset][: len(found)], f"byte {position}"
    assert refused, f"byte {position}"


def test_a_tombstone_stays_while_an_older_value_could_not_be_cleaned_for_damage(log: PartitionLog) -> None:
    send(log, (b"a", b"1"))
    send(log, (b"b", b"1"))
    log.roll()
    send(log, (b"a", None))
    log.roll()
    damage(segment_files(log.folder)[0], -3)
    log = open_log(log.folder, COMPACTED)
    for later_ms in range(0, 5 * RETENTION_MS, RETENTION_MS):
        cleaned = compact(log, NOW_MS + later_ms)
        assert cleaned is not None
        assert [Path(each.file).stem for each in cleaned.damaged] == [f"{0:020d}"]
        dirty_again(log)
    tombstone = records_from(log, 2)[0]
    assert (tombstone.offset, tombstone.value) == (2, None)
    assert [record.offset for record in records_from(log, 0, 1)] == [0], "what stands beside the damage is still there"
