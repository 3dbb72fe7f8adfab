"""A capture of PostgreSQL that is killed while it sets up: the server goes on with what it was asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock.errors import ChangesLostError
from penstock.tables import Capture
from penstock.tables.cdc.postgres import snapshot, source
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock
from tests.tables.captured import CaptureProcess, fresh_database, materialised, wait_a_while, wait_until
from tests.tables.test_postgres_capture import running, topic_of


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture
def stream(broker: Penstock) -> str:
    return f"kafka://{broker.bootstrap}"


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database() as url:
        yield url


@pytest.fixture
def database(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
        connection.execute("INSERT INTO users VALUES (1, 'Ada')")
        yield connection


class Killed(BaseException):
    pass


def kill(*_: object) -> None:
    raise Killed


def names(stream: str, url: str) -> dict[int, str]:
    return {row["id"]: row["name"] for row in materialised(stream, topic_of(url, "users")).rows.values()}


def creator(database: psycopg.Connection[Any], slot: str) -> int | None:
    """The process of the server that has the slot."""
    row = database.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (slot,)).fetchone()
    return None if row is None else row[0]


def waiting_publishers(database: psycopg.Connection[Any]) -> int:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
        "AND query LIKE 'CREATE PUBLICATION%'"
    )
    (count,) = database.execute(query).fetchone() or (0,)
    return int(count)


def test_a_capture_killed_while_its_slot_is_created_sets_up_again(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    process = CaptureProcess(url, stream, "--tables", "users", "--name", "creating", "--quiet")
    with psycopg.connect(url) as writer:
        writer.execute("INSERT INTO users VALUES (2, 'Grace')")  # the slot waits until this transaction has ended
        process.start()
        wait_until(lambda: creator(database, "penstock_creating"), "the slot is being created")
        process.kill()
        killed = creator(database, "penstock_creating")
        assert killed is not None
        with running(url, stream, "users", name="creating") as capture:
            wait_until(
                lambda: capture.is_over() or creator(database, "penstock_creating") not in (None, killed),
                "the slot is created again",
            )
            writer.commit()
            database.execute("UPDATE users SET name = 'Ada L.' WHERE id = 1")
            capture.wait_for(database)
    assert names(stream, url) == {1: "Ada L.", 2: "Grace"}


def test_a_capture_killed_while_its_publication_is_created_sets_up_again(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    process = CaptureProcess(url, stream, "--tables", "users", "--name", "publishing", "--quiet")
    with psycopg.connect(url) as writer:
        writer.execute("LOCK TABLE users IN SHARE UPDATE EXCLUSIVE MODE")
        process.start()
        wait_until(lambda: waiting_publishers(database) == 1, "the publication is being created")
        process.kill()
        with running(url, stream, "users", name="publishing") as capture:
            wait_until(lambda: capture.is_over() or waiting_publishers(database) == 2, "it is created again")
            writer.commit()
            capture.wait_for(database)
    assert names(stream, url) == {1: "Ada"}


def test_a_slot_of_the_user_is_not_dropped_when_the_capture_is_killed_before_it_reads_from_it(
    url: str, stream: str, database: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE PUBLICATION penstock_given FOR TABLE users")
    database.execute("SELECT pg_create_logical_replication_slot('given', 'pgoutput')")
    database.execute("INSERT INTO users VALUES (2, 'Grace')")
    with monkeypatch.context() as killing:
        killing.setattr(source, "check_slot", kill)
        with pytest.raises(Killed):
            Capture(url, stream, tables=["users"], name="given", slot="given", snapshot="never").run()
    with running(url, stream, "users", name="given", slot="given", snapshot="never"):
        wait_until(lambda: names(stream, url) == {2: "Grace"}, "the change since the slot was created is captured")


def test_a_slot_that_was_replaced_during_the_snapshot_is_data_loss(
    url: str, stream: str, database: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(*arguments: Any) -> Any:
        read = list(snapshot.copied_columns(*arguments))
        if not database.execute("SELECT 1 FROM users WHERE id = 2").fetchone():
            database.execute("SELECT pg_drop_replication_slot('penstock_replaced')")
            database.execute("INSERT INTO users VALUES (2, 'Grace')")
            database.execute("SELECT pg_create_logical_replication_slot('penstock_replaced', 'pgoutput')")
        return read

    monkeypatch.setattr(source, "copied_columns", replace)
    with running(url, stream, "users", name="replaced") as capture:
        error = capture.wait_for_end()
    assert isinstance(error, ChangesLostError)
    assert "something else has read from it" in str(error)


@pytest.mark.parametrize("case", range(4))
@pytest.mark.sampled(1)
def test_a_capture_killed_again_and_again_while_it_starts_loses_nothing(
    url: str, stream: str, database: psycopg.Connection[Any], case: int
) -> None:
    chance = random.Random(seed_of() + case)
    name = f"starting_{case}"
    process = CaptureProcess(url, stream, "--tables", "users", "--name", name, "--quiet")
    number = 1
    with psycopg.connect(url) as writer:
        for _ in range(times(6, soak=40)):
            number += 1
            writer.execute("INSERT INTO users VALUES (%s, 'new')", (number,))
            process.start()
            wait_a_while(chance.uniform(0.3, 1.5))  # the slot is created when the transaction has ended
            if chance.random() < 0.5:
                writer.commit()
                wait_a_while(chance.uniform(0.0, 0.1))
            process.check_running()
            process.kill()
        writer.commit()
    with running(url, stream, "users", name=name) as capture:
        capture.wait_for(database)
    assert names(stream, url) == {1: "Ada"} | dict.fromkeys(range(2, number + 1), "new")
