"""A keyed topic as a table in this process."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import penstock as ps
from penstock.errors import (
    BrokerUnavailableError,
    ClosedError,
    HistoryLostError,
    SerdeError,
    UnknownTopicError,
)
from penstock.tables.changes import TRUNCATE_KEY, ChangeDecoder, ChangeFormat
from penstock.tables.table import TableChange, following
from tests.seeds import seed_of

TIMEOUT_S: Final = 60.0
_numbers = itertools.count()


@dataclass
class User:
    name: str
    city: str


USERS: Final = ps.Topic("users", User)
ANN, BOB, CID = User("ann", "Oslo"), User("bob", "Rome"), User("cid", "Oslo")


@pytest.fixture
def stream() -> Iterator[ps.Connection]:
    """A stream in memory, with an empty topic of two partitions."""
    with ps.connect(f"memory:table-{next(_numbers)}") as connection:
        connection.create_topic("users", 2)
        yield connection


@pytest.fixture(params=["memory", "disk", "kept"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where rows are: in memory, in a file, or in both."""
    return {} if request.param == "memory" else {"storage": tmp_path / "users.db", "in_memory": request.param == "kept"}


def send(stream: ps.Connection, **users: User | None) -> list[ps.Receipt]:
    return [stream.send(USERS, user, key=key) for key, user in users.items()]


def test_a_row_is_the_newest_value_of_its_key(stream: ps.Connection, storage: dict[str, Any]) -> None:
    send(stream, a=ANN, b=BOB)
    with ps.Table(stream, USERS, **storage) as users:
        assert users["a"] == ANN
        assert users[b"a"] == ANN, "keys are text, and may be given as bytes"
        assert dict(users.items()) == {"a": ANN, "b": BOB}
        users.wait_for(send(stream, a=CID, b=None), TIMEOUT_S)
        assert users["a"] == CID
        assert "b" not in users
        assert users.get("b") is None
        assert users.get("b", BOB) == BOB
        assert (len(users), sorted(users), bool(users)) == (1, ["a"], True)
        with pytest.raises(KeyError):
            users["b"]


def test_the_table_is_what_a_dict_would_be_after_random_changes(stream: ps.Connection, storage: dict[str, Any]) -> None:
    chance = random.Random(seed_of())
    expected: dict[str, User] = {}
    with ps.Table(stream, USERS, **storage, indexes=["city"]) as users:
        for _ in range(8):
            receipts = []
            for _ in range(40):
                key = chance.choice("abcdefgh")
                user = chance.choice([None, User(chance.choice(["x", "y"]), chance.choice(["Oslo", "Rome"]))])
                receipts += send(stream, **{key: user})
                if user is None:
                    expected.pop(key, None)
                else:
                    expected[key] = user
            users.wait_for(receipts, TIMEOUT_S)
            assert dict(users.items()) == expected
            assert len(users) == len(expected)
            for city in ("Oslo", "Rome", "Bergen"):
                assert users.by("city", city) == {key: user for key, user in expected.items() if user.city == city}


def test_an_index_may_be_a_function(stream: ps.Connection, storage: dict[str, Any]) -> None:
    send(stream, a=ANN, b=BOB, c=CID)
    with ps.Table(stream, USERS, **storage, indexes={"letter": lambda user: user.city[0]}) as users:
        assert set(users.by("letter", "O")) == {"a", "c"}
        with pytest.raises(ps.ConfigError, match="no index 'city': it has letter"):
            users.by("city", "Oslo")


def test_changes_are_told_with_the_row_before(stream: ps.Connection, storage: dict[str, Any]) -> None:
    changes: list[TableChange] = []
    told = threading.Event()
    send(stream, a=ANN)
    with ps.Table(stream, USERS, **storage) as users:
        users.wait_until_caught_up(TIMEOUT_S)

        @users.on_change
        def change(change: TableChange) -> None:
            changes.append(change)
            if len(changes) == 3:
                told.set()
            raise ValueError("a callback that fails stops nothing")

        send(stream, a=BOB)
        send(stream, a=None)
        send(stream, a=None)
        send(stream, a=CID)
        assert told.wait(TIMEOUT_S)
    assert [(each.key, each.before, each.after) for each in changes] == [
        ("a", ANN, BOB),
        ("a", BOB, None),
        ("a", None, CID),
    ]


