"""Dead letters in PostgreSQL keep the promises, and come back when the server does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import psycopg
import pytest

from penstock.dead_letters.postgres import PostgresDeadLetters
from penstock.errors import ConfigError, ConnectionClosedError, StoreUnavailableError
from penstock.model import DeadLetterFilter
from penstock.testing.conformance.letters import dead_letters, plain_letter
from tests.postgres import shared_postgres
from tests.servers import free_ports

URL_VARIABLE: Final = "PENSTOCK_TEST_LETTERS_POSTGRES"


@pytest.fixture(scope="module", autouse=True)
def database() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        url = shared_postgres().fresh_database()
        patch.setenv(URL_VARIABLE, url)
        yield url


def in_postgres() -> PostgresDeadLetters:
    return PostgresDeadLetters(os.environ[URL_VARIABLE])


TestPostgres = dead_letters(in_postgres)


def test_a_lost_connection_is_made_again() -> None:
    letters = in_postgres()
    with psycopg.connect(os.environ[URL_VARIABLE], autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE pid != pg_backend_pid()"
        )
    letters.put([plain_letter("reconnecting", 1)])
    assert letters.count(DeadLetterFilter(group="reconnecting")) == 1
    letters.close()


def test_an_absent_server_is_told() -> None:
    with pytest.raises(StoreUnavailableError, match="is unavailable"):
        PostgresDeadLetters(f"postgresql://nobody@127.0.0.1:{free_ports(1)[0]}/x")


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="is invalid"):
        PostgresDeadLetters("postgresql://127.0.0.1/x?no_such_option=1")


def test_closed_letters_say_so(database: str) -> None:
    letters = PostgresDeadLetters(database)
    letters.close()
    with pytest.raises(ConnectionClosedError, match="are closed"):
        letters.count(DeadLetterFilter())
