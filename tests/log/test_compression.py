"""Kafka's codecs: what other clients write is read, what is written other clients read, and bombs stay small."""

from __future__ import annotations

import base64
import gzip
import random
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptBatchError
from penstock.log.batches import compression
from tests import real_parts
from tests.log import batches
from tests.log.mock_cluster import MockCluster, Sent

LIMIT_BYTES = 64 * 1024 * 1024
CODECS = range(5)
COMPRESSING = range(1, 5)
VALUES = [b"", b"short", b"penstock " * 30_000, random.Random(5).randbytes(100_000)]

unhurried = settings(deadline=None)
by_name = pytest.mark.parametrize("codec", CODECS, ids=compression.NAMES)
compressing = pytest.mark.parametrize("codec", COMPRESSING, ids=compression.NAMES[1:])


@by_name
@unhurried
@given(st.binary(max_size=2_000), st.integers(1, 200))
def test_what_was_compressed_comes_back(codec: int, unit: bytes, times: int) -> None:
    data = unit * times
    assert compression.decompress(codec, compression.compress(codec, data), len(data)) == data


@pytest.mark.parametrize(
    ("codec", "level"),
    [(1, -1), (1, 1), (1, 9), (2, None), (3, 1), (3, 9), (3, 17), (4, -131072), (4, 1), (4, 22)],
)
def test_what_was_compressed_at_any_level_that_kafka_allows_comes_back(codec: int, level: int | None) -> None:
    data = b"penstock " * 10_000 + random.Random(5).randbytes(100_000)
    assert compression.decompress(codec, compression.compress(codec, data, level), len(data)) == data


@by_name
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_is_taken(codec: int, kind: type) -> None:
    data = b"abc" * 100
    packed = b"xx" + compression.compress(codec, kind(data)) + b"x"
    assert compression.decompress(codec, memoryview(kind(packed))[2:-1], LIMIT_BYTES) == data


@by_name
def test_data_that_fill_many_blocks_come_back(codec: int) -> None:
    seeded = random.Random(17)
    data = b"".join(seeded.randbytes(seeded.randrange(90_000)) + b"\0" * seeded.randrange(90_000) for _ in range(20))
    assert compression.decompress(codec, compression.compress(codec, data), len(data)) == data


def codecs_of(stored: bytes) -> set[int]:
    """The codecs of these batches: a batch tells its length at byte 8, and its codec in the attributes, at byte 21."""
    codecs, at = set[int](), 0
    while at < len(stored):
        (length,) = struct.unpack_from(">i", stored, at + 8)
        codecs.add(stored[at + 22] & 7)
        at += 12 + length
    return codecs


@by_name
def test_librdkafka_batches_are_read(codec: int) -> None:
    with MockCluster() as cluster:
        cluster.write([Sent(value) for value in VALUES], compression_type=compression.NAMES[codec])
        stored = cluster.stored()
    # Batches that do not shrink are sent as they are: a small one, if librdkafka makes one of the first values.
    assert codec in codecs_of(stored) <= {0, codec}, "librdkafka used another codec than it was told to"
    assert [record.value for record in batches.decode(stored)] == VALUES


@by_name
def test_librdkafka_reads_what_is_written(codec: int) -> None:
    with MockCluster() as cluster:
        cluster.put(batches.encode(batches.consecutive(0, VALUES, codec=codec)))
        assert [message.value() for message in cluster.consume(len(VALUES))] == VALUES


