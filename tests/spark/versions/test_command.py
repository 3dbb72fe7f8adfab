"""`penstock run --reprocess` as a whole, beside a first version that runs in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from penstock import Connection
from penstock.cli import programs, reprocess
from penstock.cli.reprocess import ReprocessOptions, reprocess_file
from penstock.spark.pipeline import Pipeline
from penstock.spark.run.settings import Engine, RunSettings
from penstock.spark.sessions.opening import has_connector
from tests.cli.running import COMMAND, Command
from tests.servers import ServerProcess

TIMEOUT_S: Final = 180.0

PROGRAM: Final = """
import sys
from pyspark.sql import functions as F
from penstock.spark.pipeline import Pipeline
from prices import price

pipe = Pipeline("shop", sys.argv[1])
orders = pipe.read("orders").select("key", F.col("value").cast("string").cast("long").alias("count"))
pipe.write(orders.select("key", price("count").cast("string").alias("value")), "prices")
"""
PRICES: Final = "def price(count):\n    from pyspark.sql import functions as F\n    return F.col(count) * {rate}\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program with a price of 2; what it changes in this process is put back afterwards."""
    for name in ("__main__", "prices"):
        monkeypatch.setitem(sys.modules, name, sys.modules["__main__"])
    monkeypatch.delitem(sys.modules, "prices")
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(programs, "stop_session", lambda: None)
    monkeypatch.setattr(reprocess, "stop_session", lambda: None)
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "shop.py").write_text(PROGRAM)
    (folder / "prices.py").write_text(PRICES.format(rate=2))
    return folder / "shop.py"


def _values(connection: Connection, topic: str) -> list[int]:
    if topic not in connection.topics():
        return []
    return sorted(int(record.value or b"") for record in connection.read(topic))


def wait_for(connection: Connection, topic: str, values: list[int], process: ServerProcess, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while _values(connection, topic) != values:
        assert process.is_alive(), process.last_words()
        assert time.monotonic() < until, f"{topic} has {_values(connection, topic)}: {process.last_words()}"
        time.sleep(0.1)


def test_a_version_is_replaced_by_the_next_while_it_runs(
    spark: SparkSession,
    connection: Connection,
    log_url: str,
    program: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine: Engine = "native" if has_connector(spark) else "python"
    of_somebody_else = Pipeline("of-somebody-else", log_url)
    connection.create_topic("orders", 1)
    for count in (1, 2, 3):
        connection.send("orders", str(count), key="k")
    connection.flush(30)
    options = ["--master", "local[1]", "--conf", "spark.driver.memory=1g", "--engine", engine, "--", log_url]
    first = ServerProcess([*COMMAND, "run", str(program), *options], program.parent / "first.txt")
    try:
        wait_for(connection, "prices", [2, 4, 6], first, TIMEOUT_S)
        (program.parent / "prices.py").write_text(PRICES.format(rate=3))
        went_on: list[list[str]] = []
        monkeypatch.setattr(os, "execv", lambda path, words: went_on.append(words))
        reprocess_file(
            program,
            [log_url],
            RunSettings(once=True, start="earliest", engine=engine, reprocess=True, program=str(program)),
            ReprocessOptions(switch="always", retire=True, delete_topics=False, once=False),
        )
        assert first.popen.wait(TIMEOUT_S) == 0, "it was asked to stop, and drained"
        assert not of_somebody_else.started, "a program runs its own pipelines alone"
    finally:
        first.kill()
    assert _values(connection, "prices") == [2, 4, 6]
    assert _values(connection, "prices.v2") == [3, 6, 9]
    told = capsys.readouterr()
    assert told.out.splitlines()[:3] == [
        "Old: v1. New: v2.",
        "name    by      same  only old  only new  different",
        "prices  record     1         2         2          -",
    ]
    assert "starts version v2, beside v1" in told.err
    assert "Readers of prices get topic prices.v2 from now on." in told.err
    assert f"Stopped version v1, which ran in process {first.pid}." in told.err
    [words] = went_on
    assert words[1:5] == ["-m", "penstock.cli", "run", str(program)]
    assert words[5:] == ["--version", "v2", "--engine", engine, "--", log_url]

    command = Command(log_url)
    assert command.well("pipelines", "versions").table[0][:3] == ["shop", "v2", "current"]
    entries = {each["version"]: each for each in command.well("pipelines", "versions", "--all", "--json").json}
    assert entries["v1"]["state"] == "retired"
    assert not (Path(entries["v1"]["checkpoints"]) / "shop").exists()
    consumed = command.well("consume", "prices", "--format", "raw")
    assert sorted(consumed.out.split()) == ["3", "6", "9"]
    assert "prices refers to topic prices.v2" in consumed.err
    refused = command("pipelines", "retire", "shop", "v2")
    assert (refused.code, "is the current one" in refused.err) == (1, True)
    assert json.loads(command.well("topics", "describe", "prices", "--json").out)["topic"] == "prices"
