"""Both engines give what a plain reading of the bytes gives, whatever the records are like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pyarrow as pa
import pytest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptBatchError
from penstock.log.arrow import by_numpy, decode, schema
from penstock.log.batches import compression
from tests.log import batches
from tests.log.batches import Batch, Record
from tests.log.mock_cluster import Sent, segment
from tests.sampling import examples

Engine = Literal["numba", "numpy"]
ENGINES: tuple[Engine, ...] = ("numba", "numpy")
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1

unhurried = settings(deadline=None)
sizes = st.sampled_from([0, 1, 3, 4, 5, 11, 12, 13, 16, 63, 64, 100, 8191, 8192, 20_000])
fields = (
    st.none() | st.binary(max_size=40) | st.builds(lambda size, seed: bytes([seed]) * size, sizes, st.integers(0, 255))
)
headers = st.lists(st.tuples(st.text(max_size=20), fields), max_size=5).map(tuple)
times = st.integers(-1000, 1000) | st.sampled_from([0, 2**40, -(2**40), INT64_MAX // 4, -(INT64_MAX // 4)])


@st.composite
def batch(draw: st.DrawFn, base_offset: int) -> Batch:
    count = draw(st.integers(0, 12))
    gaps = draw(st.lists(st.sampled_from([0, 0, 0, 1, 7, 5000]), min_size=count + 1, max_size=count + 1))
    base_timestamp_ms = draw(st.sampled_from([-1, 0, 1_700_000_000_000]))
    records = []
    offset = base_offset - 1
    for gap in gaps[:-1]:
        offset += 1 + gap
        records.append(Record(offset, base_timestamp_ms + draw(times), draw(fields), draw(fields), draw(headers)))
    return Batch(
        base_offset=base_offset,
        records=tuple(records),
        last_offset=max(offset, base_offset) + gaps[-1],
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=draw(st.sampled_from([-1, 1_800_000_000_000])),
        codec=draw(st.sampled_from([0, 0, 1, 2, 3, 4])),
        flags=draw(st.sampled_from([0, 0, 0, batches.LOG_APPEND_TIME, batches.CONTROL, batches.TRANSACTIONAL])),
    )


@st.composite
def segments(draw: st.DrawFn) -> list[Batch]:
    drawn: list[Batch] = []
    offset = draw(st.sampled_from([0, 5, 2**40]))
    for _ in range(draw(st.integers(0, 6))):
        drawn.append(draw(batch(offset)))
        offset = drawn[-1].last_offset + 1 + draw(st.sampled_from([0, 0, 100]))
    return drawn


@contextmanager
def walking_in_step(at_least: int) -> Iterator[None]:
    """Make numpy walk batches and headers in step already when there are so few, and in small blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_numpy, "_IN_STEP", at_least)
        patch.setattr(by_numpy, "_BLOCK_ROWS", 5)
        yield


