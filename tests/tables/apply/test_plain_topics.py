"""Topics that no capture wrote: rows under text keys, into a table."""

from __future__ import annotations

import datetime
import json
import random
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.cli.main import app
from penstock.errors import ConfigError, SchemaMismatchError, SerdeError
from penstock.model import Position
from penstock.streams import Connection
from penstock.tables.apply import Applier
from tests.sampling import times
from tests.seeds import seed_of
from tests.tables.apply.test_applier import query
from tests.tables.captured import wait_a_while, wait_until


def send(stream: Connection, topic: str, *changes: tuple[str | bytes | None, Any]) -> None:
    """Keys with their rows, None for a tombstone; bytes are sent as they are."""
    for key, row in changes:
        stream.send(topic, row if row is None or isinstance(row, bytes) else json.dumps(row), key=key)
    stream.flush(30)


def apply(stream: Connection, topic: str | ps.Topic[Any], target: str, *, key: str = "id", **options: Any) -> None:
    Applier(stream, topic, target, table="users", format="plain", key=key, **options).run(end=Position.LATEST)


def test_rows_are_set_and_deleted_by_their_text_key_and_columns_are_added(
    stream: Connection, topic: str, target: str
) -> None:
    send(
        stream, topic, ("ann", {"name": "Ann"}), ("bob", {"name": "Bob"}), ("zoë", {}), ("bob", None), ("nobody", None)
    )
    apply(stream, topic, target)
    assert query(target, "SELECT id, name FROM users ORDER BY id") == [("ann", "Ann"), ("zoë", None)]
    send(stream, topic, ("zoë", {"id": "zoë", "name": "Zoë", "age": 3, "tags": ["x"]}), ("ann", None))
    apply(stream, topic, target)
    apply(stream, topic, target)
    assert query(target, "SELECT id, name, age + 0, CAST(tags AS text) FROM users") == [("zoë", "Zoë", 3, '["x"]')]


@pytest.mark.parametrize("batch", [1, 100])
def test_a_row_is_what_its_last_value_says_however_changes_are_batched(
    stream: Connection, topic: str, target: str, batch: int
) -> None:
    query(target, "CREATE TABLE users (id text PRIMARY KEY, name text, note text DEFAULT 'mine')")
    send(stream, topic, ("ann", {"name": "Ann", "age": 3}), ("ann", {"age": 4}))
    apply(stream, topic, target, batch=batch)
    assert query(target, "SELECT id, name, age + 0, note FROM users") == [("ann", None, 4, "mine")]


@pytest.mark.parametrize("batch", [1, 100])
def test_keys_that_are_numbers_of_the_rows_are_numbers_in_the_table(
    stream: Connection, topic: str, target: str, batch: int
) -> None:
    users = ps.Topic(topic, dict, key=lambda user: user["id"])
    for number in (1, 2, 10):
        stream.send(users, {"id": number, "name": f"n{number}"})
    stream.flush(30)
    send(stream, topic, ("2", None), ("1", {"name": "again"}), ("-3", {"id": -3}))
    apply(stream, topic, target, batch=batch)
    assert query(target, "SELECT id, name FROM users ORDER BY id") == [(-3, None), (1, "again"), (10, "n10")]
    send(stream, topic, ("01", {"name": "another key"}))
    with pytest.raises(SchemaMismatchError, match=r"column 'id', row \{'id': '01'\}: '01' does not fit"):
        apply(stream, topic, target, batch=batch)
    assert query(target, "SELECT count(*) FROM users") == [(3,)]


@dataclass
class User:
    mail: str
    born: datetime.date
    token: uuid.UUID