@by_name
def test_aiokafka_batches_are_read(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for offset, value in enumerate(VALUES):
        builder.append(offset, timestamp=0, key=None, value=value, headers=[])
    built = bytes(builder.build())
    assert built[22] & 7 == codec
    assert [record.value for record in batches.decode(built)] == VALUES


@by_name
def test_aiokafka_reads_what_is_written(codec: int) -> None:
    written = DefaultRecordBatch(batches.encode(batches.consecutive(0, VALUES, codec=codec)))
    assert written.validate_crc()
    assert [record.value for record in written] == VALUES


def test_java_batches_are_read() -> None:
    lines = "\n".join(base64.b64encode(value).decode() for value in VALUES)
    written = _java("write", lines.encode())
    assert [record.value for record in batches.decode(written)] == VALUES * len(CODECS)


def test_java_reads_what_is_written() -> None:
    written = b"".join(batches.encode(batches.consecutive(0, VALUES, codec=codec)) for codec in CODECS)
    lines = _java("read", written).decode().splitlines()
    assert [base64.b64decode(line) for line in lines] == VALUES * len(CODECS)


def _java(mode: str, stdin: bytes) -> bytes:
    source = Path(__file__).with_name("JavaBatches.java")
    command = [real_parts.java_with_compiler(), "-cp", real_parts.kafka_class_path(), str(source), mode]
    return subprocess.run(command, input=stdin, stdout=subprocess.PIPE, check=True, timeout=120).stdout


def test_raw_and_framed_snappy_are_told_apart() -> None:
    framed = compression.compress(compression.SNAPPY, b"hello")
    raw = b"\x05\x10hello"
    assert framed.startswith(b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01")
    assert framed.endswith(raw)
    assert compression.decompress(compression.SNAPPY, framed, 5) == b"hello"
    assert compression.decompress(compression.SNAPPY, raw, 5) == b"hello"


def test_framed_snappy_streams_can_be_joined() -> None:
    joined = compression.compress(compression.SNAPPY, b"one ") + compression.compress(compression.SNAPPY, b"two")
    assert compression.decompress(compression.SNAPPY, joined, 7) == b"one two"


def test_a_framed_snappy_version_in_the_wrong_byte_order_is_read() -> None:
    framed = bytearray(compression.compress(compression.SNAPPY, b"hello"))
    framed[8:16] = struct.pack("<ii", 1, 1)
    assert compression.decompress(compression.SNAPPY, framed, 5) == b"hello"


def test_gzip_of_several_members_is_read() -> None:
    assert compression.decompress(compression.GZIP, gzip.compress(b"one ") + gzip.compress(b"two"), 7) == b"one two"


def test_gzip_of_very_many_members_is_read_in_good_time() -> None:
    members = gzip.compress(b"") * 50_000 + gzip.compress(b"end")
    began_s = time.process_time()
    assert compression.decompress(compression.GZIP, members, 3) == b"end"
    assert time.process_time() - began_s < 10


def test_lz4_blocks_are_written_independent_of_each_other() -> None:
    independent = 0x20
    assert compression.compress(compression.LZ4, b"a" * 200_000)[4] & independent


@by_name
def test_one_byte_over_the_limit_is_refused(codec: int) -> None:
    packed = compression.compress(codec, bytes(100_000))
    assert len(compression.decompress(codec, packed, 100_000)) == 100_000
    with pytest.raises(CorruptBatchError, match="99999"):
        compression.decompress(codec, packed, 99_999)


@compressing
def test_the_limit_holds_when_it_is_not_a_step_of_growth(codec: int) -> None:
    packed = compression.compress(codec, bytes(3_000_001))
    assert len(compression.decompress(codec, packed, 3_000_001)) == 3_000_001
    with pytest.raises(CorruptBatchError):
        compression.decompress(codec, packed, 3_000_000)


@compressing
def test_a_bomb_takes_no_more_memory_than_the_limit(codec: int) -> None:
    program = """
        import resource, sys
        from penstock.errors import CorruptBatchError
        from penstock.log.batches import compression
        codec = int(sys.argv[1])
        bomb = sys.stdin.buffer.read()
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            compression.decompress(codec, bomb, 1_000_000)
        except CorruptBatchError:
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb)
    """
    bomb = compression.compress(codec, bytes(300_000_000))
    grown_kb = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(codec)],
        input=bomb,
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    ).stdout
    assert 0 <= int(grown_kb) < 20_000


def test_a_snappy_block_that_lies_about_its_size_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(CorruptBatchError, match=r"4294967295 bytes or more; at most 1000"):
        compression.decompress(compression.SNAPPY, b"\xff\xff\xff\xff\x0f\x00", 1000)


@compressing
def test_truncated_data_are_refused_wherever_they_are_cut(codec: int) -> None:
    packed = compression.compress(codec, random.Random(3).randbytes(300) + b"a" * 70_000)
    for length in range(len(packed)):
        if codec == compression.SNAPPY and _is_whole_snappy(packed[:length]):
            continue
        with pytest.raises(CorruptBatchError):
            compression.decompress(codec, packed[:length], 100_000)


def _is_whole_snappy(framed: bytes) -> bool:
    """The framing has no end mark: a cut between two blocks leaves a stream that is whole, but shorter."""
    at = 16
    while at + 4 <= len(framed):
        at += 4 + int.from_bytes(framed[at : at + 4], "big")
    return at == len(framed)


@compressing
@unhurried
@given(st.binary(max_size=300))
def test_garbage_is_refused_or_decoded_within_the_limit(codec: int, garbage: bytes) -> None:
    try:
        data = compression.decompress(codec, garbage, 10_000)
    except CorruptBatchError:
        return
    assert len(data) <= 10_000


@compressing
@unhurried
@given(st.data())
def test_flipped_bytes_are_refused_or_decoded_within_the_limit(codec: int, data: st.DataObject) -> None:
    packed = bytearray(compression.compress(codec, b"0123456789 abc " * 200))
    for at in data.draw(st.lists(st.integers(0, len(packed) - 1), min_size=1, max_size=4)):
        packed[at] = data.draw(st.integers(0, 255))
    try:
        assert len(compression.decompress(codec, packed, 10_000)) <= 10_000
    except CorruptBatchError:
        return


@pytest.mark.parametrize(
    "framed", [b"\x82SNAPPY\0", b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01\0\0", b"\x82SNAPPY\0" + b"\xff" * 12]
)
def test_damaged_snappy_framing_is_refused(framed: bytes) -> None:
    with pytest.raises(CorruptBatchError, match="snappy"):
        compression.decompress(compression.SNAPPY, framed, 1000)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(CorruptBatchError, match="codec 5; Kafka knows 0 to 4"):
        compression.decompress(5, b"", 100)
    with pytest.raises(ValueError, match="number 7; choose from 0 to 4"):
        compression.compress(7, b"")
