"""A topic as a table: the latest value of each key, kept between batches and brought up to date."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Connection
from penstock.spark.source import table_cache, task_reading
from penstock.spark.source.format import PenstockTableReader
from penstock.spark.source.read_options import parse_options
from penstock.spark.source.table_cache import CachedTable, TableCache, latest_of_each_key
from penstock.tables.changes import TRUNCATE_KEY
from tests.spark.source.reading import delete_before, rows_of

PAIRS = st.lists(st.tuples(st.sampled_from([None, b"", b"a", b"b", b"c"]), st.none() | st.binary(max_size=2)))


class Counted:
    """Counts the pointers that were asked for."""

    def __init__(self) -> None:
        self.pointers = 0
        self._read_range = task_reading.read_range

    def __call__(self, origin: Any, wanted: Any, columns: Any, **more: Any) -> Any:
        self.pointers += wanted.end - wanted.start
        return self._read_range(origin, wanted, columns, **more)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(table_cache, "read_range", counted)
    return counted


def reader_of(url: str, topic: str) -> PenstockTableReader:
    return PenstockTableReader(parse_options({"url": url, "topic": topic, "mode": "table"}, streaming=False))


def table_of(reader: PenstockTableReader, inputs: list[Any]) -> dict[bytes, bytes]:
    rows = rows_of([batch for each in inputs for batch in reader.read(pickle.loads(pickle.dumps(each)))])
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows), "a key is there once"
    return found


@given(PAIRS, st.booleans())
def test_the_latest_of_each_key_is_what_a_dict_would_keep(
    pairs: list[tuple[bytes | None, bytes | None]], tombstones: bool
) -> None:
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    rows = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    latest = latest_of_each_key(rows, tombstones=tombstones)
    expected = {key: value for key, value in pairs if key is not None}
    if not tombstones:
        expected = {key: value for key, value in expected.items() if value is not None}
    assert dict(zip(latest["key"].to_pylist(), latest["value"].to_pylist(), strict=True)) == expected
    assert len(latest) == len(expected)


@pytest.mark.parametrize("is_flat", [True, False])
@pytest.mark.parametrize("tombstones", [True, False])
def test_a_truncate_deletes_the_rows_before_it(is_flat: bool, tombstones: bool) -> None:
    envelope = b'{"before":null,"after":null,"source":{},"op":"t","ts_ms":1}'
    truncate = (TRUNCATE_KEY, b'{"__op":"t","__lsn":7,"__ts_ms":1}') if is_flat else (None, envelope)
    pairs = [(b"a", b"1"), (b"b", b"2"), (None, b"no change"), truncate, (b"b", b"3"), (None, None)]
    rows = pa.table(
        {"key": pa.array([key for key, _ in pairs], pa.binary()), "value": pa.array([v for _, v in pairs], pa.binary())}
    )
    assert latest_of_each_key(rows, tombstones=tombstones).to_pylist() == [{"key": b"b", "value": b"3"}]


def test_a_table_forgets_the_rows_of_a_truncated_partition(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 2, {"cleanup.policy": "compact"})
    for number in range(4):
        connection.send(topic, "old", b"k%d" % number, partition=number % 2)
    connection.flush()
    reader = reader_of(log_url, topic)
    inputs = reader.partitions()
    assert len(table_of(reader, inputs)) == 4
    connection.send(topic, b'{"before":null,"after":null,"op":"t"}', TRUNCATE_KEY, partition=0)
    connection.send(topic, "new", b"k2", partition=0)
    connection.flush()
    assert table_of(reader, inputs) == {b"k1": b"old", b"k2": b"new", b"k3": b"old"}


def test_a_table_is_as_fresh_as_its_read_and_reads_only_what_is_new(
    connection: Connection, log_url: str, topic: str, counted: Counted
) -> None:
    connection.create_topic(topic, 3, {"cleanup.policy": "compact"})
    expected = {}
    for number in range(200):
        key = b"k%d" % (number % 20)
        expected[key] = b"%d" % number
        connection.send(topic, expected[key], key)
    connection.flush()
    reader = reader_of(log_url, topic)
    inputs = reader.partitions()
    assert len(inputs) == 3
    assert table_of(reader, inputs) == expected
    assert counted.pointers == 200
    assert table_of(reader, inputs) == expected
    assert counted.pointers == 200, "nothing new, nothing read"
    connection.send(topic, "new", b"k3")
    connection.send(topic, None, b"k4")
    connection.send(topic, "more", b"other")
    connection.flush()
    del expected[b"k4"]
    assert table_of(reader, inputs) == {**expected, b"k3": b"new", b"other": b"more"}
    assert counted.pointers == 203
    connection.send(topic, "back", b"k4").result(10)
    assert table_of(reader, inputs)[b"k4"] == b"back"


def test_records_without_a_key_are_in_no_table(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 1)
    connection.send(topic, "x")
    connection.send(topic, "y", b"k")
    connection.flush()
    reader = reader_of(log_url, topic)
    assert table_of(reader, reader.partitions()) == {b"k": b"y"}


def test_a_table_goes_on_when_what_it_would_read_next_is_gone(
    connection: Connection, log_url: str, topic: str, counted: Counted
) -> None:
    connection.create_topic(topic, 1)
    connection.send(topic, "1", b"a").result(10)
    reader = reader_of(log_url, topic)
    inputs = reader.partitions()
    assert table_of(reader, inputs) == {b"a": b"1"}
    for number in range(5):
        connection.send(topic, str(number), b"k%d" % number).result(10)
    delete_before(connection, topic, {0: 4})
    expected = {b"k3": b"3", b"k4": b"4"}
    assert table_of(reader, inputs) == expected, "what is kept of expired records is gone, too"
    delete_before(connection, topic, {0: 5})
    del expected[b"k3"]
    assert table_of(reader, inputs) == expected


def test_a_topic_made_again_has_a_table_of_its_own(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 1)
    for number in range(10):
        connection.send(topic, "old", b"%d" % number)
    connection.flush()
    reader = reader_of(log_url, topic)
    inputs = reader.partitions()
    assert len(table_of(reader, inputs)) == 10
    connection.delete_topic(topic)
    connection.create_topic(topic, 1)
    connection.send(topic, "new", b"a").result(10)
    assert table_of(reader, inputs) == {b"a": b"new"}, "its end has gone back"
    assert table_of(reader, reader.partitions()) == {b"a": b"new"}


def test_what_is_kept_is_bounded_and_the_oldest_goes_first() -> None:
    rows = pa.table({"key": pa.array([b"x" * 1000])})
    kept = TableCache(most_bytes=5 * rows.nbytes)
    for number in range(8):
        kept.put(number, CachedTable(rows, start=0, next=1, decoded=rows))
    assert [number for number in range(8) if kept.get(number) is not None] == [3, 4, 5, 6, 7]
    kept.put("large", CachedTable(pa.table({"key": pa.array([b"x" * 10_000])}), start=0, next=1))
    assert kept.get("large") is None
    assert len(kept) == 0


def test_a_table_too_large_to_be_kept_is_read_again(
    connection: Connection, log_url: str, topic: str, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_cache, "_cached", TableCache(most_bytes=10))
    connection.create_topic(topic, 1)
    for number in range(10):
        connection.send(topic, "v", b"%d" % number)
    connection.flush()
    reader = reader_of(log_url, topic)
    inputs = reader.partitions()
    assert len(table_of(reader, inputs)) == len(table_of(reader, inputs)) == 10
    assert counted.pointers == 20


def test_what_is_read_in_one_go_is_folded_on_the_way(
    connection: Connection, log_url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_cache, "_FOLDED_ROWS", 10)
    connection.create_topic(topic, 1)
    for number in range(100):
        connection.send(topic, None if number % 7 == 0 else str(number), b"%d" % (number % 13))
        if number % 9 == 0:
            connection.flush()
    connection.flush()
    latest = {b"%d" % (number % 13): None if number % 7 == 0 else b"%d" % number for number in range(100)}
    reader = reader_of(log_url, topic)
    expected = {key: value for key, value in latest.items() if value is not None}
    assert table_of(reader, reader.partitions()) == expected
