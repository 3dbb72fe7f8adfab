"""The data folder: topics come and go, one process owns it, and its files survive what files suffer."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import (
    ConfigError,
    DataFolderInUseError,
    InvalidTopicError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.log.segment import Resources
from penstock.log.statefile import read_state, write_state
from penstock.log.store import TOPICS_FOLDER, TopicStore
from tests.log.engine import NOW_MS, QuickDisk, batch_of, put_values, read_all


class Crash(BaseException):
    """The process ends here."""


@pytest.fixture
def opened() -> Iterator[list[TopicStore]]:
    """Every store that a test opens, so that each is closed."""
    stores: list[TopicStore] = []
    yield stores
    for store in stores:
        close(store)


def open_store(folder: Path, opened: list[TopicStore], **options: Any) -> TopicStore:
    store = TopicStore(folder, resources=Resources(QuickDisk()), **options)
    opened.append(store)
    return store


def close(store: TopicStore) -> None:
    if not getattr(store, "is_closed", False):
        store.close()
        store.is_closed = True  # type: ignore[attr-defined]


def test_topics_are_there_again_after_a_restart(tmp_path: Path, opened: list[TopicStore]) -> None:
    store = open_store(tmp_path, opened)
    orders = store.create("orders", 3, {"retention.ms": "5000"})
    expected = [put_values(log, 5) for log in orders.partitions]
    store.create("empty", 1, {})
    close(store)
    store = open_store(tmp_path, opened)
    assert sorted(store.names()) == ["empty", "orders"]
    again = store.get("orders")
    assert again is not None
    assert (again.id, again.overrides) == (orders.id, {"retention.ms": "5000"})
    assert again.config.retention_ms == 5000
    assert [read_all(log) for log in again.partitions] == expected
    assert store.by_id(orders.id) is again
    assert (store.name_of(orders.id), store.id_of("orders")) == ("orders", orders.id)
    assert store.recovered.scanned_bytes == 0


def test_a_second_owner_is_refused_and_told_who_the_first_is(tmp_path: Path, opened: list[TopicStore]) -> None:
    store = open_store(tmp_path, opened)
    script = f"import pathlib, penstock.log.store as store; store.TopicStore(pathlib.Path({str(tmp_path)!r}))"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert other.returncode != 0
    assert "DataFolderInUseError" in other.stderr
    with pytest.raises(DataFolderInUseError, match=r"in use by process \d+"):
        TopicStore(tmp_path)
    close(store)
    open_store(tmp_path, opened)


def test_a_deleted_topic_is_gone_and_its_name_is_free_when_nobody_remembers_it(
    tmp_path: Path, opened: list[TopicStore]
) -> None:
    store = open_store(tmp_path, opened)
    first = store.create("t", 2, {})
    log = first.partitions[0]
    put_values(log, 5)
    store.delete("t")
    assert store.get("t") is None
    assert store.by_id(first.id) is None
    with pytest.raises(UnknownTopicError):
        store.delete("t")
    with pytest.raises(StorageError, match="deleted"):
        log.append(batch_of([(b"k", b"v")]), NOW_MS)
    with pytest.raises(TopicExistsError, match="still being deleted"):
        store.create("t", 1, {})
    store.deletion_finished("t")
    second = store.create("t", 1, {})
    assert second.id != first.id
    assert second.partitions[0].end_offset == 0
    put_values(second.partitions[0], 2)
    close(store)
    store = open_store(tmp_path, opened)
    found = store.partition("t", 0)
    assert found is not None
    assert found.end_offset == 2
    assert not store.exists("t", 1)


@pytest.mark.parametrize("renames", [1, 2, 3])
def test_a_crash_while_a_topic_is_deleted_never_brings_its_records_back(
    tmp_path: Path, opened: list[TopicStore], monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    store = open_store(tmp_path, opened)
    for log in store.create("t", 3, {}).partitions:
        put_values(log, 5)
    left = renames
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(Crash):
        store.delete("t")
    monkeypatch.undo()
    close(store)
    store = open_store(tmp_path, opened)
    assert store.names() == []
    assert store.being_deleted() == ["t"]
    store.deletion_finished("t")
    again = store.create("t", 3, {})
    assert [log.end_offset for log in again.partitions] == [0, 0, 0]
    close(store)
    assert open_store(tmp_path, opened).being_deleted() == []


def test_partitions_can_be_added_but_not_taken_away(tmp_path: Path, opened: list[TopicStore]) -> None:
    store = open_store(tmp_path, opened)
    put_values(store.create("t", 1, {}).partitions[0], 3)
    store.add_partitions("t", 4)
    with pytest.raises(ConfigError):
        store.add_partitions("t", 2)
    close(store)
    store = open_store(tmp_path, opened)
    assert [log.end_offset for log in store.partitions()] == [3, 0, 0, 0]


def test_changed_settings_are_obeyed_at_once_and_after_a_restart(tmp_path: Path, opened: list[TopicStore]) -> None:
    store = open_store(tmp_path, opened, broker_defaults={"log.retention.ms": "77"})
    topic = store.create("t", 2, {})
    assert topic.config.retention_ms == 77
    store.set_overrides("t", {"retention.ms": "5"})
    assert {log.config.retention_ms for log in topic.partitions} == {5}
    with pytest.raises(ConfigError):
        store.set_overrides("t", {"retention.mss": "5"})
    close(store)
    store = open_store(tmp_path, opened)
    assert {log.config.retention_ms for log in store.partitions()} == {5}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ü", "a b", "x" * 250, "a~"])
def test_a_name_that_kafka_would_not_allow_is_refused(tmp_path: Path, opened: list[TopicStore], name: str) -> None:
    store = open_store(tmp_path, opened)
    with pytest.raises(InvalidTopicError):
        store.create(name, 1, {})


@pytest.mark.parametrize("name", ["x" * 249, "t.new", "lock", "topics", "a.deleted", "checkpoint"])
def test_any_name_that_kafka_allows_works(tmp_path: Path, opened: list[TopicStore], name: str) -> None:
    store = open_store(tmp_path, opened)
    store.create("t", 1, {})
    expected = put_values(store.create(name, 1, {}).partitions[0], 3)
    store.set_overrides("t", {"retention.ms": "5"})
    close(store)
    store = open_store(tmp_path, opened)
    log = store.partition(name, 0)
    assert log is not None
    assert read_all(log) == expected
    store.delete(name)
    assert store.names() == ["t"]


def test_creating_what_exists_or_cannot_be_is_refused(tmp_path: Path, opened: list[TopicStore]) -> None:
    store = open_store(tmp_path, opened)
    store.create("t", 1, {})
    with pytest.raises(TopicExistsError):
        store.create("t", 1, {})
    with pytest.raises(ConfigError):
        store.create("u", 0, {})
    with pytest.raises(ConfigError):
        store.create("u", 1, {"nonsense": "1"})
    assert store.names() == ["t"]


def test_a_flipped_bit_in_the_description_of_a_topic_does_not_matter(tmp_path: Path, opened: list[TopicStore]) -> None:
    store = open_store(tmp_path, opened)
    topic = store.create("t", 1, {"retention.ms": "5"})
    expected = put_values(topic.partitions[0], 3)
    close(store)
    path = tmp_path / TOPICS_FOLDER / "t"
    content = path.read_bytes()
    for position in range(len(content)):
        spoilt = bytearray(content)
        spoilt[position] ^= 1 << position % 8
        path.write_bytes(spoilt)
        store = open_store(tmp_path, opened)
        again = store.get("t")
        assert again is not None, f"byte {position}"
        assert (again.id, again.overrides) == (topic.id, {"retention.ms": "5"}), f"byte {position}"
        assert read_all(again.partitions[0]) == expected
        close(store)


def test_a_topic_whose_description_is_beyond_repair_is_not_served_but_not_touched_either(
    tmp_path: Path, opened: list[TopicStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, opened)
    expected = put_values(store.create("t", 1, {}).partitions[0], 3)
    store.create("other", 1, {})
    close(store)
    path = tmp_path / TOPICS_FOLDER / "t"
    content = path.read_bytes()
    path.write_bytes(b"\0" * len(content))
    store = open_store(tmp_path, opened)
    assert store.names() == ["other"]
    assert str(path) in caplog.text
    with pytest.raises(TopicExistsError, match="damaged"):
        store.create("t", 1, {})
    close(store)
    path.write_bytes(content)
    log = open_store(tmp_path, opened).partition("t", 0)
    assert log is not None
    assert read_all(log) == expected


def test_records_whose_topic_is_not_written_down_are_never_mixed_with_new_ones(
    tmp_path: Path, opened: list[TopicStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, opened)
    expected = put_values(store.create("t", 1, {}).partitions[0], 3)
    close(store)
    path = tmp_path / TOPICS_FOLDER / "t"
    content = path.read_bytes()
    path.unlink()
    store = open_store(tmp_path, opened)
    assert store.get("t") is None
    assert store.is_known("t")
    for reason in (f"its topic file {path} is missing", "Restore the file from a copy"):
        assert reason in caplog.text
        with pytest.raises(TopicExistsError, match=re.escape(reason)):
            store.create("t", 1, {})
    close(store)
    path.write_bytes(content)
    log = open_store(tmp_path, opened).partition("t", 0)
    assert log is not None
    assert read_all(log) == expected


def test_a_folder_of_records_that_is_missing_is_not_taken_for_a_new_partition(
    tmp_path: Path, opened: list[TopicStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, opened)
    expected = put_values(store.create("t", 2, {}).partitions[1], 3)
    close(store)
    (tmp_path / "t-1").rename(tmp_path / "elsewhere")
    store = open_store(tmp_path, opened)
    assert store.get("t") is None
    assert store.is_known("t")
    assert f"topic t is not served: {tmp_path / 't-1'} missing" in caplog.text
    close(store)
    (tmp_path / "elsewhere").rename(tmp_path / "t-1")
    log = open_store(tmp_path, opened).partition("t", 1)
    assert log is not None
    assert read_all(log) == expected


def test_a_topic_of_an_earlier_version_has_no_folder_before_its_first_record(
    tmp_path: Path, opened: list[TopicStore]
) -> None:
    store = open_store(tmp_path, opened)
    put_values(store.create("t", 2, {}).partitions[0], 3)
    close(store)
    path = tmp_path / TOPICS_FOLDER / "t"
    content = read_state(path)
    assert content is not None
    write_state(path, content.replace(b'"version":2', b'"version":1'), QuickDisk())
    (tmp_path / "t-1").rmdir()
    for _ in range(2):
        store = open_store(tmp_path, opened)
        assert [log.end_offset for log in store.partitions()] == [3, 0]
        close(store)
    assert (tmp_path / "t-1").is_dir()


def test_folders_that_a_crash_left_before_their_topic_was_written_down_are_used_again(
    tmp_path: Path, opened: list[TopicStore], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t-0").mkdir()
    store = open_store(tmp_path, opened)
    put_values(store.create("t", 2, {}).partitions[0], 3)
    assert not caplog.records


def test_what_else_somebody_keeps_in_the_folder_is_not_taken_for_a_topic(
    tmp_path: Path, opened: list[TopicStore], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("notes-1", "spool-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes-1" / "today.log").touch()
    for name in ("lock", "00000000000000000000.log"):
        (tmp_path / "spool-1" / name).touch()
    store = open_store(tmp_path, opened)
    assert store.is_new
    assert not store.is_known("notes")
    assert not store.is_known("spool")
    assert not caplog.messages


def test_nothing_is_removed_but_the_folders_of_deleted_topics(tmp_path: Path, opened: list[TopicStore]) -> None:
    mine = tmp_path / "copy of orders.deleted"
    mine.mkdir()
    store = open_store(tmp_path, opened)
    store.create("t", 1, {})
    store.delete("t")
    store.remove_deleted()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"topics", mine.name}


def test_a_folder_that_was_replaced_gets_nothing_from_its_former_owner(
    tmp_path: Path, opened: list[TopicStore]
) -> None:
    folder = tmp_path / "data"
    store = open_store(folder, opened)
    log = store.create("t", 1, {}).partitions[0]
    put_values(log, 3)
    shutil.rmtree(folder)
    assert not store.is_ours()
    other = open_store(folder, opened)
    put_values(other.create("t", 1, {}).partitions[0], 1)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for change in (log.roll, log.checkpoint, lambda: store.create("u", 1, {}), lambda: store.add_partitions("t", 2)):
        with pytest.raises(StorageError, match="was removed or replaced while it was in use"):
            change()
    store.abandon()
    with pytest.raises(StorageError, match="was removed or replaced while it was in use"):
        log.append(batch_of([(b"k", b"v")]), NOW_MS)
    close(store)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_producer_is_recognised_after_a_restart(tmp_path: Path, opened: list[TopicStore]) -> None:
    for closed in (True, False):
        store = open_store(tmp_path / str(closed), opened)
        log = store.create("t", 1, {}).partitions[0]
        for sequence in range(7):
            log.append(batch_of([(b"k", b"%d" % sequence)], producer_id=9, sequence=sequence), NOW_MS)
        log.write()
        if not closed:
            log.failed = "killed"  # so that closing it does not help
        close(store)
        found = open_store(tmp_path / str(closed), opened).partition("t", 0)
        assert found is not None
        for sequence in range(2, 7):
            again = found.append(batch_of([(b"k", b"%d" % sequence)], producer_id=9, sequence=sequence), NOW_MS)
            assert again.base_offset == sequence
        assert found.end_offset == 7
        assert found.append(batch_of([(b"k", b"7")], producer_id=9, sequence=7), NOW_MS).base_offset == 7


def test_many_partitions_share_few_open_files(tmp_path: Path) -> None:
    resources = Resources(QuickDisk(), open_files=16)
    store = TopicStore(tmp_path, resources=resources)
    topics = [store.create(f"topic-{number}", 10, {}) for number in range(20)]
    for turn in range(3):
        for topic in topics:
            for log in topic.partitions:
                log.append(batch_of([(b"k", b"%d" % turn)]), NOW_MS)
                log.write()
                log.publish(log.end_offset)
                assert len(resources.files) <= 16
    assert all(len(read_all(log)) == 3 for log in store.partitions())
    store.close()
    store = TopicStore(tmp_path, resources=Resources(QuickDisk(), open_files=16))
    assert store.recovered.scanned_bytes == 0
    assert sum(log.end_offset for log in store.partitions()) == 600
    store.close()
