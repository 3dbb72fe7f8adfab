"""What a capture does when a captured table is renamed, created again, or leaves the publication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock.errors import ChangesLostError, ConfigError
from penstock.tables import Capture
from penstock.tables.cdc.postgres import catalog, changes, source
from tests.servers import Penstock
from tests.tables.captured import fresh_database, materialised, wait_until
from tests.tables.test_postgres_capture import running, state_of, topic_of, values_of


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
        connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
        connection.execute("INSERT INTO users VALUES (1, 'Ada'), (2, 'Grace')")
        yield connection


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures look after their tables all the time."""
    monkeypatch.setattr(changes, "LOOK_S", 0.05)


def rows(stream: str, url: str, table: str = "users") -> dict[int, str]:
    return {row["id"]: row["name"] for row in materialised(stream, topic_of(url, table)).rows.values()}


def test_a_table_that_is_renamed_is_refused_and_goes_on_without_a_loss_when_it_is_renamed_back(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    with running(url, stream, "users") as capture:
        capture.wait_for(database)
        with database.transaction():
            database.execute("INSERT INTO users VALUES (3, 'last of the old name')")
        database.execute("ALTER TABLE users RENAME TO people")
        database.execute("INSERT INTO people VALUES (4, 'first of the new name')")
        error = capture.wait_for_end()
    assert isinstance(error, ConfigError)
    assert "public.users is captured, and was renamed to public.people: rename it back" in str(error)
    assert sorted(rows(stream, url)) == [1, 2, 3]
    with pytest.raises(ConfigError, match="no table matches 'users'"):
        Capture(url, stream, tables=["users"]).run()
    with pytest.raises(ConfigError, match=r"renamed to public\.people"):
        Capture(url, stream, tables=["public.*"]).run()
    database.execute("ALTER TABLE people RENAME TO users")
    with running(url, stream, "users") as capture:
        capture.wait_for(database)
    assert sorted(rows(stream, url)) == [1, 2, 3, 4]
    assert len(values_of(stream, topic_of(url, "users"))) == 4


def test_large_values_of_a_table_that_was_renamed_are_not_given_up(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE documents (id int PRIMARY KEY, body text, note text)")
    database.execute("ALTER TABLE documents ALTER body SET STORAGE EXTERNAL")
    database.execute("INSERT INTO documents VALUES (1, repeat('x', 5000), 'a')")
    with running(url, stream, "documents") as capture:
        capture.wait_for(database)
        with database.transaction():  # the value that does not change is looked up when it is gone by that name
            database.execute("UPDATE documents SET note = 'b'")
            database.execute("ALTER TABLE documents RENAME TO papers")
        assert "was renamed to public.papers" in str(capture.wait_for_end())
    database.execute("ALTER TABLE papers RENAME TO documents")
    with running(url, stream, "documents") as capture:
        capture.wait_for(database)
    (row,) = materialised(stream, topic_of(url, "documents")).rows.values()
    assert row == {"id": 1, "body": "x" * 5000, "note": "b"}


def test_a_renamed_table_without_changes_is_noticed_too(
    url: str, stream: str, database: psycopg.Connection[Any], often: None
) -> None:
    with running(url, stream, "users") as capture:
        capture.wait_for(database)
        database.execute("ALTER TABLE users RENAME TO people")
        assert "was renamed to public.people" in str(capture.wait_for_end())


def test_a_renamed_table_is_captured_under_its_new_name_when_that_is_asked_for(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    with running(url, stream, "users", name="renamed") as capture:
        capture.wait_for(database)
    database.execute("INSERT INTO users VALUES (3, 'Alan')")
    database.execute("ALTER TABLE users RENAME TO people")
    database.execute("UPDATE people SET name = 'Ada L.' WHERE id = 1")
    with running(url, stream, "people", name="renamed") as capture:
        capture.wait_for(database)
        database.execute("DELETE FROM people WHERE id = 2")
        capture.wait_for(database)
    assert rows(stream, url, "people") == {1: "Ada L.", 3: "Alan"}


def test_a_table_that_was_created_again_is_read_again(url: str, stream: str, database: psycopg.Connection[Any]) -> None:
    with running(url, stream, "users") as capture:
        capture.wait_for(database)
    database.execute("INSERT INTO users VALUES (3, 'of the old table'), (4, 'of the old table')")
    database.execute("DROP TABLE users")
    database.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO users VALUES (4, 'of the new table'), (5, 'too')")
    with running(url, stream, "users") as capture:
        capture.wait_for(database)
        database.execute("INSERT INTO users VALUES (6, 'later')")
        capture.wait_for(database)
    assert rows(stream, url) == {4: "of the new table", 5: "too", 6: "later"}


@pytest.mark.parametrize("how", ["created again", "swapped", "removed", "removed and added"])
def test_a_running_capture_reads_a_table_again_whose_changes_it_did_not_get(
    url: str, stream: str, database: psycopg.Connection[Any], often: None, how: str
) -> None:
    publication = f"penstock_{url.rpartition('/')[2]}"
    with running(url, stream, "users", "other") as capture:
        capture.wait_for(database)
        with database.transaction():
            if how == "created again":
                database.execute("DROP TABLE users")
                database.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
            elif how == "swapped":
                database.execute("ALTER TABLE users RENAME TO users_old")
                database.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
            else:
                database.execute(f"ALTER PUBLICATION {publication} DROP TABLE users".encode())
            database.execute("DELETE FROM users")
            database.execute("INSERT INTO users VALUES (7, 'unseen')")
        if how == "removed and added":
            database.execute(f"ALTER PUBLICATION {publication} ADD TABLE users".encode())
        wait_until(lambda: capture.is_over() or rows(stream, url) == {7: "unseen"}, "the table is read again")
        database.execute("INSERT INTO users VALUES (8, 'seen')")
        capture.wait_for(database)
        wait_until(lambda: capture.is_over() or rows(stream, url) == {7: "unseen", 8: "seen"}, "changes follow")
        assert capture.error is None


def test_a_table_that_was_removed_while_the_capture_was_away_is_read_again(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    with running(url, stream, "users", name="away") as capture:
        capture.wait_for(database)
    database.execute("ALTER PUBLICATION penstock_away SET TABLE other")
    database.execute("DELETE FROM users WHERE id = 1")
    with pytest.raises(ChangesLostError, match="--snapshot initial"):
        Capture(url, stream, tables=["users"], name="away", snapshot="never").run()
    database.execute("ALTER PUBLICATION penstock_away SET TABLE users")
    with running(url, stream, "users", name="away") as capture:
        capture.wait_for(database)
    assert rows(stream, url) == {2: "Grace"}


def test_a_capture_killed_right_after_it_published_a_table_again_still_reads_it(
    url: str, stream: str, database: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(url, stream, "users", name="killed") as capture:
        capture.wait_for(database)
    database.execute("ALTER PUBLICATION penstock_killed SET TABLE other")
    database.execute("DELETE FROM users WHERE id = 1")

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as killing:
        killing.setattr(source, "wait_for_running_transactions", kill)
        with pytest.raises(Killed):
            Capture(url, stream, tables=["users"], name="killed").run()
    published = database.execute("SELECT tablename FROM pg_publication_tables WHERE pubname = 'penstock_killed'")
    assert ("users",) in published.fetchall()
    with running(url, stream, "users", name="killed") as capture:
        capture.wait_for(database)
    assert rows(stream, url) == {2: "Grace"}


def test_a_table_that_is_published_again_is_read_when_open_transactions_have_ended(
    url: str,
    stream: str,
    database: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(catalog, "_LONG_S", 0.1)
    with running(url, stream, "users", name="open") as capture:
        capture.wait_for(database)
    database.execute("ALTER PUBLICATION penstock_open SET TABLE other")
    with psycopg.connect(url) as writer:
        writer.execute("UPDATE users SET name = 'written before it was published' WHERE id = 1")
        with running(url, stream, "users", name="open") as capture:
            wait_until(lambda: "the snapshot of a table waits for the transactions" in caplog.text, "it waits")
            assert "user penstock" in caplog.text
            writer.commit()
            capture.wait_for(database)
    assert rows(stream, url) == {1: "written before it was published", 2: "Grace"}


def test_a_table_missing_in_a_publication_of_the_user_is_refused(
    url: str, stream: str, database: psycopg.Connection[Any], often: None
) -> None:
    database.execute("CREATE PUBLICATION given FOR TABLE users")
    with running(url, stream, "users", publication="given") as capture:
        capture.wait_for(database)
        database.execute("ALTER PUBLICATION given SET TABLE other")
        assert 'ALTER PUBLICATION "given" ADD TABLE' in str(capture.wait_for_end())
    database.execute("DELETE FROM users WHERE id = 1")
    database.execute("ALTER PUBLICATION given ADD TABLE users")
    with running(url, stream, "users", publication="given") as capture:
        capture.wait_for(database)
    assert rows(stream, url) == {2: "Grace"}


def test_a_dropped_table_ends_the_capture_unless_a_pattern_named_it(
    url: str, stream: str, database: psycopg.Connection[Any], often: None
) -> None:
    with running(url, stream, "public.*", name="pattern") as capture:
        capture.wait_for(database)
        database.execute("DROP TABLE other")
        database.execute("INSERT INTO users VALUES (3, 'Alan')")
        wait_until(lambda: capture.is_over() or 3 in rows(stream, url), "changes of the other table follow")
        wait_until(lambda: capture.is_over() or set(_left(stream)) == {"public.other"}, "it is left")
        database.execute("DROP TABLE users")
        assert "no table matches" in str(capture.wait_for_end())


def _left(stream: str) -> list[str]:
    found = state_of(stream, "pattern")
    return [name.removeprefix("table/") for name, value in found.items() if _is_left(value)]


def _is_left(value: Any) -> bool:
    return isinstance(value, dict) and value.get("snapshot") == "left"
