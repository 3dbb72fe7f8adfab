"""A change in PostgreSQL is in the output of a running pipeline that enriches clicks: nothing is restarted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.spark.patterns import enrich
from penstock.spark.pipeline import Pipeline
from penstock.spark.tables import debezium
from tests.tables.captured import TIMEOUT_S, fresh_database
from tests.tables.test_postgres_capture import running, topic_of

CREATE: Final = "CREATE TABLE users (id int PRIMARY KEY, name text, city text)"
FIRST: Final = "INSERT INTO users VALUES (1, 'ann', 'Oslo'), (2, 'bob', 'Rome'), (3, 'cid', NULL)"
CHANGES: Final[dict[str, dict[int, tuple[str | None, str | None]]]] = {
    "UPDATE users SET city = 'Lima' WHERE id = 1": {1: ("ann", "Lima")},
    "DELETE FROM users WHERE id = 2": {2: (None, None)},
    "INSERT INTO users VALUES (4, 'dia', 'Bern')": {4: ("dia", "Bern")},
    "UPDATE users SET id = 5, city = 'Graz' WHERE id = 3": {3: (None, None), 5: ("cid", "Graz")},
    "TRUNCATE users": dict.fromkeys(range(1, 6), (None, None)),
    "INSERT INTO users VALUES (2, 'bob', 'Porto')": {2: ("bob", "Porto")},
}
"""Statements, and what clicks of these users show after each."""


@dataclass
class User:
    id: int
    name: str | None
    city: str | None


@dataclass
class Click:
    user: int
    number: int


CLICKS: Final = ps.Topic("clicks", Click, key=lambda click: click.user)


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database() as found:
        yield found


def test_a_change_in_the_database_is_in_the_next_enriched_rows_of_a_running_pipeline(
    spark: SparkSession, log_url: str, connection: ps.Connection, url: str
) -> None:
    for topic in ("clicks", "enriched"):
        connection.create_topic(topic, 1)
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(CREATE)
        database.execute(FIRST)
        with running(url, log_url, "public.users") as capture:
            capture.wait_for(database)
            with (
                Pipeline("clicks", log_url, spark=spark) as pipeline,
                connection.read("enriched", "earliest", follow=True, timeout_s=TIMEOUT_S) as enriched,
            ):
                users = debezium(pipeline.table(topic_of(url, "users")), User, key=["id"]).where("not deleted")
                clicks = pipeline.read(CLICKS).select("user", "number")
                pipeline.write(enrich(clicks, users, {"user": "id"}, columns=["name", "city"]), "enriched", key="user")
                pipeline.start()
                known: dict[int, tuple[str | None, str | None]]
                known = {1: ("ann", "Oslo"), 2: ("bob", "Rome"), 3: ("cid", None), 4: (None, None), 5: (None, None)}
                assert _clicked(pipeline, connection, enriched, 0) == known
                for number, (statement, changed) in enumerate(CHANGES.items(), 1):
                    database.execute(statement.encode())
                    begun_s = time.monotonic()
                    capture.wait_for(database)
                    known |= changed
                    assert _clicked(pipeline, connection, enriched, number) == known, statement
                    print(f"{statement}: in the output after {time.monotonic() - begun_s:.2f} s")


def _clicked(
    pipeline: Pipeline, connection: ps.Connection, enriched: Iterator[ps.Record], number: int
) -> dict[int, tuple[Any, Any]]:
    """Each user clicks once; returns what the enriched clicks say about them."""
    for user in range(1, 6):
        connection.send(CLICKS, Click(user, number))
    connection.flush(timeout_s=TIMEOUT_S)
    found: dict[int, tuple[Any, Any]] = {}
    for record in enriched:
        row = json.loads(record.value or b"")
        assert row["number"] == number
        found[row["user"]] = (row.get("name"), row.get("city"))
        if len(found) == 5:
            return found
    pipeline.wait(0.0)  # raises what went wrong, if anything did
    raise AssertionError(f"only {len(found)} of 5 clicks came back within {TIMEOUT_S:g} s")
