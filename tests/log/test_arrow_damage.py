"""Damage is named and never served as data, and nothing that a buffer claims makes the decoder crash, hang or swell."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from penstock.errors import CorruptBatchError, CorruptSegmentError
from penstock.log.arrow import BufferOrigin, decode, decode_in_chunks
from penstock.log.arrow.engines import Name
from penstock.log.batches import compression
from penstock.log.batches.batch import MAX_DECOMPRESSED_BYTES
from tests.log import batches
from tests.log.batches import Batch, Record

each_engine = pytest.mark.parametrize("engine", ["numba", "numpy"])
BEFORE, DAMAGED, AFTER = (batches.encode(batches.consecutive(at, [b"value %d" % at] * 3)) for at in (0, 3, 6))
CLOSED = BufferOrigin("00000000000000000000.log", dense=True, whole=True)
EPOCH = range(12, 16)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("codec", range(5), ids=compression.NAMES)
def test_no_flipped_bit_is_served(codec: int) -> None:
    middle = batches.encode(batches.consecutive(3, [b"value 3"] * 3, codec=codec))
    intact = decode(BEFORE + middle + AFTER, partition=0, engine="numpy")
    for bit in range(len(middle) * 8):
        buffer = BEFORE + flipped(middle, bit) + AFTER
        if bit // 8 in EPOCH:
            assert decode(buffer, partition=0, engine="numpy", origin=CLOSED) == intact
            continue
        with pytest.raises(CorruptSegmentError):
            decode(buffer, partition=0, engine="numpy", origin=CLOSED)


def test_damage_is_named_by_file_position_and_offset() -> None:
    buffer = BEFORE + flipped(DAMAGED, 8 * 70) + AFTER
    with pytest.raises(CorruptSegmentError) as caught:
        decode(buffer, partition=0, origin=BufferOrigin("orders-0/00.log", position=1000))
    assert caught.value.file == "orders-0/00.log"
    assert caught.value.position == 1000 + len(BEFORE)
    assert caught.value.offset == 3
    assert "checksum" in caught.value.reason


@each_engine
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_what_stands_before_damage_is_given_out_first(engine: Name, chunk_bytes: int) -> None:
    bad_checksum = flipped(DAMAGED, 8 * 70)
    bad_records = batches.frame(Batch(3, (), 5), b"\x14" + b"\0" * 20, 1)
    bad_headers = batches.frame(Batch(3, (), 5), b"\x10" + b"\0\0\0\x01\x01\x02" + b"\x7f\x7f", 1)
    bad_packing = batches.frame(Batch(3, (), 5, codec=4), b"not zstd", 1)
    for bad in (bad_checksum, bad_records, bad_headers, bad_packing):
        chunks = decode_in_chunks(BEFORE + bad + AFTER, partition=0, engine=engine, chunk_bytes=chunk_bytes)
        assert next(chunks).column("offset").to_pylist() == [0, 1, 2]
        with pytest.raises(CorruptSegmentError, match=rf"byte {len(BEFORE)} \(offset 3\)"):
            next(chunks)


@each_engine
def test_a_reader_can_stop_before_damage_and_go_on_behind_it(engine: Name) -> None:
    bad = flipped(DAMAGED, 8 * 70)
    buffer = BEFORE + bad + AFTER
    assert decode(buffer, partition=0, engine=engine, stop=3).column("offset").to_pylist() == [0, 1, 2]
    for unreadable in (bytes(100), flipped(DAMAGED, 8 * 16)):
        assert len(decode(BEFORE + unreadable, partition=0, engine=engine, stop=3)) == 3
    behind = memoryview(buffer)[len(BEFORE) + len(bad) :]
    assert decode(behind, partition=0, engine=engine).column("offset").to_pylist() == [6, 7, 8]


def test_damage_before_the_start_is_not_passed_over() -> None:
    with pytest.raises(CorruptSegmentError):
        decode(flipped(DAMAGED, 8 * 26) + AFTER, partition=0, start=6)


def test_a_caller_who_has_checked_the_checksums_can_skip_that() -> None:
    other_checksum = flipped(DAMAGED, 8 * 17)
    assert len(decode(other_checksum, partition=0, verify=False)) == 3
    with pytest.raises(CorruptSegmentError):
        decode(flipped(DAMAGED, 8 * 61), partition=0, verify=False)


def test_offsets_that_go_backwards_are_refused() -> None:
    with pytest.raises(CorruptSegmentError, match="9 was expected"):
        decode(AFTER + BEFORE, partition=0)
    with pytest.raises(CorruptSegmentError, match="3 was expected"):
        decode(BEFORE + BEFORE, partition=0)


def test_a_gap_is_damage_only_where_there_can_be_none() -> None:
    assert len(decode(BEFORE + AFTER, partition=0)) == 6
    assert len(decode(DAMAGED + AFTER, partition=0, origin=CLOSED)) == 6
    with pytest.raises(CorruptSegmentError, match="3 was expected"):
        decode(BEFORE + AFTER, partition=0, origin=CLOSED)


def test_a_closed_segment_must_end_with_a_whole_batch() -> None:
    for length in range(1, len(AFTER)):
        with pytest.raises(CorruptSegmentError, match=rf"byte {len(BEFORE)} .*{length} bytes left"):
            decode(BEFORE + AFTER[:length], partition=0, origin=BufferOrigin(whole=True))


def test_zeros_where_a_batch_should_be_are_damage() -> None:
    with pytest.raises(CorruptSegmentError, match="format version 0"):
        decode(BEFORE + bytes(100), partition=0)


@pytest.mark.parametrize(
    ("at", "size", "value", "reason"),
    [
        (8, 4, 48, "an impossible length of 48 bytes"),
        (8, 4, -1, "an impossible length of -1 bytes"),
        (16, 1, 1, "format version 1 instead of 2"),
        (0, 8, -1, "does not follow"),
        (0, 8, 2**63 - 2, "an impossible last offset delta of 2"),
        (23, 4, -1, "an impossible last offset delta of -1"),
        (57, 4, -1, "an impossible count of -1 records"),
        (57, 4, 2**31 - 1, "2147483647 records cannot be in"),
        (57, 4, 2, "bytes follow the last record"),
        (57, 4, 4, "reaches past the end"),
        (23, 4, 1, "offset"),
    ],
)
@each_engine
def test_a_header_that_cannot_be_true_is_refused(engine: Name, at: int, size: int, value: int, reason: str) -> None:
    lie = batches.with_crc(DAMAGED[:at] + value.to_bytes(size, "big", signed=True) + DAMAGED[at + size :])
    with pytest.raises(CorruptSegmentError, match=reason):
        decode(lie, partition=0, engine=engine)


@each_engine
def test_offsets_within_a_batch_must_ascend(engine: Name) -> None:
    for offsets in ([0, 0], [1, 0], [0, 6], [-1, 0]):
        records = tuple(Record(offset, 0, None, None) for offset in offsets)
        with pytest.raises(CorruptBatchError, match="offset does not follow"):
            decode(batches.encode(Batch(0, records, 5)), partition=0, engine=engine)


@each_engine
def test_a_batch_that_expands_beyond_measure_is_refused(engine: Name) -> None:
    bomb = compression.compress(compression.ZSTD, bytes(MAX_DECOMPRESSED_BYTES + 1))
    with pytest.raises(CorruptSegmentError, match="expand"):
        decode(batches.frame(Batch(0, (), 0, codec=compression.ZSTD), bomb, 1), partition=0, engine=engine)


@each_engine
def test_lies_about_counts_and_sizes_cost_no_memory(engine: Name) -> None:
    huge = batches.varint(2**31 - 1)
    lies = [
        batches.frame(Batch(0, (), 2**31 - 1), b"", 2**31 - 1),
        batches.frame(Batch(0, (), 0), huge + bytes(10), 1),
        batches.frame(Batch(0, (), 0), b"\x1a\0\0\0" + huge + bytes(6), 1),
        batches.frame(Batch(0, (), 0), b"\x1a\0\0\0\x01\x01" + huge + bytes(5), 1),
        batches.frame(Batch(0, (), 0), b"\x1a\0\0\0\x01\x01\x02" + huge + bytes(5), 1),
    ]
    decode(BEFORE, partition=0, engine=engine)
    tracemalloc.start()
    try:
        for lie in lies:
            with pytest.raises(CorruptSegmentError):
                decode(lie, partition=0, engine=engine)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 5_000_000


@each_engine
def test_a_record_of_a_million_headers_is_no_slower_than_its_size_warrants(engine: Name) -> None:
    count = 1_000_000
    body = b"\0\0\0\x01\x01" + batches.varint(count) + b"\0\x01" * count
    stored = batches.frame(Batch(0, (), 0), batches.varint(len(body)) + body, 1)
    decode(BEFORE, partition=0, engine=engine)
    began_s = time.process_time()
    decoded = decode(stored, partition=0, engine=engine)
    assert time.process_time() - began_s < 20
    assert len(decoded.column("headers").values) == count
    assert decoded.column("headers").values.field("value").null_count == count


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(1, 11))
def test_no_damage_makes_the_compiled_code_touch_memory_outside_of_the_buffer(seed: int, tmp_path: Path) -> None:
    """Thousands of damaged batches between two pages that may not be read, with numba's own checks of every index."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.log.fuzz_beside_guard_pages", str(seed), "3000"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, f"seed {seed}: exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    refused, read = (int(word) for word in result.stdout.split())
    assert refused > 1000
    assert read > 100
