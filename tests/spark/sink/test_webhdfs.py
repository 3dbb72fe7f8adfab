"""Files on a real HDFS, reached over HTTP from hosts that have nothing of Hadoop."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector, FileSystem, FileType

from penstock.errors import ConfigError
from penstock.spark.sink.file_systems import move_new, opened
from penstock.spark.sink.staging import StagingFolder
from penstock.spark.sink.webhdfs import ADDRESSES, addresses_of, configured_addresses
from tests.spark.cluster.stores import HdfsStore

ROWS = pa.table({"number": list(range(100_000))})


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsStore]:
    with HdfsStore(tmp_path_factory.mktemp("hdfs"), "127.0.0.1") as store:
        yield store


@pytest.fixture
def folder(hdfs: HdfsStore, monkeypatch: pytest.MonkeyPatch) -> str:
    address = hdfs.conf()["spark.hadoop.dfs.namenode.http-address"]
    # The first name node of two does not answer, as if it had failed.
    monkeypatch.setenv(ADDRESSES, json.dumps({"": ["http://127.0.0.1:1", f"http://{address}"]}))
    return hdfs.fresh_folder()


def test_staged_rows_are_read_back_and_removed(folder: str) -> None:
    staging = StagingFolder(f"{folder}/staging")
    with staging.create(7, "part one.arrow") as file, pa.ipc.new_stream(file, ROWS.schema) as writer:
        writer.write_table(ROWS)
    assert pa.Table.from_batches(staging.batches(7, "part one.arrow")) == ROWS
    staging.clear(keep=7)
    assert sum(batch.num_rows for batch in staging.batches(7, "part one.arrow")) == len(ROWS)
    staging.sync(7, "part one.arrow")
    staging.remove(7)
    staging.remove(7)
    staging.clear()
    system, path = opened(folder)
    assert system.get_file_info(f"{path}/staging").type is FileType.NotFound


def test_files_of_all_sizes_and_names_keep_their_bytes(folder: str) -> None:
    system, path = opened(folder)
    for name, size_bytes in (("empty", 0), ("ä b#c%20?", 10), ("large", 3_000_001)):
        content = os.urandom(size_bytes)
        with system.open_output_stream(f"{path}/{name}") as file:
            file.write(content)
        with system.open_input_stream(f"{path}/{name}") as file:
            assert file.read() == content
        assert system.get_file_info(f"{path}/{name}").size == size_bytes
    found = system.get_file_info(FileSelector(path))
    assert sorted(info.base_name for info in found) == ["empty", "large", "ä b#c%20?"]


def test_a_file_can_be_read_from_any_place(folder: str) -> None:
    system, path = opened(folder)
    with system.open_output_stream(f"{path}/rows.arrow") as file, pa.ipc.new_file(file, ROWS.schema) as writer:
        writer.write_table(ROWS)
    assert pa.ipc.open_file(system.open_input_file(f"{path}/rows.arrow")).read_all() == ROWS


def test_of_two_renames_to_a_new_name_one_wins_and_others_replace(folder: str) -> None:
    system, path = opened(folder)
    for name in ("first", "second", "third"):
        _write(system, f"{path}/{name}", name)
    move_new(system, f"{path}/first", f"{path}/manifest")
    with pytest.raises(FileExistsError):
        move_new(system, f"{path}/second", f"{path}/manifest")
    assert _read(system, f"{path}/manifest") == "first"
    system.move(f"{path}/third", f"{path}/manifest")
    assert _read(system, f"{path}/manifest") == "third"


def test_what_is_missing_or_forbidden_is_said(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    system, path = opened(folder)
    assert system.get_file_info(f"{path}/nothing").type is FileType.NotFound
    assert system.get_file_info(FileSelector(path, allow_not_found=True)) == []
    for read in (system.open_input_stream, system.open_input_file, system.delete_file, system.delete_dir):
        with pytest.raises(FileNotFoundError):
            read(f"{path}/nothing")
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    strange, _ = opened(folder)
    with pytest.raises(PermissionError, match="stranger"):
        strange.create_dir("/of-nobody")


def test_a_name_node_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESSES, json.dumps({"": ["http://127.0.0.1:1"]}))
    system, path = opened("hdfs://127.0.0.1:2/x")
    with pytest.raises(OSError, match=r"http://127\.0\.0\.1:1 does not answer"):
        system.create_dir(path)


@pytest.mark.parametrize(
    ("url", "known", "addresses"),
    [
        ("hdfs://names:8020/a/b", {}, ["http://names:9870"]),
        ("hdfs://names:8020/a/b", {"": ["http://0.0.0.0:50070"]}, ["http://names:50070"]),
        ("hdfs://lake/a/b", {"lake": ["https://n1:9871", "https://n2:9871"]}, ["https://n1:9871", "https://n2:9871"]),
        ("webhdfs://names:9870/a/b", {"": ["http://other:1"]}, ["http://names:9870"]),
        ("swebhdfs://names:9871/a/b", {}, ["https://names:9871"]),
    ],
)
def test_the_address_of_hdfs(url: str, known: dict[str, list[str]], addresses: list[str]) -> None:
    assert addresses_of(url, {ADDRESSES: json.dumps(known)}) == (addresses, "/a/b")


def test_an_hdfs_without_a_host_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no host"):
        addresses_of("hdfs:///a/b", {})


@pytest.mark.parametrize(
    ("settings", "addresses"),
    [
        ({}, {}),
        ({"dfs.namenode.http-address": "names:9870"}, {"": ["http://names:9870"]}),
        (
            {"dfs.http.policy": "HTTPS_ONLY", "dfs.namenode.https-address": "names:9871"},
            {"": ["https://names:9871"]},
        ),
        (
            {
                "dfs.nameservices": "lake, pond",
                "dfs.ha.namenodes.lake": "n1,n2",
                "dfs.namenode.http-address.lake.n1": "one:9870",
                "dfs.namenode.http-address.lake.n2": "two:9870",
                "dfs.namenode.http-address.pond": "three:9870",
            },
            {"lake": ["http://one:9870", "http://two:9870"], "pond": ["http://three:9870"]},
        ),
    ],
)
def test_addresses_come_from_the_configuration_of_hadoop(
    settings: dict[str, str], addresses: dict[str, list[str]]
) -> None:
    assert configured_addresses(settings.get) == addresses


def _write(system: FileSystem, path: str, text: str) -> None:
    with system.open_output_stream(path) as file:
        file.write(text.encode())


def _read(system: FileSystem, path: str) -> str:
    with system.open_input_stream(path) as file:
        return bytes(file.read()).decode()
