"""`LakeSink`: the records of a topic become rows, each once, and what cannot is put aside."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest

import penstock
from penstock import Connection, Record, Topic
from penstock.abc import Stream
from penstock.errors import (
    ConfigError,
    GroupError,
    HandlerError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    StoreUnavailableError,
)
from penstock.lakes import Compaction, Delete, LakeSink, LakeTable
from penstock.lakes.commits import Move, metadata_of
from penstock.lakes.writing import OpenTable
from tests.lakes.readers import FORMATS, files_of, rows_of, uri_of

Send = Callable[..., None]


class Order(msgspec.Struct):
    id: int
    cents: int


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Connection]:
    with penstock.connect(f"memory:{tmp_path.name}") as connection:
        connection.admin().provide("orders", 3, {})
        yield connection


@pytest.fixture(params=FORMATS)
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return uri_of(request.param, tmp_path)


def send(stream: Connection, *values: object, key: str | None = None, partition: int | None = None) -> None:
    receipts = [
        stream.send(
            "orders",
            value if value is None or isinstance(value, bytes) else json.dumps(value).encode(),
            key=None if key is None else key.encode(),
            partition=partition,
        )
        for value in values
    ]
    for receipt in receipts:
        receipt.result(timeout=10)


def dead_rows_of(uri: str) -> list[dict[str, Any]]:
    return rows_of(f"{uri}_dead")


def test_each_record_is_a_row_once_over_several_runs(stream: Connection, uri: str) -> None:
    for run in range(3):
        send(stream, *({"id": 100 * run + each, "name": f"n{each}"} for each in range(100)))
        sink = LakeSink(stream, "orders", uri, group="lake", flush_rows=30)
        sink.run(end="latest")
        assert sink.progress.rows == 100
    assert sorted(row["id"] for row in rows_of(uri)) == list(range(300))
    LakeSink(stream, "orders", uri, group="lake").run(end="latest")
    assert len(rows_of(uri)) == 300
    LakeSink(stream, "orders", uri, group="another").run(end="latest")
    assert Counter(Counter(row["id"] for row in rows_of(uri)).values()) == {2: 300}


def test_records_without_a_value_delete_rows(stream: Connection, uri: str) -> None:
    table = LakeTable(uri, key="id")
    send(stream, *({"id": each, "cents": each} for each in range(6)), partition=0)
    LakeSink(stream, "orders", table, group="lake").run(end="latest")
    send(stream, {"id": 1, "cents": 10}, {"id": 9, "cents": 9}, {"id": 1, "cents": 11}, partition=0)
    send(stream, None, key="2", partition=0)
    send(stream, None, key="9", partition=0)
    send(stream, None, key='{"id": 3}', partition=0)
    send(stream, {"id": 3, "cents": 33}, partition=0)
    send(stream, None, key="no number", partition=0)
    send(stream, None, partition=0)
    sink = LakeSink(stream, "orders", table, group="lake")
    sink.run(end="latest")
    assert {row["id"]: row["cents"] for row in rows_of(uri)} == {0: 0, 1: 11, 3: 33, 4: 4, 5: 5}
    errors = sorted(row["error"] for row in dead_rows_of(uri))
    assert len(errors) == 2
    assert errors[0].startswith("a delete with key {'id': 'no number'}: invalid literal for int")
    assert errors[1].startswith("the record has neither value nor key")
    assert sink.progress.dead_rows == 2


def test_a_record_without_a_value_is_no_row_of_a_table_without_a_key(stream: Connection, uri: str) -> None:
    send(stream, {"id": 1}, partition=0)
    send(stream, None, key="1", partition=0)
    LakeSink(stream, "orders", uri, group="lake").run(end="latest")
    assert [row["id"] for row in rows_of(uri)] == [1]
    assert [row["offset"] for row in dead_rows_of(uri)] == [1]
    seen: list[bytes | None] = []

    def rows(value: bytes | None) -> None:
        seen.append(value)

    LakeSink(stream, "orders", uri, group="another", rows=rows).run(end="latest")
    assert seen == [b'{"id": 1}', None]


def test_rows_that_do_not_fit_go_to_the_table_beside(stream: Connection, uri: str) -> None:
    send(stream, {"id": 1, "cents": 5}, partition=0)
    LakeSink(stream, "orders", uri, group="lake").run(end="latest")
    send(stream, {"id": "two"}, b"not json", {"id": 3, "cents": 1.5}, {"id": 4, "new": "x"}, partition=1)
    sink = LakeSink(stream, "orders", uri, group="lake")
    sink.run(end="latest")
    assert sorted((row["id"], row["new"]) for row in rows_of(uri)) == [(1, None), (4, "x")]
    dead = sorted(dead_rows_of(uri), key=lambda row: row["offset"])
    assert [(row["topic"], row["partition"], row["offset"], row["group"]) for row in dead] == [
        ("orders", 1, offset, "lake") for offset in range(3)
    ]
    assert dead[0]["error"] == "column 'id' is int64: str 'two' does not fit"
    assert dead[1]["error"].startswith("the value is not JSON")
    assert dead[1]["value"] == b"not json"
    assert dead[2]["error"] == "column 'cents' is int64: float 1.5 does not fit"
    assert sink.progress.dead_rows == 3


def test_a_function_makes_rows(stream: Connection, uri: str) -> None:
    def rows(order: Order, record: Record) -> list[dict[str, Any]] | Delete | None:
        if order.cents == 0:
            return None
        if order.cents < 0:
            return Delete({"id": order.id, "part": 0})
        assert order.cents != 13, "unlucky"
        return [{"id": order.id, "part": part, "offset": record.offset} for part in range(2)]

    orders = Topic("orders", Order)
    table = LakeTable(uri, key=("id", "part"))
    for each in (Order(1, 5), Order(2, 0), Order(3, 13), Order(4, 7), Order(1, -1)):
        stream.send(orders, each, partition=0).result(timeout=10)
    LakeSink(stream, orders, table, group="lake", rows=rows).run(end="latest")
    assert sorted((row["id"], row["part"], row["offset"]) for row in rows_of(uri)) == [(1, 1, 0), (4, 0, 3), (4, 1, 3)]
    (dead,) = dead_rows_of(uri)
    assert dead["offset"] == 2
    assert "AssertionError: unlucky" in dead["error"]
    assert "penstock/lakes" not in dead["error"], "the traceback is that of the function"


def test_without_dead_rows_a_row_that_does_not_fit_stops_the_run(stream: Connection, uri: str) -> None:
    send(stream, {"id": 1}, partition=0)
    LakeSink(stream, "orders", uri, group="lake", dead_rows=False).run(end="latest")
    send(stream, {"id": 2}, {"id": "three"}, partition=0)
    with pytest.raises(SchemaMismatchError, match=r"orders-0 at offset 2: column 'id' is int64"):
        LakeSink(stream, "orders", uri, group="lake", dead_rows=False).run(end="latest")
    assert [row["id"] for row in rows_of(uri)] == [1]
    assert dead_rows_of(uri) == []
    LakeSink(stream, "orders", uri, group="lake").run(end="latest")
    assert sorted(row["id"] for row in rows_of(uri)) == [1, 2]
    assert len(dead_rows_of(uri)) == 1


def test_too_many_dead_rows_stop_the_run(stream: Connection, uri: str) -> None:
    send(stream, *[b"no json"] * 11)
    with pytest.raises(SchemaMismatchError, match=r"11 rows do not fit into .*, and max_dead_rows is 10"):
        LakeSink(stream, "orders", uri, group="lake", max_dead_rows=10).run(end="latest")
    assert dead_rows_of(uri) == []
    LakeSink(stream, "orders", uri, group="lake", max_dead_rows=11).run(end="latest")
    assert len(dead_rows_of(uri)) == 11


def test_dead_rows_are_there_once_if_the_commit_after_them_fails(
    stream: Connection, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(stream, {"id": 1}, b"no json", {"id": 2}, b"none either", partition=0)
    real = OpenTable.commit

    def commit(self: OpenTable, *given: Any, **named: Any) -> bool:
        if self.table.uri == uri:
            raise KeyboardInterrupt
        return real(self, *given, **named)

    monkeypatch.setattr(OpenTable, "commit", commit)
    with pytest.raises(KeyboardInterrupt):
        LakeSink(stream, "orders", uri, group="lake").run(end="latest")
    assert len(dead_rows_of(uri)) == 2
    monkeypatch.undo()
    send(stream, b"the third", partition=0)
    LakeSink(stream, "orders", uri, group="lake", flush_rows=2).run(end="latest")
    assert sorted(row["offset"] for row in dead_rows_of(uri)) == [1, 3, 4]
    assert sorted(row["id"] for row in rows_of(uri)) == [1, 2]


def test_a_sink_that_another_one_has_overtaken_continues_at_the_table(
    stream: Connection, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two members that both believe to own a partition: neither the group nor time decides, but the table."""
    send(stream, *({"id": each} for each in range(10)), partition=0)
    real = OpenTable.commit
    overtaken: list[int] = []

    def commit(self: OpenTable, rows: Any, moves: Any, metadata: Any, **named: Any) -> bool:
        if not overtaken:
            overtaken.append(1)
            rows_of_other = pa.table({"id": pa.array(range(4), pa.int64())})
            move = Move(moves[0].application, None, 4)
            assert real(self.table.open(), lambda: rows_of_other, [move], metadata_of("lake", {}))
        return real(self, rows, moves, metadata, **named)

    monkeypatch.setattr(OpenTable, "commit", commit)
    LakeSink(stream, "orders", uri, group="lake").run(end="latest")
    assert sorted(row["id"] for row in rows_of(uri)) == list(range(10))