def test_a_typed_topic_is_decoded_by_its_own_serde(stream: Connection, topic: str, target: str) -> None:
    users = ps.Topic(topic, User, serde="msgpack", key=lambda user: user.mail)
    stream.send(users, User("a@b.c", datetime.date(2000, 2, 29), uuid.UUID(int=7)))
    stream.flush(30)
    apply(stream, users, target, key="mail")
    rows = query(target, "SELECT mail, born, token FROM users")
    assert rows == [("a@b.c", "2000-02-29", str(uuid.UUID(int=7)))]
    stream.send(users, None, key="a@b.c")
    stream.flush(30)
    apply(stream, users, target, key="mail")
    assert query(target, "SELECT count(*) FROM users") == [(0,)]


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (None, {"name": "Ann"}, "a record has no key"),
        (b"\xff", {"name": "Ann"}, "keys must be text in UTF-8"),
        ("ann", b"name=Ann", "the value of 'ann' is not JSON"),
        ("ann", ["Ann"], "the value of 'ann' is no JSON object"),
        ("ann", {"id": "bob"}, "the row of the key 'ann' has 'bob' in 'id'"),
        ('{"id":1}', {"id": 1, "__op": "c", "__ts_ms": 1}, "pass --format debezium or flat"),
        ('{"id":1}', {"op": "c", "after": {}, "source": {}}, "pass --format debezium or flat"),
    ],
)
def test_a_record_that_is_no_row_stops_the_applier_and_what_came_before_is_applied(
    stream: Connection, topic: str, tmp_path: Path, key: str | bytes | None, value: Any, problem: str
) -> None:
    target = f"sqlite:{tmp_path / 'copy.db'}"
    send(stream, topic, ("first", {"name": "First"}))
    apply(stream, topic, target)
    send(stream, topic, (key, value), ("last", {"name": "Last"}))
    for _ in range(2):
        with pytest.raises(SerdeError, match=problem):
            apply(stream, topic, target)
    assert query(target, "SELECT id FROM users") == [("first",)]


def test_options_that_do_not_belong_together_are_refused(stream: Connection, topic: str, tmp_path: Path) -> None:
    for name, options, problem in (
        ("users", {"format": "plain"}, "format='plain' needs key"),
        ("users", {"format": "flat", "key": "id"}, "the records of a capture have the columns of their key"),
        (ps.Topic("users", dict), {}, "pass the name"),
    ):
        with pytest.raises(ConfigError, match=problem):
            Applier("log:./data", name, "sqlite:x.db", table="users", **options)  # type: ignore[arg-type]
    send(stream, topic, ("ann", {"name": "Ann"}))
    with pytest.raises(SerdeError, match="if no capture wrote the topic, pass --format plain"):
        Applier(stream, topic, f"sqlite:{tmp_path / 'x.db'}", table="users", format="flat").run(end=Position.LATEST)


def test_the_command_applies_a_plain_topic(stream: Connection, topic: str, target: str) -> None:
    send(stream, topic, ("ann", {"name": "Ann"}), ("bob", {"name": "Bob"}), ("ann", None))
    arguments = ["cdc", "apply", stream.url, topic, target, "-t", "users", "--format", "plain", "--key", "id", "--once"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.stderr
    assert "3 changes applied to users" in done.stderr
    assert query(target, "SELECT id, name FROM users") == [("bob", "Bob")]


def test_a_killed_applier_leaves_the_table_equal_to_the_topic(stream: Connection, topic: str, target: str) -> None:
    chance = random.Random(seed_of())
    query(target, "CREATE TABLE users (id text PRIMARY KEY, number bigint)")
    query(target, "CREATE TABLE applied (id text)")
    if target.startswith("sqlite:"):
        query(target, "CREATE TRIGGER log AFTER INSERT ON users BEGIN INSERT INTO applied VALUES (new.id); END")
    else:
        query(
            target,
            "CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO applied VALUES (new.id); RETURN NULL; END $$",
        )
        query(target, "CREATE TRIGGER log AFTER INSERT ON users FOR EACH ROW EXECUTE FUNCTION log()")
    rows: dict[str, int] = {}
    inserted = 0
    command = [sys.executable, "-m", "penstock.cli", "cdc", "apply", stream.url, topic, target, "-t", "users"]
    for _ in range(times(2, soak=20)):
        changes: list[tuple[str, Any]] = []
        for number in range(300):
            key = f"k{chance.randrange(50)}"
            if chance.random() < 0.3:
                rows.pop(key, None)
                changes.append((key, None))
            else:
                inserted += key not in rows
                rows[key] = number
                changes.append((key, {"number": number}))
        process = subprocess.Popen([*command, "--format", "plain", "--key", "id", "--batch", "1", "--quiet"])
        try:
            before = query(target, "SELECT count(*) FROM applied")
            send(stream, topic, *changes)
            wait_until(
                lambda before=before: query(target, "SELECT count(*) FROM applied") != before,  # type: ignore[misc]
                "rows change",
            )
            wait_a_while(chance.uniform(0.0, 0.3))
        finally:
            process.kill()
            process.wait()
    apply(stream, topic, target, batch=1)
    assert dict(query(target, "SELECT id, number FROM users")) == rows
    assert query(target, "SELECT count(*) FROM applied") == [(inserted,)], "each insert was made once"