def test_a_truncate_deletes_the_rows_of_its_partition(stream: ps.Connection, storage: dict[str, Any]) -> None:
    for partition, key in ((0, "a"), (0, "b"), (1, "c")):
        stream.send(USERS, ANN, key=key, partition=partition)
    truncate = b'{"__op":"t","__lsn":1,"__ts_ms":2}'
    with ps.Table(stream, USERS, **storage, indexes=["city"]) as users:
        users.wait_until_caught_up(TIMEOUT_S)
        stream.send("users", truncate, key=TRUNCATE_KEY, partition=0)
        users.wait_for(stream.send(USERS, BOB, key="b", partition=0), TIMEOUT_S)
        assert dict(users.items()) == {"b": BOB, "c": ANN}
        assert set(users.by("city", "Oslo")) == {"c"}
        assert len(users) == 2


@pytest.mark.parametrize("format", list(ChangeFormat))
def test_each_format_is_decoded_to_the_same_rows(format: ChangeFormat) -> None:
    decoder = ChangeDecoder(USERS if format is ChangeFormat.PLAIN else ps.Topic("users", serde="plain"), format)
    row = {"name": "ann", "city": "Oslo"}
    value: dict[str, Any] = row
    if format is ChangeFormat.FLAT:
        value = {**row, "__op": "c", "__lsn": 7, "__ts_ms": 1}
    elif format is ChangeFormat.DEBEZIUM:
        value = {"before": None, "after": row, "op": "c", "source": {}, "ts_ms": 1}
    wrapped = [value, {"schema": {}, "payload": value}] if format is ChangeFormat.DEBEZIUM else [value]
    for each in wrapped:
        outcome, data = decoder.outcome(b'{"id":1}', json.dumps(each).encode())
        assert outcome == "set"
        assert data is not None
        assert decoder.row(data) == (ANN if format is ChangeFormat.PLAIN else row)
    assert decoder.outcome(b'{"id":1}', None) == ("delete", None)
    if format is not ChangeFormat.PLAIN:
        assert decoder.key(b'{"id":1}') == 1
        assert decoder.key(b'{"a":1,"b":"x"}') == (1, "x")
        assert decoder.loaded_key(decoder.stored_key((1, "x"))) == (1, "x")


def test_debezium_events_delete_truncate_and_say_nothing() -> None:
    decoder = ChangeDecoder(ps.Topic("users", serde="plain"), ChangeFormat.DEBEZIUM)
    assert decoder.outcome(b'{"id":1}', b'{"before":{},"after":null,"op":"d"}')[0] == "delete"
    assert decoder.outcome(None, b'{"before":null,"after":null,"op":"t"}')[0] == "truncate"
    assert decoder.outcome(TRUNCATE_KEY, b'{"payload":{"op":"t"},"schema":{}}')[0] == "truncate"
    assert decoder.outcome(b"{}", b'{"op":"m","message":{}}')[0] == "nothing"
    assert decoder.outcome(None, b"no change")[0] == "nothing"
    with pytest.raises(SerdeError, match="not Debezium's envelope"):
        decoder.outcome(b'{"id":1}', b'{"id":1}')


def test_a_row_that_cannot_be_decoded_is_an_error_of_its_lookup_alone(
    stream: ps.Connection, storage: dict[str, Any]
) -> None:
    send(stream, a=ANN)
    stream.send("users", b"no user", key="b")
    with ps.Table(stream, USERS, **storage, indexes=["city"]) as users:
        assert users["a"] == ANN
        with pytest.raises(SerdeError, match="users"):
            users["b"]
        users.wait_for(send(stream, b=BOB), TIMEOUT_S)
        assert users["b"] == BOB


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_table_on_disk_continues_where_it_was(stream: ps.Connection, tmp_path: Path, in_memory: bool) -> None:
    send(stream, a=ANN, b=BOB, d=CID)
    with ps.Table(stream, USERS, storage=tmp_path / "users.db", in_memory=in_memory) as users:
        users.wait_until_caught_up(TIMEOUT_S)
        kept = users.pointers
    send(stream, b=None, c=CID)
    seen: list[Any] = []
    index = ["city"] if in_memory else []  # in memory, it is made of the rows; in the file, rows were read again
    users = ps.Table(stream, USERS, storage=tmp_path / "users.db", in_memory=in_memory, indexes=index)
    users.on_change(lambda change: seen.append((change.partition, change.pointer)))
    with users:
        assert dict(users.items()) == {"a": ANN, "c": CID, "d": CID}
        assert not in_memory or set(users.by("city", "Oslo")) == {"a", "c", "d"}
    assert len(seen) == 2
    assert all(pointer >= kept[partition] for partition, pointer in seen), "nothing was read again"


