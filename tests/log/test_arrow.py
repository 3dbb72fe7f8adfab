"""A buffer of record batches as Arrow: what is in it, what is left out, and what it costs in memory."""

from __future__ import annotations

import gc
import logging
import mmap
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.log.arrow import (
    AbortedTransaction,
    BufferOrigin,
    by_numpy,
    decode,
    decode_in_chunks,
    engines,
    scan,
    schema,
)
from penstock.log.arrow.columns import Unit
from penstock.log.arrow.engines import Name
from penstock.log.batches import compression
from tests.log import batches
from tests.log.batches import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, Batch, Record

each_engine = pytest.mark.parametrize("engine", ["numba", "numpy"])
LONG = b"longer than twelve bytes"


def stored(*parts: Batch) -> bytes:
    return b"".join(map(batches.encode, parts))


def values(decoded: pa.RecordBatch) -> list[bytes | None]:
    decoded.validate(full=True)
    found: list[bytes | None] = decoded.column("value").to_pylist()
    return found


def test_the_columns_are_those_of_sparks_kafka_source_but_for_the_topic() -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    assert schema("us") == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestamp_type", pa.int32()),
            ("headers", pa.list_(header)),
        ]
    )


def test_views_are_offered_for_every_column_of_bytes() -> None:
    viewed = schema("ms", views=True)
    assert viewed.field("key").type == viewed.field("value").type == pa.binary_view()
    assert viewed.field("headers").type.value_type == pa.struct(
        [("key", pa.string_view()), ("value", pa.binary_view())]
    )


@each_engine
def test_one_record_has_all_its_parts(engine: Name) -> None:
    record = Record(41, 1_700_000_000_123, b"k", LONG, (("h", b"1"), ("h", None)))
    decoded = decode(stored(Batch(40, (record,), 44, 1_700_000_000_000)), partition=7, engine=engine)
    (row,) = decoded.to_pylist()
    assert row.pop("timestamp").isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert row == {
        "key": b"k",
        "value": LONG,
        "partition": 7,
        "offset": 41,
        "timestamp_type": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }


@each_engine
@pytest.mark.parametrize("nothing", [b"", stored(batches.consecutive(0, [b"marker"], flags=CONTROL))])
def test_a_buffer_without_records_gives_an_empty_batch(engine: Name, nothing: bytes) -> None:
    decoded = decode(nothing, partition=0, engine=engine, unit="us", views=True)
    assert decoded.schema == schema("us", views=True)
    assert len(decoded) == 0
    assert list(decode_in_chunks(nothing, partition=0, engine=engine)) == []


@each_engine
def test_transaction_markers_are_left_out(engine: Name) -> None:
    buffer = stored(
        batches.consecutive(0, [b"a"], flags=TRANSACTIONAL, producer_id=1),
        batches.consecutive(1, [b"\0\0\0\0\0\0"], flags=TRANSACTIONAL | CONTROL, producer_id=1),
        batches.consecutive(2, [b"b"]),
    )
    assert values(decode(buffer, partition=0, engine=engine)) == [b"a", b"b"]


@each_engine
def test_only_what_an_aborted_transaction_wrote_is_left_out(engine: Name) -> None:
    buffer = stored(
        batches.consecutive(0, [b"committed before"], flags=TRANSACTIONAL, producer_id=1),
        batches.consecutive(1, [b"aborted", b"too"], flags=TRANSACTIONAL, producer_id=1),
        batches.consecutive(3, [b"another producer's"], flags=TRANSACTIONAL, producer_id=2),
        batches.consecutive(4, [b"outside of any"], producer_id=1),
        batches.consecutive(5, [b"aborted last"], flags=TRANSACTIONAL, producer_id=1),
        batches.consecutive(7, [b"committed after"], flags=TRANSACTIONAL, producer_id=1),
        batches.consecutive(8, [b"aborted again"], flags=TRANSACTIONAL, producer_id=1),
    )
    aborted = [AbortedTransaction(1, 8, 9), AbortedTransaction(2, 7, 9), AbortedTransaction(1, 1, 5)]
    decoded = decode(buffer, partition=0, engine=engine, aborted=aborted)
    assert values(decoded) == [b"committed before", b"another producer's", b"outside of any", b"committed after"]
    assert len(decode(buffer, partition=0, engine=engine)) == 8


@each_engine
def test_the_brokers_time_counts_where_the_batch_says_so(engine: Name) -> None:
    records = tuple(Record(i, 5_000 + i, None, b"v") for i in range(2))
    buffer = stored(
        Batch(0, records, 1, base_timestamp_ms=5_000, max_timestamp_ms=9_999, flags=LOG_APPEND_TIME),
        batches.consecutive(2, [b"own time"]),
    )
    decoded = decode(buffer, partition=0, engine=engine)
    assert decoded.column("timestamp").cast(pa.int64()).to_pylist() == [9_999, 9_999, 1_000]
    assert decoded.column("timestamp_type").to_pylist() == [1, 1, 0]
    assert decode(buffer, partition=0, engine=engine, start=1).column("timestamp_type").to_pylist() == [1, 0]


