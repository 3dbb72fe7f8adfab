"""A write that a crash has interrupted: everything before it stays, and the log goes on where it ends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.log.batches.batch import StoredRecord
from tests.log.engine import Snapshot, batch_of, open_log, put, put_values, read_all, reopen, segment_files

SEED = 4


@pytest.fixture
def crashed(tmp_path: Path) -> tuple[Path, list[StoredRecord], int]:
    """A partition that was not closed: its folder, the records before the last batch, and where that batch starts."""
    folder = tmp_path / "crashed"
    log = open_log(folder)
    expected = put_values(log, 9, per_batch=3)
    log.checkpoint()
    expected += put_values(log, 6, per_batch=3)
    start = segment_files(folder)[-1].stat().st_size
    put(log, batch_of([(b"last", b"x" * 10), (b"last", b"y")]))
    last = segment_files(folder)[-1]
    assert last.stat().st_size > start, "the last batch must not be alone in its segment"
    return folder, expected, start


def each_byte(folder: Path, start: int) -> Iterator[tuple[Path, int]]:
    """The last segment and the position of each byte of its last batch, with the folder as it was for each of them."""
    snapshot = Snapshot(folder)
    last = segment_files(folder)[-1]
    for position in range(start, last.stat().st_size):
        yield last, position
        snapshot.restore()


def check_cut(segment: Path, expected: list[StoredRecord], start: int, torn_bytes: int, where: str) -> None:
    log, report = reopen(segment.parent)
    assert report.truncated_bytes == torn_bytes, where
    assert not report.damaged, where
    assert read_all(log) == expected, where
    assert segment.stat().st_size == start, where
    added = put_values(log, 2)
    assert added[0].offset == len(expected), where
    assert read_all(log) == expected + added, where
    log.close()
    assert read_all(open_log(segment.parent)) == expected + added, where


def test_a_batch_torn_at_any_byte_is_cut_off(crashed: tuple[Path, list[StoredRecord], int]) -> None:
    folder, expected, start = crashed
    for segment, end in each_byte(folder, start):
        with segment.open("r+b") as file:
            file.truncate(end)
        check_cut(segment, expected, start, end - start, f"torn at byte {end - start}")


@pytest.mark.parametrize("garbage", ["zeros", "noise", "an older batch"])
def test_a_batch_whose_end_is_garbage_from_any_byte_on_is_cut_off(
    crashed: tuple[Path, list[StoredRecord], int], garbage: str
) -> None:
    folder, expected, start = crashed
    size = segment_files(folder)[-1].stat().st_size
    noise = random.Random(SEED)
    for segment, position in each_byte(folder, start):
        length = size - position
        content = bytearray(segment.read_bytes())
        tail = {
            "zeros": bytes(length),
            "noise": noise.randbytes(length),
            "an older batch": (content[:start] * 2)[:length],
        }[garbage]
        if content[position:] == tail:
            continue
        content[position:] = tail
        segment.write_bytes(content)
        where = f"seed {SEED}: {garbage} from byte {position - start} on"
        check_cut(segment, expected, start, size - start, where)


def test_zeros_behind_the_last_batch_are_cut_off(crashed: tuple[Path, list[StoredRecord], int]) -> None:
    folder, expected, _ = crashed
    last = segment_files(folder)[-1]
    size = last.stat().st_size
    with last.open("ab") as file:
        file.write(bytes(5000))
    log, report = reopen(folder)
    assert report.truncated_bytes == 5000
    assert last.stat().st_size == size
    assert read_all(log)[: len(expected)] == expected
    assert log.end_offset == len(expected) + 2


def test_damage_that_good_batches_follow_is_not_taken_for_a_torn_tail(
    crashed: tuple[Path, list[StoredRecord], int],
) -> None:
    folder, expected, start = crashed
    last = segment_files(folder)[-1]
    content = bytearray(last.read_bytes())
    content[70] ^= 1
    last.write_bytes(content)
    log, report = reopen(folder)
    assert report.truncated_bytes == 0
    assert [error.position for error in report.damaged] == [0]
    assert log.end_offset == len(expected) + 2
    assert last.stat().st_size == len(content) > start


def test_a_crash_before_the_first_batch_was_written_leaves_an_empty_log(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p")
    log.roll()
    assert segment_files(tmp_path / "p")
    log, report = reopen(tmp_path / "p")
    assert (log.end_offset, report.truncated_bytes) == (0, 0)
    assert put_values(log, 1) == read_all(log)


def test_a_crash_while_a_new_segment_was_begun_loses_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "p")
    expected = put_values(log, 7)
    log.roll()
    log, _ = reopen(tmp_path / "p")
    assert log.segments[-1].base_offset == 7
    expected += put_values(log, 3)
    assert read_all(open_log(tmp_path / "p")) == expected


@pytest.mark.parametrize("checkpointed", [False, True], ids=["before the first checkpoint", "after a checkpoint"])
@pytest.mark.parametrize(
    ("left", "spoilt", "said"),
    [
        pytest.param(1.0, (70, -1), "5 records from offset 4 on: the checksum does not match", id="two damaged"),
        pytest.param(0.9, (70,), "5 records from offset 4 on: the checksum does not match", id="damaged, then torn"),
        pytest.param(0.5, (), "3 records from offset 4 on: it claims", id="torn"),
        pytest.param(0.2, (), "an unknown number of records from offset 4 on: the file ends within", id="header torn"),
    ],
)
def test_what_was_cut_off_is_told_with_all_that_can_be_known(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    checkpointed: bool,
    left: float,
    spoilt: tuple[int, ...],
    said: str,
) -> None:
    log = open_log(tmp_path / "p", {})
    put_values(log, 4, per_batch=2)
    if checkpointed:
        log.checkpoint()
    last = segment_files(tmp_path / "p")[-1]
    start = last.stat().st_size
    put_values(log, 3, per_batch=3)
    put_values(log, 2, per_batch=2)
    content = last.read_bytes()
    tail = bytearray(content[start:])
    for at in spoilt:
        tail[at] ^= 1
    del tail[int(left * len(tail)) :]
    last.write_bytes(content[:start] + tail)
    log, report = reopen(tmp_path / "p", {})
    assert (log.end_offset, report.truncated_bytes) == (4, len(tail))
    (warning,) = [message for message in caplog.messages if "cut off" in message]
    assert warning.startswith(f"{last}: cut off the last {len(tail)} bytes, {said}")
    assert "acks=1" in warning