def rows(decoded: pa.RecordBatch) -> list[Record]:
    decoded.validate(full=True)
    return [
        Record(
            row["offset"],
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in _with_plain_times(decoded).to_pylist()
    ]


def _with_plain_times(decoded: pa.RecordBatch) -> pa.RecordBatch:
    at = decoded.schema.get_field_index("timestamp")
    return decoded.set_column(at, "timestamp", decoded.column(at).view(pa.int64()))


@pytest.mark.parametrize("engine", ENGINES)
@unhurried
@given(segments())
def test_every_record_comes_out_as_it_went_in(engine: Engine, drawn: list[Batch]) -> None:
    stored = b"".join(map(batches.encode, drawn))
    expected = list(batches.decode(stored))
    visible = [batch for batch in drawn if not batch.flags & batches.CONTROL]
    assert expected == [_as_read(batch, record) for batch in visible for record in batch.records]
    for views in (False, True):
        decoded = decode(stored, partition=3, engine=engine, views=views)
        assert decoded.schema == schema(views=views)
        assert rows(decoded) == expected
        assert decoded.column("partition").to_pylist() == [3] * len(expected)


def _as_read(batch: Batch, record: Record) -> Record:
    if batch.flags & batches.LOG_APPEND_TIME:
        return Record(record.offset, batch.max_timestamp_ms, record.key, record.value, record.headers)
    return record


@pytest.mark.parametrize("at_least", [1, 3])
@unhurried
@given(segments())
def test_numpy_gives_the_same_when_it_walks_in_step(at_least: int, drawn: list[Batch]) -> None:
    stored = b"".join(map(batches.encode, drawn))
    with walking_in_step(at_least):
        assert rows(decode(stored, partition=0, engine="numpy")) == list(batches.decode(stored))


@pytest.mark.parametrize("engine", ENGINES)
@unhurried
@given(segments(), st.data())
def test_a_range_holds_the_offsets_from_start_up_to_stop(
    engine: Engine, drawn: list[Batch], data: st.DataObject
) -> None:
    stored = b"".join(map(batches.encode, drawn))
    expected = list(batches.decode(stored))
    near = st.sampled_from([0, *(record.offset for record in expected)])
    start = data.draw(st.none() | near.map(lambda offset: offset + 1) | near)
    stop = data.draw(st.none() | near.map(lambda offset: offset + 1) | near)
    decoded = decode(stored, partition=0, engine=engine, start=start, stop=stop)
    inside = [
        record
        for record in expected
        if (start is None or record.offset >= start) and (stop is None or record.offset < stop)
    ]
    assert rows(decoded) == inside


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("codec", compression.NAMES)
def test_what_librdkafka_wrote_reads_as_aiokafka_reads_it(engine: Engine, codec: str) -> None:
    sent = [
        Sent(
            value=None if i % 7 == 0 else b"%d" % i * (i % 40),
            key=None if i % 3 == 0 else b"key %d" % i,
            headers=tuple((f"h{j}", None if j == 1 else b"x" * j) for j in range(i % 4)),
            timestamp_ms=1_700_000_000_000 + (i * 7919) % 1000,
        )
        for i in range(5_000)
    ]
    stored = segment(sent, compression_type=codec, batch_num_messages=200)
    decoded = rows(decode(stored, partition=0, engine=engine))
    assert decoded == _by_aiokafka(stored)
    assert [record.value for record in decoded] == [record.value for record in sent]


def _by_aiokafka(stored: bytes) -> list[Record]:
    found = []
    reader: Any = MemoryRecords(stored)
    while (stored_batch := reader.next_batch()) is not None:
        assert stored_batch.validate_crc()
        found += [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in stored_batch]
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_more_headers_than_can_be_walked_in_step_are_read(engine: Engine) -> None:
    many = tuple((f"name {i}", None if i % 5 == 0 else b"v" * (i % 30)) for i in range(3_000))
    records = [Record(i, 0, None, None, many[: i % 7]) for i in range(300)] + [Record(300, 0, None, None, many)]
    stored = batches.encode(Batch(0, tuple(records), 300))
    assert rows(decode(stored, partition=0, engine=engine)) == records


@pytest.mark.parametrize("engine", ENGINES)
def test_header_names_that_are_not_utf8_are_made_visible(engine: Engine) -> None:
    body = b"\0\0\0\x01\x01\x04" + b"\x04\xff\xfe\x02a" + b"\x04ok\x01"
    stored = batches.frame(Batch(0, (), 0), batches.varint(len(body)) + body, 1)
    assert [record.headers for record in batches.decode(stored)] == [((r"\xff\xfe", b"a"), ("ok", None))]
    for views in (False, True):
        (record,) = rows(decode(stored, partition=0, engine=engine, views=views))
        assert record.headers == ((r"\xff\xfe", b"a"), ("ok", None))


ALL_WAYS = pytest.mark.parametrize("way", [*ENGINES, "numpy in step"])


def decode_by(way: str, stored: bytes) -> pa.RecordBatch:
    with walking_in_step(1 if way == "numpy in step" else 100):
        return decode(stored, partition=0, engine="numba" if way == "numba" else "numpy")


def one_record(body: bytes) -> bytes:
    return batches.frame(Batch(0, (), 10), batches.varint(len(body)) + body, 1)


@ALL_WAYS
def test_timestamps_of_all_64_bits_are_read(way: str) -> None:
    times_ms = [INT64_MAX, -INT64_MAX - 1, 2**62, -(2**62) - 1, 0]
    records = tuple(Record(i, time_ms, None, None) for i, time_ms in enumerate(times_ms))
    assert rows(decode_by(way, batches.encode(Batch(0, records, 4)))) == list(records)


@ALL_WAYS
@pytest.mark.parametrize("field", range(7), ids=["time", "offset", "key", "value", "headers", "name", "header value"])
def test_a_number_of_more_bits_than_its_type_is_refused(way: str, field: int) -> None:
    parts = [b"\0", b"\0", b"\x01", b"\x01", b"\x02", b"\0", b"\x01"]
    assert rows(decode_by(way, one_record(b"\0" + b"".join(parts)))) == [Record(0, 0, None, None, (("", None),))]
    for number in (
        (b"\x81\x80\x80\x80\x10", b"\x80" * 5 + b"\0") if field else (b"\x80" * 9 + b"\x02", b"\x80" * 10 + b"\0")
    ):
        changed = b"\0" + b"".join([*parts[:field], number, *parts[field + 1 :]])
        with pytest.raises(CorruptBatchError):
            decode_by(way, one_record(changed))


@ALL_WAYS
def test_a_record_length_of_more_bits_than_its_type_is_refused(way: str) -> None:
    body = b"\0\0\0\x01\x01\0"
    for length in (b"\x8c\x80\x80\x80\x10", b"\x8c\x80\x80\x80\x80\0"):
        with pytest.raises(CorruptBatchError):
            decode_by(way, batches.frame(Batch(0, (), 0), length + body, 1))


@ALL_WAYS
def test_headers_that_do_not_fill_their_record_are_refused(way: str) -> None:
    with pytest.raises(CorruptBatchError, match="headers do not fill"):
        decode_by(way, one_record(b"\0\0\0\x01\x01\x02" + b"\0\x01" + b"extra"))


@ALL_WAYS
def test_a_header_without_a_name_cannot_send_the_reader_backwards(way: str) -> None:
    # A name of -3 bytes, taken at its word, leads back to the last byte of the value, which reads as a size of 3.
    with pytest.raises(CorruptBatchError, match="headers do not fill"):
        decode_by(way, one_record(b"\0\0\0\x01\x02\x06\x02" + b"\x05\0"))


NUMBERS = st.sampled_from(
    [0, 1, -1, 2, -2, 5, 10, 63, 64, -64, -65, 100, INT32_MAX, -INT32_MAX - 1, INT32_MAX + 1, INT64_MAX, -INT64_MAX - 1]
)
ODD = st.sampled_from(
    [b"\x80" * 4 + b"\x10", b"\x80" * 5, b"\xff" * 5, b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\xff" * 11]
)


@st.composite
def records_sections(draw: st.DrawFn) -> tuple[bytes, int]:
    """Bytes that are almost, or not at all, a section of records, and how many are claimed to be in it."""
    drawn = draw(batch(0))
    section = bytearray(b"".join(batches.encode_record(r, 0, drawn.base_timestamp_ms) for r in drawn.records)[:500])
    count = len(drawn.records)
    kind = draw(st.sampled_from(["bytes", "numbers", "changed", "cut"]))
    if kind == "bytes":
        return draw(st.binary(max_size=60)), draw(st.integers(0, 8))
    if kind == "numbers":
        return b"".join(draw(st.lists(NUMBERS.map(batches.varint) | ODD, max_size=20))), draw(st.integers(0, 3))
    if kind == "changed":
        for at in draw(st.lists(st.integers(0, max(len(section) - 1, 0)), max_size=3)):
            section[at : at + draw(st.integers(0, 2))] = draw(NUMBERS.map(batches.varint) | ODD | st.binary(max_size=2))
        return bytes(section), count
    return bytes(section[: draw(st.integers(0, len(section)))]), count + draw(st.sampled_from([-1, 0, 1]))


NAME_THAT_IS_NOT_UTF8 = (
    b"\xa2\x01\x00\x00\x00\x01\x01\n\x00\x01\x00\x01\x00\x01\x00~"
    + 63 * b"\x00"
    + b"\x04\x00\x80\x01\x0c\x00\x00\x02\x01\x01\x00"
)
"""Two records, the first with a header named by the bytes 00 80."""


@ALL_WAYS
@settings(unhurried, max_examples=examples(50, soak=3000))
@given(records_sections(), st.sampled_from([0, 1, 10, INT32_MAX]), st.sampled_from([0, 4]))
@example(drawn=(NAME_THAT_IS_NOT_UTF8, 2), last_delta=1, codec=0)
@example(drawn=(NAME_THAT_IS_NOT_UTF8, 2), last_delta=1, codec=4)
def test_garbage_with_a_good_checksum_is_read_or_refused_as_a_plain_reading_does(
    way: str, drawn: tuple[bytes, int], last_delta: int, codec: int
) -> None:
    section, count = drawn
    good = batches.encode(batches.consecutive(0, [b"before"]))
    odd = batches.frame(Batch(1, (), 1 + last_delta, codec=codec), compression.compress(codec, section), count)
    try:
        expected = list(batches.decode(good + odd)) if count >= 0 else None
    except batches.Refused:
        expected = None
    if expected is None:
        with pytest.raises(CorruptBatchError, match=f"byte {len(good)} "):
            decode_by(way, good + odd)
    else:
        assert rows(decode_by(way, good + odd)) == expected