@each_engine
def test_what_compaction_left_of_a_batch_keeps_its_offsets(engine: Name) -> None:
    left = (Record(103, 7, b"k", b"v"), Record(108, -1, b"l", None))
    empty = Batch(110, (), 119)
    buffer = stored(Batch(100, left, 109, base_timestamp_ms=-1), empty, batches.consecutive(130, [b"w"]))
    decoded = decode(buffer, partition=0, engine=engine)
    assert decoded.column("offset").to_pylist() == [103, 108, 130]
    assert decoded.column("timestamp").cast(pa.int64()).to_pylist() == [7, -1, 1_000]


@each_engine
def test_batches_of_all_codecs_stand_side_by_side(engine: Name) -> None:
    parts = [batches.consecutive(2 * i, [b"%d" % i, LONG * i], codec=i % 5) for i in range(20)]
    for views in (False, True):
        decoded = decode(stored(*parts), partition=0, engine=engine, views=views)
        assert values(decoded) == [record.value for part in parts for record in part.records]


@pytest.mark.parametrize(
    ("unit", "ticks", "furthest"),
    [("ms", 1, 2**62), ("us", 1_000, (2**63 - 1) // 1_000 * 1_000), ("ns", 1_000_000, (2**63 - 1) // 10**6 * 10**6)],
)
def test_the_unit_of_the_timestamp_is_a_choice(unit: Unit, ticks: int, furthest: int) -> None:
    times_ms = [1_700_000_000_123, -1, 2**62, -(2**62)]
    records = tuple(Record(i, time_ms, None, None) for i, time_ms in enumerate(times_ms))
    decoded = decode(stored(Batch(0, records, 3)), partition=0, unit=unit)
    assert decoded.schema == schema(unit)
    assert decoded.column("timestamp").view(pa.int64()).to_pylist() == [
        times_ms[0] * ticks,
        -ticks,
        furthest,
        -furthest,
    ]


@each_engine
def test_a_batch_that_is_cut_off_is_not_there_yet(engine: Name) -> None:
    first, second = stored(batches.consecutive(0, [b"a"])), stored(batches.consecutive(1, [b"b", b"c"]))
    for length in range(len(second)):
        assert values(decode(first + second[:length], partition=0, engine=engine)) == [b"a"]
    assert values(decode(first + second, partition=0, engine=engine)) == [b"a", b"b", b"c"]


def test_views_point_into_the_buffer_and_keep_it_alive(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(stored(batches.consecutive(0, [LONG, b"short", None])))
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    decoded = decode(mapped, partition=0, views=True)
    begins = pa.py_buffer(mapped).address
    into = decoded.column("value").buffers()[2]
    assert begins <= into.address < into.address + into.size <= begins + len(mapped)
    with pytest.raises(BufferError):
        mapped.close()
    del mapped, into
    gc.collect()
    assert values(decoded) == [LONG, b"short", None]


@each_engine
def test_plain_columns_let_go_of_the_buffer(tmp_path: Path, engine: Name) -> None:
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(stored(batches.consecutive(0, [LONG, b"short", None])))
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        decoded = decode(mapped, partition=0, engine=engine)
    assert values(decoded) == [LONG, b"short", None]


@each_engine
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_is_taken(engine: Name, kind: type) -> None:
    assert values(decode(kind(stored(batches.consecutive(0, [LONG]))), partition=0, engine=engine)) == [LONG]


@each_engine
@pytest.mark.parametrize("codec", [compression.NONE, compression.LZ4])
def test_chunks_hold_the_same_records_in_the_same_order(engine: Name, codec: int) -> None:
    parts = [batches.consecutive(10 * i, [LONG] * 10, codec=codec) for i in range(30)]
    section_bytes = len(stored(batches.consecutive(0, [LONG] * 10))) - batches.HEADER_BYTES
    buffer = stored(*parts)
    chunks = list(
        decode_in_chunks(buffer, partition=0, engine=engine, chunk_bytes=3 * section_bytes, start=5, stop=297)
    )
    assert [len(chunk) for chunk in chunks] == [25] + [30] * 8 + [27]
    assert pa.Table.from_batches(chunks).combine_chunks().to_batches() == [
        decode(buffer, partition=0, engine=engine, start=5, stop=297)
    ]


def test_no_chunk_is_empty() -> None:
    holed = Batch(0, (Record(0, 0, None, b"a"), Record(9, 0, None, b"b")), 9)
    assert list(decode_in_chunks(stored(holed), partition=0, start=3, stop=7)) == []


def test_records_that_arrow_cannot_point_to_at_once_come_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = stored(*(batches.consecutive(i, [LONG]) for i in range(10)))
    monkeypatch.setattr(scan, "MOST_BYTES", 3 * len(buffer) // 10)
    assert [len(chunk) for chunk in decode_in_chunks(buffer, partition=0)] == [3, 3, 3, 1]
    with pytest.raises(ValueError, match=r"here\.log holds more than 2 GiB of records.*decode_in_chunks"):
        decode(buffer, partition=0, origin=BufferOrigin("here.log"))


def test_wrong_arguments_are_refused_at_once_and_by_name() -> None:
    with pytest.raises(ValueError, match='\'cython\' is not an engine; use "auto", "numba" or "numpy"'):
        decode_in_chunks(b"", partition=0, engine="cython")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chunk_bytes=0 must be an integer"):
        decode_in_chunks(b"", partition=0, chunk_bytes=0)
    with pytest.raises(ValueError, match="'h' is not a unit of time; use one of ms, us, ns"):
        decode_in_chunks(b"", partition=0, unit="h")  # type: ignore[arg-type]


class TestChoosingTheEngine:
    @pytest.fixture(autouse=True)
    def _in_a_new_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "penstock.log.arrow.by_numba", raising=False)
        monkeypatch.setattr(engines._Progress, "decoded_bytes", 0)
        monkeypatch.setattr(engines._Progress, "numba_fails", False)

    def test_numba_is_started_once_enough_was_decoded_to_be_worth_it(self) -> None:
        half = engines.WORTH_STARTING_BYTES // 2
        assert engines.choose("auto", half) is by_numpy
        assert engines.choose("auto", 0) is by_numpy
        assert engines.choose("auto", half) is not by_numpy
        assert engines.choose("auto", 0) is not by_numpy, "numba has started and is used from then on"

    def test_a_large_buffer_starts_numba_at_once(self) -> None:
        assert engines.choose("auto", engines.WORTH_STARTING_BYTES) is not by_numpy

    def test_without_numba_numpy_does_it_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "numba", None)
        assert engines.choose("auto", engines.WORTH_STARTING_BYTES) is by_numpy

    def test_a_numba_that_does_not_work_is_logged_once_and_done_without(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken() -> None:
            raise ImportError("Numba needs NumPy 1.0 or less")

        monkeypatch.setattr(engines, "_numba", broken)
        with caplog.at_level(logging.WARNING):
            assert engines.choose("auto", engines.WORTH_STARTING_BYTES) is by_numpy
            assert engines.choose("auto", engines.WORTH_STARTING_BYTES) is by_numpy
        assert [record.getMessage() for record in caplog.records] == [
            "numba is installed but does not work here; records are decoded by numpy"
        ]


def in_new_process(program: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.strip()


@pytest.mark.parametrize("missing", ["numpy", "pyarrow"])
def test_a_missing_package_names_the_extra_to_install(missing: str) -> None:
    message = in_new_process(f"""
        import sys
        sys.modules[{missing!r}] = None
        try:
            import penstock.log.arrow
        except Exception as error:
            print(type(error).__name__, error)
    """)
    assert message.startswith("MissingExtraError penstock.log.arrow needs")
    assert message.endswith("pip install 'penstock[arrow]'")


def test_asking_for_numba_where_it_is_missing_names_the_extra_to_install() -> None:
    message = in_new_process("""
        import sys
        sys.modules["numba"] = None
        from penstock.log.arrow import decode
        try:
            decode(b"", partition=0, engine="numba")
        except Exception as error:
            print(type(error).__name__, error)
        print(decode(b"", partition=0).num_rows)
    """)
    assert "MissingExtraError" in message
    assert message.endswith("pip install 'penstock[numba]'\n0")


def test_numba_works_where_its_machine_code_cannot_be_kept(tmp_path: Path) -> None:
    not_a_folder = tmp_path / "file"
    not_a_folder.touch()
    program = """
        import sys
        from penstock.log.arrow import decode
        from tests.log import batches
        buffer = batches.encode(batches.consecutive(0, [b"a", b"b"]))
        print(decode(buffer, partition=0, engine="numba").column("value").to_pylist())
    """
    assert in_new_process(program, NUMBA_CACHE_DIR=str(not_a_folder / "below")) == "[b'a', b'b']"
    nowhere = "import numba.core.caching as caching; caching.CacheImpl._locator_classes = []"
    assert in_new_process(nowhere + textwrap.dedent(program)) == "[b'a', b'b']"
