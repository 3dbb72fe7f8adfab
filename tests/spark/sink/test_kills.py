"""Kill -9 of the driver and of the broker: every row is there once, in the topic and in the tables."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.spark import TopicTarget
from penstock.spark.sink.staging import StagingFolder, stage
from penstock.spark.sink.target import Delivered, QueryIdentity
from penstock.spark.sink.topic_delivery import StagedRows
from penstock.streams.kafka.producing.producer import Row
from tests.lakes.readers import rows_of, uri_of
from tests.postgres import shared_postgres
from tests.sampling import sample
from tests.seeds import seed_of
from tests.servers import Penstock
from tests.spark.sink.frames import numbered, numbers_in, once_each

FILES = 12
"""One batch each: more than there are steps, as each of them kills another batch."""
EMPTY_LINES_A_FILE = 3
ROWS_A_FILE = 300
RUN_S = 300
STEPS = [
    "after append_rows",
    "after commit",
    "after letters",
    "before Spark's commit",
    "after tasks have written",
    "after the mark of tasks",
    "after one EndTxn",
    "after every EndTxn",
    "after the end is confirmed",
    "after a commit of Delta",
    "after a commit of Iceberg",
]


@pytest.mark.xdist_group("spark-cluster")  # it has JVMs of its own
@pytest.mark.sampled(1, among="killed drivers")
@pytest.mark.timeout(1_200)
def test_every_row_is_there_once_after_kills_of_the_driver(tmp_path: Path, sink_server: Penstock, topic: str) -> None:
    chance = random.Random(seed_of())
    steps = sample(STEPS, 2)
    chance.shuffle(steps)
    folder = tmp_path / "input"
    folder.mkdir()
    for number in range(FILES):
        first = number * ROWS_A_FILE
        lines = "".join(f"{each}\n" for each in range(first, first + ROWS_A_FILE))
        (folder / f"{number}.txt").write_text(lines + EMPTY_LINES_A_FILE * "\n")
        os.utime(folder / f"{number}.txt", (1_700_000_000 + number, 1_700_000_000 + number))
    told: dict[str, Any] = {
        "input": str(folder),
        "checkpoint": str(tmp_path / "checkpoint"),
        "url": f"kafka://{sink_server.bootstrap}",
        "topic": topic,
        "parallel": f"{topic}-parallel",
        "letters": f"{topic}.dlq",
        "sqlite": f"sqlite:{tmp_path / 'numbers.db'}",
        "postgres": shared_postgres().fresh_database(),
        "delta": uri_of("delta", tmp_path, "numbers"),
        "iceberg": uri_of("iceberg", tmp_path / "lake", "numbers"),
    }
    for batch, step in zip(sorted(chance.sample(range(FILES - 1), len(steps))), steps, strict=True):
        assert _run({**told, "deaths": {str(batch): step}}, tmp_path) == -signal.SIGKILL, f"{step} in batch {batch}"
    assert _run({**told, "deaths": {}}, tmp_path) == 0
    wanted = once_each(0, FILES * ROWS_A_FILE)
    with penstock.connect(told["url"]) as connection:
        assert numbers_in(connection, topic) == wanted
        assert numbers_in(connection, f"{topic}-parallel") == wanted
        with contextlib.closing(penstock.open_dead_letters(told["letters"], connection)) as letters:
            found = [letter.record.offset for letter in letters.browse(penstock.DeadLetterFilter(), 1_000)]
    of_a_batch = 3 * EMPTY_LINES_A_FILE  # one of each table with a key
    assert Counter(found) == dict.fromkeys(range(FILES), of_a_batch)
    with sqlite3.connect(tmp_path / "numbers.db") as database:
        for table in ("numbers", "keyed"):
            assert sorted(database.execute(f"SELECT number FROM {table}")) == [(each,) for each in sorted(wanted)]
    with psycopg.connect(told["postgres"]) as server:
        for table in ("numbers", "keyed"):
            assert sorted(server.execute(f"SELECT number FROM {table}")) == [(each,) for each in sorted(wanted)]
    for lake in ("delta", "iceberg"):
        assert sorted(row["number"] for row in rows_of(told[lake])) == sorted(wanted)
    assert not list(tmp_path.glob("checkpoint-staging/**/*.arrow"))


def _run(told: dict[str, Any], folder: Path) -> int:
    """Run the program to its end, and give its exit code."""
    command = [sys.executable, "-m", "tests.spark.sink.dying_query", json.dumps(told)]
    with open(folder / "output.txt", "ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            return process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            text = (folder / "output.txt").read_text(errors="replace")
            pytest.fail(f"the program did not end within {RUN_S} s:\n{text[-3_000:]}")


def test_a_broker_that_is_killed_inside_the_transaction_costs_nothing(
    spark: SparkSession, tmp_path: Path, identity: QueryIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Penstock(tmp_path / "broker") as server, penstock.connect(f"kafka://{server.bootstrap}") as connection:
        delivery = TopicTarget(f"kafka://{server.bootstrap}", "out", partitions=2).open(identity)
        try:
            delivery.deliver(numbered(spark, 0, 100), 0)
            real = StagedRows.__call__
            killed: list[int] = []

            def killing(self: StagedRows) -> Iterator[Row]:
                for number, row in enumerate(real(self)):
                    if number == 5_000 and not killed:
                        killed.append(server.pid)
                        server.kill()
                        server.start()
                    yield row

            monkeypatch.setattr(StagedRows, "__call__", killing)
            assert delivery.deliver(numbered(spark, 100, 20_000), 1) == Delivered(19_900)
            assert killed
            server.kill()
            server.start()
            delivery.deliver(numbered(spark, 20_000, 20_100), 2)
            assert numbers_in(connection, "out") == once_each(0, 20_100)
        finally:
            delivery.close()


def test_of_several_attempts_at_a_task_one_counts(spark: SparkSession, tmp_path: Path) -> None:
    folder = StagingFolder(str(tmp_path / "staging"))
    stage(numbered(spark, 0, 1_000), folder, 0, inline_bytes=100)  # what failed and speculative tasks leave
    counted = stage(numbered(spark, 0, 1_000), folder, 0, inline_bytes=100)
    assert len(list((tmp_path / "staging").rglob("*.arrow"))) == 4
    values = [int(value) for batch in counted.batches() for value in batch.column("value").to_pylist()]
    assert sorted(values) == list(range(1_000))
    counted.discard()
    assert not list((tmp_path / "staging").rglob("*.arrow"))
