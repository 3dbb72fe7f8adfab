"""Kill -9 of a driver whose batches have bad rows: each row is in the topic or in the dead letters, once."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pytest

import penstock as ps
from tests.seeds import seed_of
from tests.spark.errors.killed_program import ORDERS, PER_BATCH, Order
from tests.spark.killing import run_until

COUNT = 120
PROGRAM = ("-m", "tests.spark.errors.killed_program")


BEFORE_COMMIT = ("before put", "after put")
STEPS = (*BEFORE_COMMIT, "before _delivered")


@pytest.mark.xdist_group("spark-cluster")  # it has JVMs of its own
@pytest.mark.sampled(2, among="killed drivers of bad rows")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("target", "step"),
    [
        ("shares", "after publish"),
        *((target, step) for target in ("shares", "state", "sqlite", "delta") for step in STEPS),
    ],
)
def test_each_row_is_written_or_has_one_letter_though_the_driver_is_killed(
    target: str, step: str, log_url: str, connection: ps.Connection, tmp_path: Path
) -> None:
    connection.create_topic("orders", 2)
    for number in range(COUNT):
        connection.send(ORDERS, Order("ann", number), partition=number % 2)
    connection.flush(timeout_s=60)
    batch = random.Random(seed_of()).randrange(COUNT // PER_BATCH)
    reached = tmp_path / "reached"
    places = {"sqlite": f"sqlite:{tmp_path / 'shop.db'}", "delta": str(tmp_path / "table")}
    arguments = [*PROGRAM, log_url, places.get(target, target)]
    assert run_until(reached.exists, [*arguments, str(batch), step, str(reached)], tmp_path)
    if target in ("shares", "state") and step in BEFORE_COMMIT:
        assert len(letters(connection)) == len(lost(batch * PER_BATCH)), "letters are committed with their batch"
    assert not run_until(None, arguments, tmp_path)
    rows = written(connection, places.get(target, ""))
    good = [number for number in range(COUNT) if number % 10 and number % 9]
    assert sorted(row["cents"] for row in rows) == good
    if target == "state":
        assert sorted(row["number"] for row in rows) == [*range(1, len(good) + 1)]
    assert Counter(letters(connection)) == Counter(lost(COUNT))


def lost(count: int) -> list[int]:
    """Those of the first orders that go to the dead letters."""
    return [number for number in range(count) if number % 10 == 0 or number % 9 == 0]


def letters(connection: ps.Connection) -> list[int]:
    with contextlib.closing(ps.open_dead_letters("orders.dlq", connection)) as opened:
        return [json.loads(letter.record.value or b"null")["cents"] for letter in opened.browse(ps.DeadLetterFilter())]


def written(connection: ps.Connection, place: str) -> list[dict[str, Any]]:
    if place.startswith("sqlite:"):
        with contextlib.closing(sqlite3.connect(place.removeprefix("sqlite:"))) as database:
            return [{"cents": cents} for (cents,) in database.execute("SELECT cents FROM shares")]
    if place:
        rows: list[dict[str, Any]] = deltalake.DeltaTable(place).to_pyarrow_table().to_pylist()
        return rows
    return [json.loads(record.value or b"null") for record in connection.read("shares")]
