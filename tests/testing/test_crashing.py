"""Parts that kill their process at a named step, each in a process of its own."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.model import Change, Checkpoint, CheckpointKey, NewRecord
from penstock.testing import CrashingStore, CrashingStream, CrashingTopicStream, CrashPoint, MemoryStream
from penstock.testing.conformance.child import Child, Parent
from penstock.testing.interception import InterceptedStore, InterceptedTopicStream

KEY = CheckpointKey("group", "topic", 0)


def open_crashing(file: Path, at: str, nth: int, after: bool) -> CrashingStore:
    return CrashingStore(SqliteCheckpoints(file), at, nth, after)


def save_on_and_on(store: CrashingStore, parent: Parent) -> None:
    lease = store.claim("group", KEY.lease_name, "child", None)
    assert lease is not None
    for start in range(1, 10):
        store.save(lease, KEY, Change(Checkpoint(start, 10)))
        parent.send(start)


@pytest.mark.parametrize(("after", "last"), [(False, 2), (True, 3)])
def test_a_store_dies_before_or_after_the_step_took_effect(tmp_path: Path, after: bool, last: int) -> None:
    file = tmp_path / "checkpoints.db"
    with Child(functools.partial(open_crashing, file, "save", 3, after), save_on_and_on) as child:
        assert child.wait_until_killed() == [1, 2]
    store = SqliteCheckpoints(file)
    loaded = store.load(KEY)
    store.close()
    assert loaded is not None
    assert loaded.start == last


def append_and_read(streams: CrashingStream, parent: Parent) -> None:
    stream = streams.open_topic("topic")
    for number in range(3):
        [receipt] = stream.append([NewRecord("topic", b"%d" % number)])
        parent.send("appended")
        receipt.add_done_callback(lambda _: parent.send("acknowledged"))
        stream.read(0, 0, 1, 0.0)
        parent.send("read")


def open_crashing_streams(at: str, nth: int, after: bool) -> CrashingStream:
    return CrashingStream(MemoryStream(), at, nth, after)


@pytest.mark.parametrize(
    ("at", "nth", "after", "said"),
    [
        ("append", 1, False, []),
        ("acknowledge", 2, False, ["appended", "acknowledged", "read"]),
        ("read", 1, False, ["appended", "acknowledged"]),
        ("read", 2, True, ["appended", "acknowledged", "read", "appended", "acknowledged"]),
    ],
)
def test_a_stream_dies_at_the_step_that_was_named(at: str, nth: int, after: bool, said: list[str]) -> None:
    with Child(functools.partial(open_crashing_streams, at, nth, after), append_and_read) as child:
        assert child.wait_until_killed() == said


def test_a_child_that_was_to_die_and_did_not_is_an_error() -> None:
    with (
        Child(functools.partial(open_crashing_streams, "read", 100, False), append_and_read) as child,
        pytest.raises(AssertionError, match="should have been killed"),
    ):
        child.wait_until_killed()


def test_steps_are_counted_without_dying_so_that_a_harness_knows_them(tmp_path: Path) -> None:
    point = CrashPoint(None)
    store = InterceptedStore(SqliteCheckpoints(tmp_path / "checkpoints.db"), point)
    streams = MemoryStream()
    stream = InterceptedTopicStream(streams.open_topic("topic"), point)
    stream.append([NewRecord("topic", b"a"), NewRecord("topic", b"b")])
    stream.read(0, 0, 10, 0.0)
    store.claim("group", KEY.lease_name, "me", None)
    with store.transaction():
        pass
    store.close()
    assert point.steps == {"append": 1, "acknowledge": 2, "read": 1, "claim": 1, "begin": 1, "commit": 1}


def test_a_step_that_does_not_exist_is_refused() -> None:
    streams = MemoryStream()
    with pytest.raises(ValueError, match="'raed' is not a step"):
        CrashingTopicStream(streams.open_topic("topic"), at="raed")
    with pytest.raises(ValueError, match="must be an integer"):
        CrashingTopicStream(streams.open_topic("topic"), at="read", nth=0)
