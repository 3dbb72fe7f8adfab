"""A table beside other processes: it is killed, fed by a capture of PostgreSQL, and asked over HTTP."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

import penstock as ps
from penstock.tables import Capture
from tests.sampling import times
from tests.seeds import seed_of
from tests.tables.captured import fresh_database, wait_a_while, wait_until

PROGRAM: Final = Path(__file__).with_name("table_to_kill.py")
TIMEOUT_S: Final = 60.0


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ps.Connection]:
    with ps.connect(f"log:{tmp_path / 'data'}") as connection:
        yield connection


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_a_killed_table_has_lost_nothing_and_repeats_nothing(log: ps.Connection, tmp_path: Path, where: str) -> None:
    chance = random.Random(seed_of())
    log.create_topic("users", 2, {"cleanup.policy": "compact"})
    storage = tmp_path / "users.db"
    expected: dict[str, bytes] = {}
    sent = 0

    def write(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            key = str(chance.randrange(300))
            value = None if chance.random() < 0.3 else str(sent).encode()
            log.send("users", value, key=key)
            sent += 1
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value

    for _ in range(times(2, soak=40)):
        command = [sys.executable, str(PROGRAM), log.url, str(storage), where]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            try:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
                write(chance.randrange(500, 3_000))
                wait_a_while(chance.random() * 0.05)
            finally:
                child.kill()
    log.flush(TIMEOUT_S)
    with contextlib.closing(sqlite3.connect(storage)) as file:
        kept = {at: int(next) for at, next in file.execute("SELECT partition, next FROM penstock_table_pointers")}
    read: list[tuple[int, int]] = []
    users = ps.Table(log, "users", storage=storage, in_memory=where == "memory")
    users.on_change(lambda change: read.append((change.partition, change.pointer)))
    with users:
        assert dict(users.items()) == expected
        assert len(users) == len(expected)
    assert kept
    assert all(pointer >= kept.get(partition, 0) for partition, pointer in read), "it continued where it was killed"


@dataclass
class User:
    id: int
    name: str
    city: str | None = None


@pytest.mark.parametrize("format", ["debezium", "flat"])
def test_a_table_follows_a_table_of_postgresql(format: str, log: ps.Connection) -> None:
    with (
        fresh_database() as source,
        psycopg.connect(source, autocommit=True) as database,
        Capture(source, log, tables=["public.users"], format=format, prefix="shop") as capture,
    ):
        database.execute("CREATE TABLE users (id int PRIMARY KEY, name text, city text)")
        database.execute("INSERT INTO users VALUES (1, 'ann', 'Oslo'), (2, 'bob', NULL)")
        running = threading.Thread(target=capture.run)
        running.start()
        try:
            topic = "shop.public.users"
            wait_until(lambda: topic in log.topics(), "the topic is there")
            with ps.Table(log, ps.Topic(topic, User), format=format, indexes=["city"]) as users:

                def wait_for(*rows: User) -> None:
                    wait_until(lambda: sorted(users.items()) == [(row.id, row) for row in rows], f"{rows} are visible")

                wait_for(User(1, "ann", "Oslo"), User(2, "bob"))
                assert users[1].city == "Oslo"
                database.execute("UPDATE users SET city = 'Rome' WHERE id = 2; DELETE FROM users WHERE id = 1")
                wait_for(User(2, "bob", "Rome"))
                assert set(users.by("city", "Rome")) == {2}
                database.execute("TRUNCATE users; INSERT INTO users VALUES (3, 'cid', 'Rome')")
                wait_for(User(3, "cid", "Rome"))
        finally:
            capture.stop()
            running.join()


def get(url: str, **headers: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_table_answers_over_http() -> None:
    with ps.connect("memory:served-table") as stream:
        stream.create_topic("users", 1)
        topic = ps.Topic("users", User)
        for number, name in enumerate(["ann", "bob", "cid"]):
            stream.send(topic, User(number, name, "Oslo" if number else None), key=f"{number}/å")
        stream.send("users", b"no user", key="healthz")
        with ps.Table(stream, topic, indexes=["city", "id"]) as users:
            users.wait_until_caught_up(TIMEOUT_S)
            with users.serve("127.0.0.1:0") as server:
                ann, bob, cid = (
                    {"id": n, "name": name, "city": "Oslo" if n else None}
                    for n, name in enumerate(("ann", "bob", "cid"))
                )
                assert get(f"{server.url}/1%2F%C3%A5") == (HTTPStatus.OK, bob)
                assert get(f"{server.url}/x")[0] == HTTPStatus.NOT_FOUND
                rows = [{"key": "1/å", "row": bob}, {"key": "2/å", "row": cid}]
                assert get(f"{server.url}/?city=Oslo") == (HTTPStatus.OK, {"rows": rows, "total": 2})
                assert get(f"{server.url}/?city=Oslo&limit=1") == (HTTPStatus.OK, {"rows": rows[:1], "total": 2})
                assert get(f"{server.url}/?city=null")[1]["rows"] == [{"key": "0/å", "row": ann}]
                assert get(f"{server.url}/?id=1")[1]["rows"] == [rows[0]], "a number as JSON writes it"
                status, found = get(f"{server.url}/?name=ann")
                assert status == HTTPStatus.BAD_REQUEST
                assert "no index 'name'" in found["error"]
                assert get(f"{server.url}/?limit=x&city=Oslo")[0] == HTTPStatus.BAD_REQUEST
                assert get(f"{server.url}/")[1]["rows"] == 3
                assert get(f"{server.url}/healthz") == (HTTPStatus.OK, {"status": "ok", "problems": []})
                assert get(f"{server.url}/readyz")[0] == HTTPStatus.OK
                status, found = get(f"{server.url}/%68ealthz")
                assert status == HTTPStatus.SERVICE_UNAVAILABLE, "the row with this key, which is no user"
                assert "users" in found["error"]
                assert get(f"{server.url}/1", Host="rebound.example:80")[0] == HTTPStatus.FORBIDDEN
                with pytest.raises(ps.ConfigError, match="Choose another port"):
                    users.serve(server.address)
                stream.delete_topic("users")
                wait_until(lambda: get(f"{server.url}/readyz")[0] == HTTPStatus.SERVICE_UNAVAILABLE, "it is not ready")
                assert get(f"{server.url}/1%2F%C3%A5")[0] == HTTPStatus.SERVICE_UNAVAILABLE
            with pytest.raises(ps.ConfigError, match="read its rows, without a login"):
                users.serve("0.0.0.0:0")
            with users.serve("0.0.0.0:0", insecure=True) as open_server:
                assert open_server.address.startswith("0.0.0.0:")
        with pytest.raises(urllib.error.URLError):
            get(server.url)