def test_rows_that_cannot_be_decoded_are_kept_for_memory_too(stream: ps.Connection, tmp_path: Path) -> None:
    send(stream, a=ANN)
    stream.send("users", b"no JSON", key="bad")
    for _ in range(2):
        with ps.Table(stream, USERS, storage=tmp_path / "users.db", in_memory=True) as users:
            assert users["a"] == ANN
            with pytest.raises(SerdeError):
                users["bad"]


def test_rows_in_memory_need_a_file_to_be_kept(stream: ps.Connection) -> None:
    with pytest.raises(ps.ConfigError, match="add storage="):
        ps.Table(stream, USERS, in_memory=True)


def test_a_file_holds_the_rows_of_one_topic_in_one_way(stream: ps.Connection, tmp_path: Path) -> None:
    send(stream, a=ANN)
    path = tmp_path / "users.db"
    with ps.Table(stream, USERS, storage=path) as users:
        assert users["a"] == ANN
    with ps.Table(stream, USERS, storage=path, indexes=["city"]) as users:
        assert set(users.by("city", "Oslo")) == {"a"}, "rows without this index were read again"
    stream.create_topic("others", 1)
    with pytest.raises(ps.ConfigError, match="has the rows of topic 'users', not of 'others'"):
        ps.Table(stream, "others", storage=path).start()


def test_two_tables_do_not_share_a_file(stream: ps.Connection, tmp_path: Path) -> None:
    path = tmp_path / "users.db"
    with ps.Table(stream, USERS, storage=path) as first, ps.Table(stream, USERS, storage=path) as second:
        receipts = send(stream, a=ANN)

        def read_both() -> None:
            for users in (first, second):
                users.wait_for(receipts, TIMEOUT_S)
                assert users["a"] == ANN

        with pytest.raises(ps.ConfigError, match="is written by another table"):
            read_both()


