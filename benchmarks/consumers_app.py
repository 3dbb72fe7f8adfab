"""An app on the jobs of the consumer benchmarks, in each of the ways that are measured.

`python -m benchmarks.consumers_app JOB BOOTSTRAP TOPIC JSON-OPTIONS` is one measurement, and prints JSON.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import penstock
from benchmarks.stopwatch import Stopwatch
from penstock.app import App
from penstock.checkpoints.postgres.store import PostgresCheckpoints
from penstock.consuming.context import Context

BATCH: Final = 2_000
COPY: Final = "COPY effect (value) FROM STDIN (FORMAT BINARY)"
INSERT: Final = "INSERT INTO effect (value) VALUES (%s)"


def noop(app: App, topic: str, watch: Stopwatch, **options: Any) -> None:
    """The handler takes the value, and does nothing but count."""
    tick = watch.tick

    @app.handle(topic, end="latest", **options)
    def handle(value: bytes) -> None:
        tick()


def sleeping(app: App, topic: str, watch: Stopwatch, **options: Any) -> None:
    """The handler waits for 1 ms, as for an answer from somewhere."""

    @app.handle(topic, end="latest", **options)
    def handle(value: bytes) -> None:
        time.sleep(0.001)
        watch.tick()


def forwarding(app: App, topic: str, watch: Stopwatch, **options: Any) -> None:
    """The handler returns the value, for another topic."""

    @app.handle(topic, end="latest", **options)
    def handle(value: bytes) -> bytes:
        watch.tick()
        return value


def inserting(app: App, topic: str, watch: Stopwatch, **options: Any) -> None:
    """A row for each record, in the transaction that the checkpoint is in."""
    statement = _insert(options.pop("database"))

    @app.handle(topic, end="latest", guarantee="exactly-once", **options)
    def handle(value: bytes, ctx: Context) -> None:
        with ctx.transaction() as database:
            database.execute(statement, (value,))
        watch.tick()


def inserting_many(app: App, topic: str, watch: Stopwatch, **options: Any) -> None:
    """The same with a handler that takes lists."""
    statement = _insert(options.pop("database"))

    @app.handle(topic, end="latest", guarantee="exactly-once", batch=BATCH, **options)
    def handle(values: list[bytes], ctx: Context) -> None:
        with ctx.transaction() as database:
            database.cursor().executemany(statement, [(value,) for value in values])
        watch.add(len(values))


def inserting_arrays(app: App, topic: str, watch: Stopwatch, **options: Any) -> None:
    """The same with one statement for a list, as an array of PostgreSQL."""
    del options["database"]

    @app.handle(topic, end="latest", guarantee="exactly-once", batch=BATCH, **options)
    def handle(values: list[bytes], ctx: Context) -> None:
        with ctx.transaction() as database:
            database.execute("INSERT INTO effect (value) SELECT unnest(%b::bytea[])", (values,))
        watch.add(len(values))


def copying(app: App, topic: str, watch: Stopwatch, **options: Any) -> None:
    """The same with PostgreSQL's COPY."""
    del options["database"]

    @app.handle(topic, end="latest", guarantee="exactly-once", batch=BATCH, **options)
    def handle(values: list[bytes], ctx: Context) -> None:
        with ctx.transaction() as database, database.cursor().copy(COPY) as copy:
            copy.set_types(["bytea"])
            for value in values:
                copy.write_row((value,))
        watch.add(len(values))


JOBS: Final[dict[str, Callable[..., None]]] = {
    each.__name__: each for each in (noop, sleeping, forwarding, inserting, inserting_many, inserting_arrays, copying)
}


def _insert(database: str) -> str:
    return INSERT if database.startswith("postgresql") else INSERT.replace("%s", "?")


def _prepared(database: str) -> Callable[[], int]:
    """Makes the table for the effects, and gives what counts them."""
    if database.startswith("postgresql"):
        import psycopg

        with psycopg.connect(database) as connection:
            connection.execute("CREATE TABLE effect (value bytea)")

        def count() -> int:
            with psycopg.connect(database) as connection:
                row = connection.execute("SELECT count(*) FROM effect").fetchone()
                return int(row[0]) if row else 0

        return count
    path = database.removeprefix("sqlite:")
    first = sqlite3.connect(path)
    first.execute("PRAGMA journal_mode=WAL")
    first.execute("CREATE TABLE effect (id INTEGER PRIMARY KEY, value BLOB)")
    first.close()

    def count_rows() -> int:
        connection = sqlite3.connect(path)
        try:
            return int(connection.execute("SELECT count(*) FROM effect").fetchone()[0])
        finally:
            connection.close()

    return count_rows


def measure(
    job: str,
    bootstrap: str,
    topic: str,
    *,
    count: int,
    group: str,
    checkpoints: str | PostgresCheckpoints | None = None,
    send_ahead: bool = True,
    **options: Any,
) -> float:
    watch = Stopwatch(count)
    if not send_ahead:
        checkpoints = PostgresCheckpoints(options["database"], send_ahead=False)
    effects = _prepared(options["database"]) if "database" in options else None
    with penstock.connect(f"kafka://{bootstrap}") as connection:
        app = App(connection, group=group, checkpoints=checkpoints or options.get("database"))
        JOBS[job](app, topic, watch, **options)
        app.run()
    if effects is not None and effects() != count:
        raise SystemExit(f"{effects()} effects of {count} records")
    return watch.rate


if __name__ == "__main__":
    print(json.dumps({"records_per_s": measure(*sys.argv[1:4], **json.loads(sys.argv[4]))}))