def test_a_sink_outlasts_a_table_that_is_away(stream: Connection, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    send(stream, *({"id": each} for each in range(20)), partition=0)
    LakeSink(stream, "orders", uri, group="lake").run(end="latest")
    real, failures = OpenTable.commit, [4]

    def commit(self: OpenTable, *given: Any, **named: Any) -> bool:
        failures[0] -= 1
        if failures[0] in (2, 3):
            raise StoreUnavailableError("the table is away")
        outcome = real(self, *given, **named)
        if failures[0] == 1:
            raise StoreUnavailableError("the answer was lost, and the commit was not")
        return outcome

    monkeypatch.setattr(OpenTable, "commit", commit)
    send(stream, *({"id": each} for each in range(20, 60)), partition=0)
    sink = LakeSink(stream, "orders", uri, group="lake", flush_rows=5)
    sink.start()
    _wait_until(lambda: len(rows_of(uri)) == 60)
    sink.stop()
    assert sink.wait(30)
    assert failures[0] < 0
    assert sorted(row["id"] for row in rows_of(uri)) == list(range(60))


def test_members_of_a_group_share_the_partitions(stream: Connection, uri: str) -> None:
    count = 600
    sinks = [LakeSink(stream, "orders", uri, group="lake", flush_s=0.05, session_timeout_s=2) for _ in range(3)]
    for sink in sinks:
        sink.start()
    for first in range(0, count, 50):
        send(stream, *({"id": each} for each in range(first, first + 50)))
    _wait_until(lambda: sum(sink.progress.rows for sink in sinks) >= count)
    for sink in sinks:
        sink.stop()
        assert sink.wait(30)
    assert sorted(row["id"] for row in rows_of(uri)) == list(range(count))


def test_a_stopped_sink_has_committed_what_it_has_read(stream: Connection, uri: str) -> None:
    sink = LakeSink(stream, "orders", uri, group="lake", flush_s=3600)
    send(stream, *({"id": each} for each in range(10)))
    sink.start()
    _wait_until(lambda: sink.progress.read == 10)
    assert rows_of(uri) == []
    sink.stop()
    assert sink.wait(30)
    assert sorted(row["id"] for row in rows_of(uri)) == list(range(10))


def test_a_stream_without_groups_is_shared_by_leases(tmp_path: Path, uri: str) -> None:
    with penstock.connect(f"sqlite:{tmp_path}/topics.db") as stream:
        stream.admin().provide("orders", 2, {})
        send(stream, *({"id": each} for each in range(20)))
        store = f"sqlite:{tmp_path}/checkpoints.db"
        LakeSink(stream, "orders", uri, group="lake", checkpoints=store).run(end="latest")
        send(stream, *({"id": each} for each in range(20, 40)))
        LakeSink(stream, "orders", uri, group="lake", checkpoints=store).run(end="latest")
    assert sorted(row["id"] for row in rows_of(uri)) == list(range(40))


def test_small_files_are_merged_while_the_sink_writes(stream: Connection, uri: str) -> None:
    send(stream, *({"id": each} for each in range(60)), partition=0)
    sink = LakeSink(
        stream, "orders", uri, group="lake", flush_rows=2, compact_every=1, compaction=Compaction(small_files=4)
    )
    sink.run(end="latest")
    assert sink.progress.commits >= 30
    assert len(files_of(uri)) < 30
    assert sorted(row["id"] for row in rows_of(uri)) == list(range(60))


def test_the_commits_say_which_offsets_they_contain(stream: Connection, uri: str) -> None:
    table = LakeTable(uri)
    send(stream, *({"id": each} for each in range(5)), partition=1)
    LakeSink(stream, "orders", table, group="lake").run(end="latest")
    first = table.open().version()
    send(stream, *({"id": each} for each in range(5, 9)), partition=1)
    send(stream, {"id": 9}, partition=2)
    LakeSink(stream, "orders", table, group="lake").run(end="latest")
    second = table.open().version()
    assert first is not None
    assert second is not None
    assert table.offsets_of(first) == {("orders", 1): 5}
    assert table.offsets_of(second) == {("orders", 1): 9, ("orders", 2): 1}
    assert table.version_of("orders", 1, 4) == first
    assert table.version_of("orders", 1, 5) == second
    assert table.version_of("orders", 1, 9) is None


def test_a_table_with_a_declared_schema_is_created_with_it(stream: Connection, uri: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("price", pa.decimal128(10, 2))])
    send(stream, {"id": 1, "at": "2026-07-01T12:00:00Z", "price": "1.50"}, {"id": 2, "at": "noon"})
    LakeSink(stream, "orders", LakeTable(uri, schema=schema), group="lake").run(end="latest")
    (row,) = rows_of(uri)
    assert str(row["price"]) == "1.50"
    assert row["at"].hour == 12
    assert len(dead_rows_of(uri)) == 1


