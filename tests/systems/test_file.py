"""Files as topics: JSON lines, CSV and folders of Parquet."""

from __future__ import annotations

import datetime
import gzip
import json
import os
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import penstock
from penstock.abc import NamesPointers, TopicStream
from penstock.cli.main import app as command
from penstock.errors import (
    ConfigError,
    DeliveryError,
    OffsetOutOfRangeError,
    PenstockError,
    StreamError,
    TopicExistsError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import NewRecord, Pointer, Position
from penstock.testing import conformance
from tests import system_table
from tests.seeds import seed_of
from tests.systems.killed_app import FAILS_ALWAYS, run_and_kill

pytestmark = [pytest.mark.system("Files"), pytest.mark.xdist_group("file stream")]

GENERATION = 1 << 48


def open_files(folder: Path) -> penstock.Connection:
    connection = penstock.connect(f"file:{folder / 'data'}?poll_interval_s=0.01")
    system_table.met("Files", "JSON lines in the file system", connection.features)
    return connection


def replace_file(connection: penstock.Connection, topic: str, partition: int, before: Pointer) -> None:
    """Files lose their oldest lines when somebody writes the others to a new file."""
    path = Path(connection.url.partition(":")[2].partition("?")[0]) / f"{topic}.jsonl"
    new = path.with_suffix(".new")
    new.write_bytes(path.read_bytes()[before:])
    new.replace(path)


class TestConformance(conformance.stream(open_files, expire=replace_file)):  # type: ignore[misc]
    """Everything that a stream promises, with processes that are killed."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.jsonl"


def write(path: Path, *lines: object) -> None:
    """As other programs write."""
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def settle(path: Path) -> None:
    """As if the file had not been written to for a while."""
    os.utime(path, (0, 0))


class Tail:
    """Reads a topic from the beginning, and goes on where it was. Opened again, it is another process's."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.url = f"file:{path}"
        self.topic_name = path.stem
        self._settings = {"poll_interval_s": 0.01, **settings}
        self.next: Pointer = 0
        self._connection: penstock.Connection | None = None
        self.reopen()

    def reopen(self) -> None:
        self.close()
        self._connection = penstock.connect(self.url, **self._settings)
        self.topic: TopicStream = self._connection.open_topic(self.topic_name)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def read(self, limit: int = 100) -> list[str]:
        batch = self.topic.read(0, self.next, limit, 0.0)
        self.next = batch.next
        return [(record.value or b"").decode() for record in batch]


@pytest.fixture
def tail(log: Path) -> Iterator[Tail]:
    write(log, 1, 2, 3)
    tail = Tail(log)
    yield tail
    tail.close()


def test_lines_of_other_programs_are_values_and_pointers_are_bytes(log: Path) -> None:
    log.write_bytes(b'{"id": "a", "at": "2026-01-02T03:04:05Z"}\r\n\nnot json\n{"id": 7, "at": 5}\n')
    with penstock.connect(f"file:{log}?key_field=id&timestamp_field=at") as stream:
        assert stream.topics() == ["app"]
        first, second, third = stream.read("app")
        assert (first.key, first.timestamp_ms, first.offset) == (b"a", 1767323045000, 0)
        assert (second.key, second.value, second.offset) == (None, b"not json", 44)
        assert (third.key, third.timestamp_ms) == (b"7", 5)
        backend = stream.backend
        assert isinstance(backend, NamesPointers)
        assert backend.pointer_text(3 * GENERATION + 44) == "3/44"
        assert backend.parse_pointer("3/44") == 3 * GENERATION + 44
        with pytest.raises(ConfigError, match="GENERATION/BYTE"):
            backend.parse_pointer("x")


def test_a_growing_file_is_followed_and_half_a_line_is_not_read(log: Path, tail: Tail) -> None:
    assert tail.read() == ["1", "2", "3"]
    with log.open("a") as file:
        file.write('{"half":')
        file.flush()
        assert tail.read() == []
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(tail.topic.read, 0, tail.next, 10, 30.0)
            file.write(" 1}\n")
            file.flush()
            assert [record.value for record in waiting.result(30)] == [b'{"half": 1}']


@pytest.mark.parametrize("is_restarted", [False, True])
def test_after_a_rotation_by_rename_the_rest_of_the_old_file_comes_first(
    log: Path, tail: Tail, is_restarted: bool
) -> None:
    assert tail.read(2) == ["1", "2"]
    old = log.with_name("app.jsonl.1")
    log.rename(old)
    write(log, "new")
    if is_restarted:
        tail.reopen()
    with old.open("a") as file:
        file.write("4\nunfinished")
    assert tail.read() == ["3", "4"]
    assert tail.read() == [], "its writer may not have noticed yet"
    write(old, " 5")
    assert tail.read() == ["unfinished 5"]
    settle(old)
    assert tail.read() == ["new"]
    assert tail.next == GENERATION + 4
    assert tail.topic.span(0) == (0, GENERATION + 4)
    write(log, "newer")
    assert tail.read() == ["newer"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_after_a_rotation_by_copy_and_truncation_the_rest_of_the_copy_comes_first(
    log: Path, tail: Tail, is_restarted: bool
) -> None:
    assert tail.read(2) == ["1", "2"]
    copy = log.with_name("app.jsonl.1")
    shutil.copy(log, copy)
    os.truncate(log, 0)
    if is_restarted:
        tail.reopen()
    settle(copy)
    assert tail.read() == ["3"]
    write(log, "new")
    assert tail.read() == ["new"]
    assert tail.next == GENERATION + 4


def test_a_truncated_file_that_grew_again_is_told_by_its_first_bytes(log: Path, tail: Tail) -> None:
    assert tail.read() == ["1", "2", "3"]
    os.truncate(log, 0)
    write(log, "this is longer than it was")
    assert tail.read() == ["this is longer than it was"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_lines_that_were_rotated_away_unread_are_an_error(log: Path, tail: Tail, is_restarted: bool) -> None:
    assert tail.read(1) == ["1"]
    with gzip.open(log.with_name("app.jsonl.1.gz"), "wb") as file:
        file.write(log.read_bytes())
    log.unlink()
    write(log, "new")
    if is_restarted:
        tail.reopen()
    with pytest.raises(OffsetOutOfRangeError) as raised:
        tail.read()
    assert (raised.value.start, raised.value.end) == (GENERATION, GENERATION + 4)
    assert tail.topic.locate(0, Position.EARLIEST) == GENERATION
    tail.next = GENERATION
    assert tail.read() == ["new"]


def test_a_file_that_was_read_to_its_end_may_be_rotated_away(log: Path, tail: Tail) -> None:
    assert tail.read() == ["1", "2", "3"]
    log.unlink()
    with pytest.raises(UnknownTopicError, match="there is no file"):
        tail.read()
    write(log, "new")
    assert tail.read() == ["new"]


def test_two_rotations_in_a_row_are_read_in_their_order(log: Path, tail: Tail) -> None:
    assert tail.read(1) == ["1"]
    log.rename(log.with_name("app.jsonl.1"))
    write(log, "second")
    assert tail.topic.span(0)[1] == GENERATION + 7
    log.with_name("app.jsonl.1").rename(log.with_name("app.jsonl.2"))
    log.rename(log.with_name("app.jsonl.1"))
    write(log, "third")
    for name in ("app.jsonl.1", "app.jsonl.2"):
        settle(log.with_name(name))
    assert [tail.read(), tail.read(), tail.read()] == [["2", "3"], ["second"], ["third"]]


def test_a_pointer_behind_the_end_is_an_error(log: Path, tail: Tail) -> None:
    for wrong in (7, GENERATION):
        with pytest.raises(OffsetOutOfRangeError, match="has not been written yet"):
            tail.topic.read(0, wrong, 10, 0.0)


def test_a_line_of_ours_that_a_killed_process_left_unfinished_is_removed(tmp_path: Path) -> None:
    with penstock.connect(f"file:{tmp_path}") as stream:
        stream.create_topic("orders")
        path = tmp_path / "orders.jsonl"
        stream.send("orders", b"one").result(10)
        with path.open("ab") as file:
            file.write(b'{"penstock":1,"timestamp_ms":5,"val')
        place = stream.send("orders", b"two").result(10)
        with path.open("ab") as file:
            file.write(b"somebody else")
        stream.send("orders", b"three").result(10)
        found = list(stream.read("orders"))
        assert [record.value for record in found] == [b"one", b"two", b"somebody else", b"three"]
        assert found[1].offset == place.offset


def test_without_an_envelope_a_line_is_the_value(log: Path) -> None:
    with penstock.connect(f"file:{log}?envelope=false") as stream:
        stream.create_topic("app")
        stream.send("app", {"a": 1}, key="lost").result(10)
        assert log.read_text() == '{"a":1}\n'
        for wrong in (b"two\nlines", b"", None):
            with pytest.raises(DeliveryError, match="is not one line"):
                stream.send("app", wrong).result(10)
        assert [record.value for record in stream.read("app")] == [b'{"a":1}']


CSV = b'\xef\xbb\xbfid;name;note\r\n1;ann;"two\nlines; and ""quotes"""\r\n\r\n2;bob\r\n3;cec;x;more\r\n'


def test_rows_of_csv_are_json_objects(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(CSV)
    with penstock.connect(f"file:{path}?delimiter=%3B&key_field=id") as stream:
        records = list(stream.read("people"))
        assert [json.loads(record.value or b"") for record in records] == [
            {"id": "1", "name": "ann", "note": 'two\nlines; and "quotes"'},
            {"id": "2", "name": "bob", "note": None},
            {"id": "3", "name": "cec", "note": "x", "column_4": "more"},
        ]
        assert [record.key for record in records] == [b"1", b"2", b"3"]
        topic = stream.open_topic("people")
        with pytest.raises(ConfigError, match="only JSON lines can be appended to"):
            topic.append([NewRecord("people", b"")])
        for pointer in range(len(CSV) + 1):  # every byte, also in a field with a newline
            expected = [record.offset for record in records if record.offset >= pointer]
            assert [record.offset for record in stream.open_topic("people").read(0, pointer, 10, 0.0)] == expected
        with path.open("ab") as file:
            file.write(b'4;dan;"half\n')
        assert topic.span(0)[1] == len(CSV)
        assert not topic.read(0, len(CSV), 10, 0.0), "a quoted field is still open"
        with path.open("ab") as file:
            file.write(b'a row"\n')
        [last] = topic.read(0, len(CSV), 10, 0.0)
        assert json.loads(last.value or b"")["note"] == "half\na row"


def test_a_csv_file_without_rows_is_empty(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("id,na")
    with penstock.connect(f"file:{tmp_path}") as stream:
        topic = stream.open_topic("people")
        assert not topic.read(0, 0, 10, 0.0)
        write(tmp_path / "people.csv", "me")
        assert topic.span(0) == (8, 8)
        write(tmp_path / "people.csv", "1,ann")
        assert [record.value for record in topic.read(0, 0, 10, 0.0)] == [b'{"id":"1","name":"ann"}']


def parquet(folder: Path, name: str, numbers: range) -> Path:
    folder.mkdir(exist_ok=True)
    at = [datetime.datetime.fromtimestamp(number, datetime.UTC) for number in numbers]
    table = pyarrow.table({"n": list(numbers), "at": at})
    pyarrow.parquet.write_table(table, folder / name, row_group_size=4)
    return folder / name


def numbers(topic: TopicStream, start: Pointer, limit: int = 100) -> list[int]:
    return [json.loads(record.value or b"")["n"] for record in topic.read(0, start, limit, 0.0)]


def test_rows_of_parquet_files_are_numbered_over_all_files(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "history"
    folder.parent.mkdir()
    parquet(folder, "b.parquet", range(10, 15))
    parquet(folder, "a.parquet", range(10))
    parquet(folder, "_temporary.parquet", range(100))
    with penstock.connect(f"file:{folder.parent}?timestamp_field=at&key_field=n") as stream:
        assert stream.topics() == ["history"]
        topic = stream.open_topic("history")
        assert topic.span(0) == (0, 15)
        assert numbers(topic, 0) == list(range(15))
        assert numbers(topic, 7, 5) == [7, 8, 9, 10, 11]
        record = topic.read(0, 3, 1, 0.0)[0]
        assert (record.offset, record.key, record.timestamp_ms) == (3, b"3", 3000)
        assert json.loads(record.value or b"") == {"n": 3, "at": "1970-01-01T00:00:03Z"}
        assert topic.locate(0, Position.at_time(12_000)) == 12


def test_parquet_files_that_come_later_are_behind_and_incomplete_ones_wait(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    parquet(folder, "m.parquet", range(5))
    with penstock.connect(f"file:{folder}") as stream:
        topic = stream.open_topic("history")
        assert topic.span(0) == (0, 5)
        whole = parquet(tmp_path / "elsewhere", "a.parquet", range(5, 8)).read_bytes()
        (folder / "a.parquet").write_bytes(whole[:-10])
        assert topic.span(0) == (0, 5)
        parquet(folder, "z.parquet", range(8, 10))
        assert numbers(topic, 0) == [0, 1, 2, 3, 4, 8, 9]
        (folder / "a.parquet").write_bytes(whole)
        assert numbers(topic, 5) == [8, 9, 5, 6, 7]
    with penstock.connect(f"file:{folder}") as stream:
        assert numbers(stream.open_topic("history"), 0) == [0, 1, 2, 3, 4, 8, 9, 5, 6, 7]


def test_parquet_files_that_were_removed_or_changed_are_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    for name, first in (("a", 0), ("b", 5), ("c", 10)):
        parquet(folder, f"{name}.parquet", range(first, first + 5))
    with penstock.connect(f"file:{folder}") as stream:
        assert stream.open_topic("history").span(0) == (0, 15)
    (folder / "a.parquet").unlink()
    with penstock.connect(f"file:{folder}") as stream:
        topic = stream.open_topic("history")
        assert topic.span(0) == (5, 15)
        with pytest.raises(OffsetOutOfRangeError, match=r"offset 3 was deleted .* holds 5 to 15"):
            topic.read(0, 3, 10, 0.0)
        assert numbers(topic, 7) == list(range(7, 15))
        parquet(folder, "b.parquet", range(100))
        with pytest.raises(StreamError, match="must not be changed"):
            topic.read(0, 7, 10, 0.0)


def test_what_cannot_be_done_is_refused(tmp_path: Path, log: Path) -> None:
    write(log, "x" * 200)
    with penstock.connect(f"file:{log}?max_record_bytes=100") as stream:
        with pytest.raises(ConfigError, match="the only topic there"):
            stream.create_topic("other")
        with pytest.raises(TopicExistsError, match="exists already"):
            stream.create_topic("app")
        with pytest.raises(DeliveryError, match="larger than max_record_bytes=100"):
            stream.send("app", b"x" * 101).result(10)
        with pytest.raises(DeliveryError, match="no partition 3"):
            stream.send("app", b"x", partition=3).result(10)
    with penstock.connect(f"file:{tmp_path}") as stream:
        with pytest.raises(UnknownTopicError, match="create topic 'orders' first"):
            stream.open_topic("orders").partitions()
        with pytest.raises(ConfigError, match="must be 1"):
            stream.create_topic("orders", 2)
    (tmp_path / "app.csv").touch()
    with penstock.connect(f"file:{tmp_path}") as stream, pytest.raises(ConfigError, match="would be one topic, 'app'"):
        stream.topics()
    (tmp_path / "app.log").write_text("a line\n")
    with (
        penstock.connect(f"file:{tmp_path / 'app.log'}") as stream,
        pytest.raises(ConfigError, match=r"add \?format=jsonl"),
    ):
        stream.open_topic("app")
    with penstock.connect(f"file:{tmp_path / 'app.log'}?format=jsonl") as stream:
        assert [record.value for record in stream.read("app")] == [b"a line"]


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("file:./data?speed=3", ConfigError, "has no setting 'speed'; file: has"),
        ("file:./data?format=xml", ConfigError, "must be one of auto, jsonl, csv"),
        ("file:./data?delimiter=ab", ConfigError, "must be one character"),
        ("file:./data?poll_interval_s=0", ConfigError, "must be positive"),
        ("file:", UrlError, "write the path right after the colon"),
        ("file:///data", UrlError, "write the path right after the colon"),
    ],
)
def test_urls_are_checked(url: str, error: type[PenstockError], message: str) -> None:
    with pytest.raises(error, match=message):
        penstock.connect(url)


def test_an_app_whose_process_is_killed_handles_every_record(tmp_path: Path) -> None:
    """With a rotation before the second process starts: pointers of both files come back from the checkpoint."""
    url = f"file:{tmp_path / 'data'}?rotation_wait_s=0"
    with penstock.connect(url) as stream:
        stream.create_topic("orders")
        for number in range(200):
            stream.send("orders", b"%d" % number)
        stream.flush(30)
        assert stream.open_topic("orders").span(0)[0] == 0
    path = tmp_path / "data" / "orders.jsonl"
    path.rename(path.with_name("orders.jsonl.1"))
    with penstock.connect(url) as stream:
        stream.create_topic("orders")
        for number in range(200, 300):
            stream.send("orders", b"%d" % number)
    found = run_and_kill(url, "orders", tmp_path, random.Random(seed_of()).randint(20, 250))
    assert set(found) == {b"%d" % number for number in range(300)} - {FAILS_ALWAYS}
    with penstock.connect(url) as stream:
        assert {record.value for record in stream.read("orders.dlq", timeout_s=10)} == {FAILS_ALWAYS}


def test_the_commands_work_on_it(tmp_path: Path) -> None:
    run, url = CliRunner().invoke, f"file:{tmp_path}"
    assert run(command, ["topics", "create", "orders", "--url", url]).exit_code == 0
    assert run(command, ["produce", "orders", "--url", url], input="first\nsecond\n").exit_code == 0
    assert run(command, ["consume", "orders", "--format", "raw", "--url", url]).output == "first\nsecond\n"
    assert "orders" in run(command, ["topics", "list", "--url", url]).output