def test_a_deleted_topic_is_an_error_and_one_made_again_another_table(
    stream: ps.Connection, storage: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    send(stream, a=ANN, b=BOB)
    with ps.Table(stream, USERS, **storage) as users:
        assert users["a"] == ANN
        stream.delete_topic("users")
        refused = threading.Event()
        while not refused.wait(0.01):
            try:
                assert users["a"] == ANN
            except UnknownTopicError:
                refused.set()
        stream.create_topic("users", 2)
        users.wait_for(send(stream, c=CID), TIMEOUT_S)
        assert dict(users.items()) == {"c": CID}


def test_as_of_is_the_table_before_these_pointers(stream: ps.Connection) -> None:
    with ps.Table(stream, USERS, indexes=["city"]) as users:
        users.wait_for(send(stream, a=ANN, b=BOB), TIMEOUT_S)
        then = users.pointers
        users.wait_for(send(stream, a=None, b=CID), TIMEOUT_S)
        before = users.as_of(then)
        assert dict(before.items()) == {"a": ANN, "b": BOB}
        assert set(before.by("city", "Oslo")) == {"a"}
        assert dict(users.items()) == {"b": CID}
        assert len(users.as_of(dict.fromkeys(then, 0))) == 0
        with pytest.raises(ps.ConfigError, match="pass a pointer for each"):
            users.as_of({0: 1})
        with pytest.raises(ps.ConfigError, match="has no pointer 99 yet"):
            users.as_of({0: 99, 1: 0})


def test_as_of_a_time_has_everything_up_to_it(stream: ps.Connection) -> None:
    for time_ms, user in ((1_000, ANN), (2_000, BOB), (3_000, CID)):
        stream.send(USERS, user, key="a", timestamp=time_ms)
    with ps.Table(stream, USERS) as users:
        assert [users.as_of(time_ms).get("a") for time_ms in (999, 1_000, 2_500, 3_000)] == [None, ANN, BOB, CID]


def test_a_lookup_does_not_answer_before_the_table_has_caught_up(
    stream: ps.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read = threading.Event()
    read = following.Follower._read

    def slow_read(follower: following.Follower) -> None:
        if may_read.wait(0.01):
            read(follower)

    monkeypatch.setattr(following.Follower, "_read", slow_read)
    send(stream, a=ANN)
    with ps.Table(stream, USERS, timeout_s=0.05) as users:
        assert not users.progress.is_caught_up
        with pytest.raises(BrokerUnavailableError, match="did not catch up within"):
            users["a"]
        with pytest.raises(TimeoutError):
            users.wait_until_caught_up(0.05)
        may_read.set()
        users.wait_until_caught_up(TIMEOUT_S)
        assert users["a"] == ANN


def test_a_table_that_is_not_open_says_so(stream: ps.Connection) -> None:
    users = ps.Table(stream, USERS)
    with pytest.raises(ClosedError, match="use it inside its with block"):
        users["a"]
    with users:
        assert "a" not in users
        with pytest.raises(ps.ConfigError, match="has been started already"):
            users.start()
    with pytest.raises(ClosedError):
        users.get("a")


def test_a_forked_process_is_told_to_open_its_own(stream: ps.Connection) -> None:
    send(stream, a=ANN)
    with ps.Table(stream, USERS) as users:
        assert users["a"] == ANN
        pid = os.fork()
        if pid == 0:
            try:
                users["a"]
            except ClosedError:
                os._exit(7)
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_wrong_arguments_are_refused(stream: ps.Connection) -> None:
    with pytest.raises(ps.ConfigError, match="must be a list"):
        ps.Table(stream, USERS, indexes="city")
    with pytest.raises(ps.ConfigError, match="rows of topic 'users' are bytes"):
        ps.Table(stream, "users", indexes=["city"])
    with pytest.raises(ps.ConfigError, match="plain, flat, debezium"):
        ps.Table(stream, USERS, format="avro")
    with pytest.raises(UnknownTopicError):
        ps.Table(stream, "missing").start()
    with ps.Table(stream, USERS) as users:
        stream.create_topic("others", 1)
        with pytest.raises(ps.ConfigError, match="is not a record of topic 'users'"):
            users.wait_for(stream.send("others", b"x", key="y"))


def test_missing_pointers_of_a_compacted_topic_are_not_taken_for_history(tmp_path: Path) -> None:
    """On the embedded log, where transactions leave gaps that look like those of compaction."""
    with ps.connect(f"log:{tmp_path / 'data'}") as log:
        log.create_topic("kept", 1, {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"})
        log.create_topic("users", 1, {"cleanup.policy": "compact", "delete.retention.ms": "86400000"})
        for topic in ("users", "kept"):
            named = ps.Topic(topic, User)
            with ps.Producer(log, transactional_id=f"t-{topic}") as producer:
                for user in (ANN, BOB):
                    with producer.transaction():
                        producer.send(named, user, key="a")
            with ps.Table(log, named) as users:
                assert users["a"] == BOB
                if topic == "kept":
                    assert users.as_of({0: 2})["a"] == ANN
                else:
                    with pytest.raises(HistoryLostError, match=r"min\.compaction\.lag\.ms"):
                        users.as_of({0: 2})


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_topic_of_the_log_that_is_made_again_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    monkeypatch.setattr(following, "CHECK_S", 0.05)
    with ps.connect(f"log:{tmp_path / 'data'}") as log:
        settings = {"cleanup.policy": "compact,delete"}
        log.create_topic("users", 1, settings)
        for receipt in send(log, a=ANN, b=BOB, c=CID):
            receipt.result(TIMEOUT_S)
        path = tmp_path / "users.db"
        with ps.Table(log, USERS, storage=path, in_memory=in_memory) as users:
            assert len(users) == 3
        log.delete_topic("users")
        log.create_topic("users", 1, settings)
        for receipt in send(log, x=ANN, y=BOB, z=CID):
            receipt.result(TIMEOUT_S)
        with ps.Table(log, USERS, storage=path, in_memory=in_memory) as users:
            assert set(users) == {"x", "y", "z"}, "as many records as before, but those of another topic"
        log.admin().delete_before("users", {0: 3})
        for receipt in send(log, v=ANN, w=BOB):
            receipt.result(TIMEOUT_S)
        log.admin().delete_before("users", {0: 4})
        with ps.Table(log, USERS, storage=path, in_memory=in_memory) as users:
            assert set(users) == {"w"}, "a record expired before it was read"


def test_a_table_that_was_away_for_too_long_is_read_again(tmp_path: Path) -> None:
    with ps.connect(f"log:{tmp_path / 'data'}") as log:
        log.create_topic("users", 1, {"cleanup.policy": "compact", "delete.retention.ms": "1"})
        for receipt in send(log, a=ANN, b=BOB):
            receipt.result(TIMEOUT_S)
        seen: list[str] = []
        for _ in range(2):
            users = ps.Table(log, USERS, storage=tmp_path / "users.db")
            users.on_change(lambda change: seen.append(change.key))
            with users:
                assert set(users) == {"a", "b"}
        assert seen == ["a", "b", "a", "b"], "the deletion of a row may have been compacted away in the meantime"