def test_a_column_can_say_what_is_deleted(stream: Connection, uri: str) -> None:
    table = LakeTable(uri, key="id", deletes="is_gone")
    send(stream, {"id": 1, "is_gone": False}, {"id": 2}, {"id": 3}, {"id": 2, "is_gone": True}, partition=0)
    LakeSink(stream, "orders", table, group="lake").run(end="latest")
    assert sorted(rows_of(uri), key=lambda row: row["id"]) == [{"id": 1}, {"id": 3}]


def test_records_that_retention_deleted_stop_the_run_or_are_skipped(uri: str, tmp_path: Path) -> None:
    with penstock.connect(f"log:{tmp_path}/data") as stream:
        stream.admin().provide("orders", 1, {})
        send(stream, *({"id": each} for each in range(5)))
        LakeSink(stream, "orders", uri, group="lake").run(end="latest")
        send(stream, *({"id": each} for each in range(5, 10)))
        stream.admin().delete_before("orders", {0: 8})
        with pytest.raises(OffsetOutOfRangeError):
            LakeSink(stream, "orders", uri, group="lake").run(end="latest")
        sink = LakeSink(stream, "orders", uri, group="lake", on_expired="earliest")
        sink.run(end="latest")
        assert sink.progress.skipped == 3
    assert sorted(row["id"] for row in rows_of(uri)) == [0, 1, 2, 3, 4, 8, 9]


