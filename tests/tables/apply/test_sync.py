"""Two databases in sync through the log: random transactions are captured, and applied by a process that is killed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock.model import Position
from penstock.tables.apply import Applier, compare
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock
from tests.tables.captured import CaptureProcess, confirmed_lsn, current_lsn, fresh_database, wait_a_while, wait_until
from tests.tables.random_writes import TABLES, Writer, make_tables

APPLIED = ("items", "pairs", "parted")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.mark.parametrize(("form", "case"), [(form, case) for form in ("debezium", "flat") for case in range(2)])
@pytest.mark.sampled(1)
def test_a_killed_applier_leaves_the_target_equal_to_the_source_row_by_row(
    broker: Penstock, form: str, case: int
) -> None:
    seed = seed_of() + case
    chance = random.Random(seed)
    stream, keys, name = f"kafka://{broker.bootstrap}", 60, f"sync_{uuid.uuid4().hex[:8]}"
    with fresh_database() as source, fresh_database() as target, contextlib.ExitStack() as closing:
        make_tables(source, keys, seed)
        with psycopg.connect(target, autocommit=True) as connection:
            connection.execute(TABLES)
        capture = CaptureProcess(
            source, stream, "--tables", "items", "--tables", "pairs", "--tables", "parted", "--name", name,
            "--prefix", name, "--format", form, "--heartbeat", "500ms", "--quiet",
        )  # fmt: skip
        capture.start()
        closing.callback(capture.kill)
        writers = [Writer(source, seed * 10 + number, keys=keys) for number in range(2)]
        for writer in writers:
            writer.start()
        for number in range(times(3, soak=30)):
            table = APPLIED[number % len(APPLIED)]
            before = _applied(target, table)
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "penstock.cli", "cdc", "apply", stream, f"{name}.public.{table}", target,
                    "--table", table, "--format", form, "--batch", "50", "--quiet",
                ]
            )  # fmt: skip
            closing.callback(process.wait)
            closing.callback(process.kill)
            wait_until(lambda table=table, before=before: _applied(target, table) != before, "rows change", 180.0)  # type: ignore[misc]
            wait_a_while(chance.uniform(0.0, 0.3))
            process.kill()
            process.wait()
            if number == 1:
                for writer in writers:
                    writer.finish()
        with psycopg.connect(source, autocommit=True) as connection:
            end = current_lsn(connection)
            wait_until(lambda: confirmed_lsn(connection, f"penstock_{name}") >= end, "everything is captured", 180.0)

        def finish(table: str) -> None:
            Applier(stream, f"{name}.public.{table}", target, table=table, format=form).run(end=Position.LATEST)

        with concurrent.futures.ThreadPoolExecutor() as pool:  # each waits until its group has noticed the kill
            list(pool.map(finish, APPLIED))
        for table in APPLIED:
            assert _rows(target, table) == _rows(source, table)
            assert compare(source, target, table=table, pause_s=0.0).drifted == []


def _applied(url: str, table: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(f"SELECT count(*), max(xmin::text::bigint) FROM {table}".encode()).fetchall()


def _rows(url: str, table: str) -> list[Any]:
    """Each row as PostgreSQL's own text."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET timezone = 'UTC'")
        rows = connection.execute(f"SELECT t::text FROM {table} t".encode()).fetchall()
    return sorted(rows)
