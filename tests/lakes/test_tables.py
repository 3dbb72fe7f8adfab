"""Lake tables of both formats: one suite for what a commit promises."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import ConfigError, MissingExtraError, SchemaMismatchError
from penstock.lakes import Compaction, Delete, LakeTable
from penstock.lakes.commits import Move, metadata_of
from penstock.lakes.writing import OpenTable, latest_rows
from tests.lakes.readers import FORMATS, data_files_on_disk, files_of, iceberg, rows_of, uri_of

pytestmark = pytest.mark.parametrize("form", FORMATS)


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64()), "name": [f"name {each}" for each in numbers]})


def append(table: OpenTable, rows: pa.Table, after: int | None, version: int, application: str = "app") -> bool:
    table.evolve(rows.schema)
    span = {("orders", 0): (after or 0, version)}
    return table.commit(lambda: rows, [Move(application, after, version)], metadata_of("g", span))


def ids_in(table: LakeTable) -> list[int]:
    return sorted(row["id"] for row in rows_of(table))


def test_a_position_and_its_rows_are_committed_together_once(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path))
    opened = table.open()
    assert opened.last_version("app") is None
    assert append(opened, ids(1, 2), None, 2)
    assert opened.last_version("app") == 2
    assert append(table.open(), ids(1, 2), None, 2), "an attempt whose answer was lost is repeated"
    assert not append(table.open(), ids(1), None, 1), "the table is elsewhere"
    assert not append(opened, ids(9), 1, 9)
    assert append(opened, ids(3), 2, 3)
    assert append(opened, ids(4), None, 1, application="another")
    assert ids_in(table) == [1, 2, 3, 4]
    assert opened.positions(["app", "another", "nobody"]) == {"app": 3, "another": 1, "nobody": None}


def test_positions_survive_what_tables_do_with_their_own_history(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path))
    opened = table.open()
    for step in range(3):
        append(opened, ids(step), step or None, step + 1)
    if form == "delta":
        import deltalake

        deltalake.DeltaTable(table.uri.partition(":")[2]).create_checkpoint()
        for log in sorted((tmp_path / "orders" / "_delta_log").glob("*.json"))[:-1]:
            log.unlink()
    else:
        table.compact(Compaction(small_files=2, retain_s=0))
    assert table.open().last_version("app") == 3
    assert not append(table.open(), ids(0), None, 1)
    assert append(table.open(), ids(3), 3, 4)
    assert ids_in(table) == [0, 1, 2, 3]


def test_columns_of_any_name_can_be_the_key(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path), key=["Größe", "Order-Id", "select"])
    opened = table.open()
    rows = pa.table({"Größe": [1, 2], "Order-Id": ["a", 'b"`'], "select": [True, False], "Value": [1, 2]})
    assert append(opened, rows, None, 1)
    assert append(opened, rows.slice(1).set_column(3, "Value", pa.array([20])), 1, 2)
    gone = rows.slice(0, 1).select(list(table.key))
    assert opened.commit(lambda: rows.slice(0, 0), [Move("app", 2, 3)], {}, deleted=gone)
    assert rows_of(table) == [{"Größe": 2, "Order-Id": 'b"`', "select": False, "Value": 20}]


def test_of_writers_that_race_with_the_same_rows_one_commits(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path))
    append(table.open(), ids(0), None, 1)
    for step in range(1, 6):
        gate = threading.Barrier(3)
        outcomes: list[bool] = []

        def race(step: int = step, gate: threading.Barrier = gate, outcomes: list[bool] = outcomes) -> None:
            opened = table.open()
            opened.exists()
            gate.wait(30)
            outcomes.append(append(opened, ids(step), step, step + 1))

        _together([race] * 3)
        assert outcomes == [True] * 3, "the losers see that their rows are there"
    assert ids_in(table) == list(range(6))


def test_a_writer_that_loaded_before_a_commit_of_its_position_is_refused(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path))
    append(table.open(), ids(0), None, 1)
    late, quick = table.open(), table.open()
    late.exists()
    real = late._format.load
    late._format.load = lambda: True  # type: ignore[method-assign]  # a suspended process: it has looked, and not written

    assert append(quick, ids(1), 1, 2)
    rows = ids(1, 2)
    loads: list[int] = []

    def load() -> bool:
        loads.append(1)
        return True if len(loads) == 1 else real()

    late._format.load = load  # type: ignore[method-assign]
    assert not late.commit(lambda: rows, [Move("app", 1, 3)], {})
    assert len(loads) > 1, "the first attempt was refused by the table itself"
    assert ids_in(table) == [0, 1]


def test_writers_of_different_positions_all_commit(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path))
    append(table.open(), ids(0), None, 1, "nobody")

    def write(number: int) -> None:
        opened = table.open()
        for step in range(5):
            assert append(opened, ids(100 * number + step), step or None, step + 1, f"app {number}")

    _together([lambda number=number: write(number) for number in range(1, 4)])
    wanted = [0, *(100 * number + step for number in range(1, 4) for step in range(5))]
    assert ids_in(table) == wanted


def test_rows_with_a_key_replace_rows_and_deletes_remove_them(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path), key=["id", "name"])
    opened = table.open()
    rows = pa.table({"id": [1, 1, 2, 3], "name": ["a", "b", "a", "a"], "cents": [1, 2, 3, 4]})
    assert append(opened, rows, None, 1)
    changed = pa.table({"id": [1, 4], "name": ["b", "x"], "cents": [20, 40]})
    gone = pa.table({"id": [2, 99], "name": ["a", "never there"]})
    assert opened.commit(lambda: changed, [Move("app", 1, 2)], {}, deleted=gone)
    assert Counter((row["id"], row["name"], row["cents"]) for row in rows_of(table)) == Counter(
        [(1, "a", 1), (1, "b", 20), (3, "a", 4), (4, "x", 40)]
    )
    assert opened.commit(lambda: changed.slice(0, 0), [Move("app", 2, 3)], {}, deleted=gone.slice(0, 1))
    assert opened.last_version("app") == 3


def test_many_rows_are_upserted_at_once(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path), key="id")
    opened = table.open()
    assert append(opened, ids(*range(5_000)), None, 1)
    assert append(opened, ids(*range(2_500, 7_500)), 1, 2)
    assert ids_in(table) == list(range(7_500))


def test_of_the_rows_of_one_key_the_last_one_counts(form: str, tmp_path: Path) -> None:
    uri_of(form, tmp_path)
    rows = pa.table({"id": [1, 2, 1, 3, 3], "name": list("abcde"), "gone": [False, True, None, False, True]})
    left, deleted = latest_rows(rows, ["id"], "gone", "table")
    assert left.to_pylist() == [{"id": 1, "name": "c"}]
    assert deleted is not None
    assert deleted.to_pylist() == [{"id": 2}, {"id": 3}]
    with pytest.raises(SchemaMismatchError, match="a row has no 'id'"):
        latest_rows(pa.table({"id": [None, 1]}), ["id"], None, "table")


def test_columns_are_added_and_never_narrowed(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path))
    opened = table.open()
    append(opened, ids(1), None, 1)
    more = pa.table({"cents": pa.array([5], pa.int64()), "id": pa.array([2], pa.int32())})
    assert append(opened, more, 1, 2)
    assert {row["id"]: (row["name"], row["cents"]) for row in rows_of(table)} == {1: ("name 1", None), 2: (None, 5)}
    with pytest.raises(SchemaMismatchError, match="column 'id' is int64, and the rows have double"):
        opened.evolve(pa.schema([("id", pa.float64())]))
    fixed = LakeTable(table.uri, evolve=False).open()
    with pytest.raises(SchemaMismatchError, match="no column 'weight', and evolve is off"):
        fixed.evolve(pa.schema([("weight", pa.float64())]))
    schema = opened.schema()
    assert schema is not None
    assert schema.names == ["id", "name", "cents"]


def test_writers_that_add_columns_at_once_all_commit(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path))

    def write(number: int) -> None:
        rows = ids(number).append_column(f"of_{number % 2}", pa.array([number]))
        assert append(table.open(), rows, None, 1, f"app {number}")

    _together([lambda number=number: write(number) for number in range(4)])
    found = {row["id"]: (row["of_0"], row["of_1"]) for row in rows_of(table)}
    assert found == {0: (0, None), 1: (None, 1), 2: (2, None), 3: (None, 3)}


def test_offsets_lead_to_versions_and_back(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path), key="id")
    opened = table.open()
    append(opened, ids(1), None, 10)
    first = opened.version()
    opened.evolve(pa.schema([("cents", pa.int64())]))
    assert opened.commit(
        lambda: ids(2), [Move("app", 10, 20)], metadata_of("g", {("orders", 0): (10, 20), ("orders", 1): (0, 5)})
    )
    second = opened.version()
    assert opened.commit(lambda: ids(3), [Move("other", None, 9)], metadata_of("h", {("orders", 0): (0, 9)}))
    third = opened.version()
    assert first is not None
    assert second is not None
    assert third is not None
    assert table.offsets_of(first) == {("orders", 0): 10}
    assert table.offsets_of(second) == {("orders", 0): 20, ("orders", 1): 5}
    assert table.offsets_of(third, group="g") == table.offsets_of(second)
    assert table.offsets_of(third, group="h") == {("orders", 0): 9}
    assert table.version_of("orders", 0, 9, group="g") == first
    assert table.version_of("orders", 0, 10) == second
    assert table.version_of("orders", 0, 8) == third, "without a group, the newest"
    assert table.version_of("orders", 0, 20) is None
    with pytest.raises(ConfigError, match="has no version 12345"):
        table.offsets_of(12345)


def test_compaction_beside_writers_loses_and_repeats_nothing(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path))
    commits = 40
    append(table.open(), ids(0), None, 1)
    ended = threading.Event()
    merged: list[int] = []

    def compact() -> None:
        while not ended.is_set():
            merged.append(table.compact(Compaction(small_files=5)))

    def write() -> None:
        try:
            opened = table.open()
            for step in range(1, commits):
                assert append(opened, ids(step), step, step + 1)
        finally:
            ended.set()

    _together([compact, write])
    merged.append(table.compact(Compaction(small_files=2)))
    assert sum(merged) >= commits
    assert ids_in(table) == list(range(commits))
    assert len(files_of(table.uri)) == 1
    assert table.version_of("orders", 0, 17) is not None, "compaction keeps the history"


def test_files_of_old_versions_are_deleted_after_their_time(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path))
    opened = table.open()
    for step in range(6):
        append(opened, ids(step), step or None, step + 1)
    table.compact(Compaction(small_files=2))
    assert len(data_files_on_disk(table.uri)) == 7, "readers of older versions need the small ones"
    table.compact(Compaction(small_files=2, retain_s=0))
    assert len(data_files_on_disk(table.uri)) == 1
    assert ids_in(table) == list(range(6))
    assert opened.last_version("app") == 6, "positions do not expire"
    assert append(opened, ids(6), 6, 7)
    assert ids_in(table) == list(range(7))


def test_a_small_table_is_not_compacted(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path))
    assert table.compact() == 0, "there is no table yet"
    opened = table.open()
    for step in range(3):
        append(opened, ids(step), step or None, step + 1)
    assert table.compact(Compaction(small_files=4)) == 0
    assert len(files_of(table.uri)) == 3


def test_partitioned_tables_are_written_and_compacted(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path), partition_by="name")
    opened = table.open()
    rows = pa.table({"id": pa.array(range(4), pa.int64()), "name": ["a", "b", "a", "b"]})
    for step in range(4):
        assert append(opened, rows, step or None, step + 1)
    assert len(files_of(table.uri)) == 8
    table.compact(Compaction(small_files=2))
    assert len(files_of(table.uri)) == 2
    assert ids_in(table) == sorted([*range(4)] * 4)


def test_a_commit_without_rows_moves_the_position(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path))
    opened = table.open()
    append(opened, ids(1), None, 1)
    files = files_of(table.uri)
    assert append(opened, ids(), 1, 500)
    assert opened.last_version("app") == 500
    assert files_of(table.uri) == files
    assert table.version_of("orders", 0, 400) == opened.version()


def test_other_writers_of_the_table_are_left_alone(form: str, tmp_path: Path) -> None:
    table = LakeTable(uri_of(form, tmp_path))
    opened = table.open()
    append(opened, ids(1), None, 1)
    if form == "delta":
        import deltalake

        deltalake.write_deltalake(table.uri.partition(":")[2], ids(2), mode="append")
    else:
        iceberg(table.uri).append(ids(2))
        assert "commit.retry.num-retries" not in iceberg(table.uri).properties
    assert append(opened, ids(3), 1, 2)
    assert ids_in(table) == [1, 2, 3]
    versions = [commit.version for commit in opened.commits()]
    assert opened.offsets_of(versions[1]) == {("orders", 0): 1}


def test_a_missing_library_is_named_with_its_extra(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = LakeTable(uri_of(form, tmp_path))
    monkeypatch.setitem(sys.modules, "deltalake" if form == "delta" else "pyiceberg", None)
    monkeypatch.delitem(sys.modules, f"penstock.lakes.{form}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"pip install 'penstock\[{form}\]'"):
        table.open()


def test_what_a_table_cannot_be_is_refused(form: str, tmp_path: Path) -> None:
    uri = uri_of(form, tmp_path)
    for wrong in ("parquet:./x", "delta:", form, ""):
        with pytest.raises(ConfigError, match="is not the URI of a lake table"):
            LakeTable(wrong)
    with pytest.raises(ConfigError, match="needs a key"):
        LakeTable(uri, deletes="gone")
    with pytest.raises(ConfigError, match="must be the name of a column"):
        LakeTable(uri, key=[1])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"must be a pyarrow\.Schema"):
        LakeTable(uri, schema="id long")
    with pytest.raises(ConfigError, match="small_files=1 must be a number >= 2"):
        Compaction(small_files=1)
    with pytest.raises(ConfigError, match="give the key as a dict"):
        Delete(7)  # type: ignore[arg-type]
    with pytest.raises(SchemaMismatchError, match="key names 'number'"):
        LakeTable(uri, key="number").open().evolve(ids().schema)
    with pytest.raises(ConfigError, match="64 bits"):
        Move("app", None, 2**63)
    if form == "delta":
        with pytest.raises(ConfigError, match="a Delta table has no catalog"):
            LakeTable(uri, catalog="prod")
        with pytest.raises(SchemaMismatchError, match="Invalid data type for Delta Lake"):
            LakeTable(uri).open().evolve(pa.schema([("at", pa.duration("s"))]))
        return
    with pytest.raises(ConfigError, match="either a folder"):
        LakeTable("iceberg:shop.orders")
    with pytest.raises(ConfigError, match="either a folder"):
        LakeTable(uri, catalog={"type": "sql"})
    with pytest.raises(ConfigError, match=r"use NAMESPACE\.TABLE"):
        LakeTable(f"iceberg:{tmp_path}#orders")
    with pytest.raises(ConfigError, match="storage_options are for Delta"):
        LakeTable(uri, storage_options={"a": "b"})
    with pytest.raises(ConfigError, match="the catalog cannot be opened"):
        LakeTable("iceberg:shop.orders", catalog={"type": "unheard of"}).open().exists()


def _together(work: Sequence[object]) -> None:
    """Run these functions at the same time, and raise what one of them raises."""
    errors: list[BaseException] = []

    def run(each: object) -> None:
        try:
            assert callable(each)
            each()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