def test_what_a_sink_cannot_do_is_refused(stream: Stream, uri: str) -> None:
    def sink(table: Any = uri, **options: Any) -> LakeSink:
        return LakeSink(stream, "orders", table, **{"group": "lake", **options})

    async def rows(value: bytes) -> dict[str, Any]:
        return {}

    with pytest.raises(GroupError, match="needs a group"):
        sink(group="")
    with pytest.raises(ConfigError, match="is not the URI of a lake table"):
        sink("./orders")
    with pytest.raises(ConfigError, match="must be a LakeTable or its URI"):
        sink(5)
    with pytest.raises(ConfigError, match="give the key to the LakeTable"):
        sink(LakeTable(uri), key="id")
    with pytest.raises(ConfigError, match="flush_rows=0 must be"):
        sink(flush_rows=0)
    with pytest.raises(ConfigError, match="flush_s=0 must be"):
        sink(flush_s=0)
    with pytest.raises(ConfigError, match="client_id: pass options"):
        sink(client_id="me")
    with pytest.raises(HandlerError, match="cannot be async"):
        sink(rows=rows)
    with pytest.raises(ConfigError, match="is not a position"):
        sink(start="now")
    for to in (uri, LakeTable(uri)):
        with pytest.raises(ConfigError, match=r"is a lake table: rows go there by penstock\.lakes\.LakeSink"):
            penstock.App(stream, group="g").handle("orders", to=cast(Any, to))


def _wait_until(holds: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    waiting = threading.Event()
    while not holds():
        assert time.monotonic() < deadline_s, "it took too long"
        waiting.wait(0.02)
