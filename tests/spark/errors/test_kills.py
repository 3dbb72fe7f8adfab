"""Kill -9 of a driver whose batches have bad rows: each row is in the topic or in the dead letters, once."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from pathlib import Path

import pytest

import penstock as ps
from tests.seeds import seed_of
from tests.spark.errors.killed_program import ORDERS, PER_BATCH, Order
from tests.spark.killing import run_until

COUNT = 120
PROGRAM = ("-m", "tests.spark.errors.killed_program")


@pytest.mark.xdist_group("spark-cluster")  # it has JVMs of its own
@pytest.mark.sampled(1, among="killed drivers")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", ["before put", "after put", "after publish", "before _delivered"])
def test_each_row_is_written_or_has_one_letter_though_the_driver_is_killed(
    step: str, log_url: str, connection: ps.Connection, tmp_path: Path
) -> None:
    connection.create_topic("orders", 2)
    for number in range(COUNT):
        connection.send(ORDERS, Order("ann", number), partition=number % 2)
    connection.flush(timeout_s=60)
    batch = random.Random(seed_of()).randrange(COUNT // PER_BATCH)
    reached = tmp_path / "reached"
    assert run_until(reached.exists, [*PROGRAM, log_url, str(batch), step, str(reached)], tmp_path)
    assert not run_until(None, [*PROGRAM, log_url], tmp_path)
    written = [json.loads(record.value or b"null")["cents"] for record in connection.read("shares")]
    assert sorted(written) == [number for number in range(COUNT) if number % 10 and number % 9]
    with contextlib.closing(ps.open_dead_letters("orders.dlq", connection)) as opened:
        found = [json.loads(letter.record.value or b"null")["cents"] for letter in opened.browse(ps.DeadLetterFilter())]
        assert Counter(found) == Counter(number for number in range(COUNT) if number % 10 == 0 or number % 9 == 0)
