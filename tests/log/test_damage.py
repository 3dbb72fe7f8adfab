"""One damaged byte, in every kind of file and at every place: the truth or an error that names it, nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import CorruptSegmentError
from penstock.log.aborted import FILE_NAME as ABORTED
from penstock.log.batches.batch import StoredRecord
from penstock.log.checkpoint import FILE_NAME as CHECKPOINT
from penstock.log.partition import PartitionLog
from penstock.log.reader import PartitionReader
from penstock.log.segment import INDEX_SUFFIX
from tests.log.engine import (
    NOW_MS,
    Snapshot,
    batch_of,
    one_slice,
    open_log,
    put,
    put_values,
    read_all,
    reopen,
    segment_files,
)
from tests.sampling import sample
from tests.seeds import seed_of

BYTES_IN_A_SAMPLE = 150
"""Chooses the bit of each byte."""


@pytest.fixture
def healthy(tmp_path: Path) -> tuple[Path, list[StoredRecord]]:
    """A closed partition of several segments, the last of them open, with aborted records in it."""
    log = open_log(tmp_path / "healthy")
    expected = put_values(log, 24, per_batch=2)
    put(log, batch_of([(b"a", b"aborted")], producer_id=7, sequence=0, transactional=True))
    marker = log.append_marker(producer_id=7, producer_epoch=0, commit=False, coordinator_epoch=0, now_ms=NOW_MS)
    log.write()
    log.publish(log.end_offset)
    expected += [record for record in read_all(log) if marker - 1 <= record.offset <= marker]
    expected += put_values(log, 8, per_batch=2)
    assert len(log.segments) >= 3
    log.close()
    return tmp_path / "healthy", expected


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ bit]))


def flipped_bits(path: Path) -> Iterator[str]:
    """Flip one bit of each byte of a file in turn, and flip it back; says which. In `make test`, of some bytes."""
    seed = seed_of()
    bits = random.Random(seed)
    content = path.read_bytes()
    for position in sample(range(len(content)), BYTES_IN_A_SAMPLE):
        bit = bits.randrange(8)
        flip(path, position, 1 << bit)
        yield f"seed {seed}: bit {bit} of byte {position} of {path.name}"
        path.write_bytes(content)


def read_each(log: PartitionLog, expected: list[StoredRecord]) -> list[int]:
    """Ask for every offset on its own. Whatever is given out must be right; gives the offsets that are refused."""
    refused = []
    by_offset = {record.offset: record for record in expected}
    for record in expected:
        try:
            found = one_slice(log, record.offset)
        except CorruptSegmentError as error:
            refused.append(record.offset)
            check_names_the_place(error, record.offset)
        else:
            assert found, f"offset {record.offset} is silently missing"
            assert found[0] == record, f"asked for {record.offset}, got {found[0]}"
            assert all(by_offset[each.offset] == each for each in found)
    return refused


def check_names_the_place(error: CorruptSegmentError, offset: int) -> None:
    assert error.offset == offset
    assert Path(error.file).exists()
    assert error.file in str(error)


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_flipped_bit_in_a_segment_is_never_served_and_hides_only_its_own_batch(
    healthy: tuple[Path, list[StoredRecord]], number: int
) -> None:
    folder, expected = healthy
    for place in flipped_bits(segment_files(folder)[number]):
        log = open_log(folder)
        assert log.end_offset == expected[-1].offset + 1
        refused = read_each(log, expected)
        assert 1 <= len(refused) <= 2, f"{place}: {refused}"
        log.close()


@pytest.mark.parametrize(
    "choose",
    [
        pytest.param(lambda folder: folder / CHECKPOINT, id="checkpoint"),
        pytest.param(lambda folder: folder / ABORTED, id="aborted transactions"),
        pytest.param(lambda folder: segment_files(folder)[0].with_suffix(INDEX_SUFFIX), id="index of a sealed segment"),
        pytest.param(
            lambda folder: segment_files(folder)[-1].with_suffix(INDEX_SUFFIX), id="index of the last segment"
        ),
    ],
)
def test_a_flipped_bit_in_a_file_beside_the_segments_changes_nothing(
    healthy: tuple[Path, list[StoredRecord]], choose: Callable[[Path], Path]
) -> None:
    folder, expected = healthy
    snapshot = Snapshot(folder)
    for place in flipped_bits(choose(folder)):
        print(place)
        check_same(folder, expected)
        snapshot.restore()


@pytest.mark.parametrize("what", [f"*{INDEX_SUFFIX}", CHECKPOINT, ABORTED])
def test_files_beside_the_segments_are_made_again_when_they_are_lost(
    healthy: tuple[Path, list[StoredRecord]], what: str
) -> None:
    folder, expected = healthy
    gone = list(folder.glob(what))
    assert gone
    for path in gone:
        path.unlink()
    check_same(folder, expected)


def check_same(folder: Path, expected: list[StoredRecord]) -> None:
    for _ in range(2):  # what was repaired by opening it must be right as well
        log, report = reopen(folder)
        assert not report.damaged
        assert read_all(log) == expected
        assert [entry.producer_id for entry in log.aborted.between(0, log.end_offset)] == [7]
        assert not read_each(log, expected)
        log.close()


def test_a_segment_that_vanished_is_reported_and_its_offsets_are_refused(
    healthy: tuple[Path, list[StoredRecord]],
) -> None:
    folder, expected = healthy
    gone = segment_files(folder)[1]
    first, following = int(gone.stem), int(segment_files(folder)[2].stem)
    gone.unlink()
    log, report = reopen(folder)
    assert [error.offset for error in report.damaged] == [first]
    assert read_each(log, expected) == list(range(first, following))
    assert log.end_offset == expected[-1].offset + 1


def test_a_first_segment_that_vanished_is_reported(healthy: tuple[Path, list[StoredRecord]]) -> None:
    folder, expected = healthy
    segment_files(folder)[0].unlink()
    log, report = reopen(folder)
    assert [error.offset for error in report.damaged] == [0]
    assert log.log_start_offset == int(segment_files(folder)[0].stem)
    assert read_all(log) == expected[log.log_start_offset :]


@pytest.mark.parametrize("lost_bytes", [1, 100, None])
def test_records_lost_from_the_end_are_reported_and_their_offsets_never_given_to_others(
    healthy: tuple[Path, list[StoredRecord]], lost_bytes: int | None
) -> None:
    folder, expected = healthy
    last = segment_files(folder)[-1]
    size = last.stat().st_size
    with last.open("r+b") as file:
        file.truncate(0 if lost_bytes is None else size - lost_bytes)
    log, report = reopen(folder)
    assert report.damaged
    assert log.end_offset == expected[-1].offset + 1
    added = put_values(log, 1)
    assert added[0].offset == expected[-1].offset + 1
    refused = read_each(log, [*expected, *added])
    assert refused
    assert refused[-1] == expected[-1].offset
    log.close()
    log, report = reopen(folder)
    assert report.damaged
    assert read_each(log, [*expected, *added]) == refused


@pytest.mark.parametrize("number", [0, 1])
def test_a_sealed_segment_that_was_cut_short_is_reported(healthy: tuple[Path, list[StoredRecord]], number: int) -> None:
    folder, expected = healthy
    path = segment_files(folder)[number]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    log, report = reopen(folder)
    assert report.damaged
    following = int(segment_files(folder)[number + 1].stem)
    assert read_each(log, expected) == [following - 2, following - 1]


def test_a_lookup_by_time_does_not_skip_a_damaged_batch(healthy: tuple[Path, list[StoredRecord]]) -> None:
    folder, expected = healthy
    wanted = expected[2]
    flip(segment_files(folder)[0], 100 + 40, 0x01)
    log = open_log(folder)
    with pytest.raises(CorruptSegmentError):
        log.offset_for_time(wanted.timestamp)
    later = expected[-1]
    assert log.offset_for_time(later.timestamp) == (later.offset, later.timestamp)


def test_a_hole_of_megabytes_hides_only_what_was_in_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p", {})
    for number in range(60):
        put(log, batch_of([(b"k", b"%d" % number * 50_000)]))
    log.close()
    path = segment_files(tmp_path / "p")[0]
    with path.open("r+b") as file:
        file.seek(2_000_000)
        file.write(bytes(2_500_000))
    for _ in range(2):
        log, _ = reopen(tmp_path / "p", {})
        refused = []
        for offset in range(60):
            try:
                found = one_slice(log, offset)
            except CorruptSegmentError as error:
                check_names_the_place(error, offset)
                refused.append(offset)
            else:
                assert found[0].value == b"%d" % offset * 50_000
        assert refused == list(range(refused[0], refused[-1] + 1))
        assert 20 < len(refused) < 35
        (tmp_path / "p" / CHECKPOINT).unlink(missing_ok=True)  # and again, with everything read


def test_a_folder_of_an_earlier_version_gets_the_names_of_today(healthy: tuple[Path, list[StoredRecord]]) -> None:
    """Indexes had the name of Kafka's, and another format."""
    folder, expected = healthy
    folder = folder.rename(folder.with_name("topic-0"))
    today = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in list(folder.iterdir()):
        if path.suffix == INDEX_SUFFIX:
            path.rename(path.with_suffix(".index"))
    (folder / ABORTED).rename(folder / "aborted.index")
    with PartitionReader(folder, isolation="read_uncommitted") as reader:
        assert {record.offset for record in reader.read()} <= {record.offset for record in expected}
    log, report = reopen(folder)
    assert report.scanned_bytes == 0, "the indexes were not used"
    assert read_all(log) == expected
    log.close()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == today
