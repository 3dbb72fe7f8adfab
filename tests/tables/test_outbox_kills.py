"""A relay that is killed at any moment, while writers commit and roll back transactions that wait for each other.

Each row counts the transactions that changed it, and each of them sends the new count. So the events of a key in the
topic must be 1, 2, 3, ... up to the row's count: none lost, none repeated, none of a transaction that was rolled back.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

import penstock as ps
from penstock.abc import TopicStream
from penstock.errors import OvertakenError, UnknownTopicError
from penstock.streams import connect
from penstock.tables import Outbox
from tests.postgres import shared_postgres
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock
from tests.tables.captured import wait_a_while, wait_until

KEYS: Final = 8
WRITERS: Final = 3
TRANSACTIONS: Final = 15


class OnPurpose(Exception):
    pass


class Writer(threading.Thread):
    """Runs some transactions, of which it rolls back some."""

    def __init__(self, url: str, outbox: Outbox, topic: ps.Topic[Any], seed: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._outbox = outbox
        self._topic = topic
        self._chance = random.Random(seed)
        self.is_done = False

    def run(self) -> None:
        with connected(self._url) as connection:
            for _ in range(TRANSACTIONS):
                with contextlib.suppress(OnPurpose):
                    self._transaction(connection)
        self.is_done = True

    def finish(self) -> None:
        self.join(60)
        assert self.is_done, "a writer failed, or has not come to its end"

    def _transaction(self, connection: Any) -> None:
        chance = self._chance
        mark = "%s" if self._url.startswith("postgresql") else "?"
        add = f"UPDATE row SET count = count + 1 WHERE key = {mark} RETURNING count"
        with self._outbox.transaction(connection) as tx:
            for key in sorted(chance.sample(range(KEYS), chance.randint(1, 3))):  # sorted: no deadlocks
                ((count,),) = connection.execute(add, (key,)).fetchall()
                tx.send(self._topic, {"key": key, "count": count}, key=str(key), headers=headers_of(count))
                wait_a_while(chance.choice((0, 0, 0.01)))  # others begin later and commit earlier
            if chance.random() < 0.3:
                raise OnPurpose


def headers_of(count: int) -> dict[str, str]:
    """Of every other event."""
    return {"count": str(count)} if count % 2 else {}


def connected(url: str) -> AbstractContextManager[Any]:
    if url.startswith("postgresql"):
        return contextlib.closing(psycopg.connect(url, autocommit=True))
    return contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:"), timeout=60))


class RelayProcess:
    """`penstock outbox relay` in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "penstock.cli", "outbox", "relay", *arguments]
        self._popen: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._popen = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)

    def kill(self) -> None:
        assert self._popen is not None
        assert self._popen.poll() is None, f"the relay ended by itself: {self._popen.communicate()[1]}"
        self._popen.kill()
        self._popen.communicate()

    def run(self) -> str:
        """To the end."""
        done = subprocess.run([*self._command, "--once"], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.sampled(1, each="database")
def test_a_relay_killed_anywhere_delivers_each_committed_event_once_and_in_order(
    broker: Penstock, database: str, keep: bool, tmp_path: Path
) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    url = f"sqlite:{tmp_path / 'shop.db'}" if database == "sqlite" else shared_postgres().fresh_database()
    stream = f"kafka://{broker.bootstrap}"
    name = f"events_{uuid.uuid4().hex[:8]}"
    topic: ps.Topic[Any] = ps.Topic(name, dict, partitions=3)
    outbox = Outbox(url)
    with connected(url) as connection:
        connection.execute("CREATE TABLE row (key integer PRIMARY KEY, count integer)")
        for key in range(KEYS):
            connection.execute(f"INSERT INTO row VALUES ({key}, 0)")
        connection.commit()
    options = ["--name", name, "--batch-rows", "5", *(["--keep"] if keep else [])]
    relay = RelayProcess(url, stream, *options)
    with connect(stream) as opened, contextlib.closing(opened.open_topic(name)) as there:
        for number in range(times(4, soak=40)):
            before = delivered(there)
            relay.start()
            writers = [Writer(url, outbox, topic, seed + number * WRITERS + each) for each in range(WRITERS)]
            for writer in writers:
                writer.start()
            wait_until(more_than(before, there), "the relay delivers")
            wait_a_while(chance.uniform(0, 0.1))
            relay.kill()
            for writer in writers:
                writer.finish()
    relay.run()
    with connected(url) as connection:
        counts = dict(connection.execute("SELECT key, count FROM row").fetchall())
        left = connection.execute("SELECT count(*) FROM penstock_outbox").fetchone()[0]
    found: dict[int, list[int]] = defaultdict(list)
    with connect(stream) as opened:
        for record in opened.read(name):
            event: dict[str, int] = topic.decode(record.value) or {}
            found[event["key"]].append(event["count"])
            assert record.headers == tuple((name, each.encode()) for name, each in headers_of(event["count"]).items())
    assert dict(found) == {key: list(range(1, count + 1)) for key, count in counts.items()}, f"seed {seed}"
    assert left == (sum(counts.values()) if keep else 0)


def delivered(topic: TopicStream) -> int:
    """How far the topic has grown, with the markers of its transactions."""
    with contextlib.suppress(UnknownTopicError):
        return sum(topic.span(partition)[1] for partition in topic.partitions())
    return 0


def more_than(before: int, topic: TopicStream) -> Callable[[], bool]:
    return lambda: delivered(topic) > before


def test_a_second_relay_takes_over_from_the_first(broker: Penstock, tmp_path: Path) -> None:
    outbox = Outbox(f"sqlite:{tmp_path / 'shop.db'}")
    stream = f"kafka://{broker.bootstrap}"
    name = f"events_{uuid.uuid4().hex[:8]}"
    first = outbox.relay(stream, name=name)
    ended: list[BaseException] = []

    def run_first() -> None:
        try:
            first.run()
        except OvertakenError as error:
            ended.append(error)

    thread = threading.Thread(target=run_first, daemon=True)
    thread.start()
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection:

        def send(number: int) -> None:
            with outbox.transaction(connection) as tx:
                tx.send(name, str(number).encode(), key=b"k")

        send(1)
        wait_until(lambda: first.delivered == 1, "the first delivers")
        second = outbox.relay(stream, name=name)
        second.run(once=True)
        send(2)
        wait_until(lambda: ended, "the first notices")
        thread.join(60)
    second.run(once=True)
    with connect(stream) as opened:
        assert [record.value for record in opened.read(name)] == [b"1", b"2"]
