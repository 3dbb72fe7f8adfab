"""examples/pipelines/spending.py has the same results on one machine and on clusters of Kafka and Spark."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

import penstock as ps
from penstock.cluster.brokers import Cluster
from tests.cli.running import COMMAND
from tests.servers import ServerProcess
from tests.spark.cluster.standalone import HOST, Standalone
from tools import parts

pytestmark = pytest.mark.xdist_group("kafka-cluster")
PROGRAM: Final = Path(__file__).parents[2] / "examples/pipelines/spending.py"
TIMEOUT_S: Final = 400.0
EUROS: Final = {"EUR": 1.0, "USD": 0.92, "SEK": 0.087}
WINDOW: Final = slice(0, len("2026-01-01T12:3"))
"""Of the text of a time: up to the tens of minutes."""


def start(folder: Path, url: str, master: str) -> ServerProcess:
    """The program in this home. Nothing but the URL and the master tells it which."""
    options = ["--master", master]
    for setting in (f"spark.driver.host={HOST}", f"spark.driver.bindAddress={HOST}", "spark.executor.memory=512m"):
        options += ["--conf", setting]
    # As few tasks as there are cores, where a cluster would take Spark's 200.
    options += ["--conf", "spark.sql.shuffle.partitions=2", "--checkpoints", str(folder / "checkpoints")]
    environment = {
        "PENSTOCK_CACHE": str(parts.cache_folder()),
        "SPARK_LOCAL_IP": HOST,
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    folder.mkdir()
    return ServerProcess([*COMMAND, "run", str(PROGRAM), *options, "--", url], folder / "output.txt", environment)


def rows(stream: ps.Connection, topic: str) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in stream.read(topic)]


def expected(payments: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """For each customer and window, how many payments and cents, without those of the next day, which end the hour."""
    spent = defaultdict[tuple[str, str], list[int]](list)
    for payment in payments:
        if payment["currency"] in EUROS and payment["customer"] != "nobody":
            window = payment["at"][WINDOW]
            spent[payment["customer"], window].append(round(payment["cents"] * EUROS[payment["currency"]]))
    return {where: (len(cents), sum(cents)) for where, cents in spent.items()}


@pytest.mark.sampled(2, among="pipelines on a standalone cluster")
@pytest.mark.timeout(900)
def test_the_totals_are_the_same_on_one_machine_and_on_clusters(cluster: Cluster, tmp_path: Path) -> None:
    one_machine = f"log:{tmp_path / 'data'}"
    with Standalone(tmp_path / "spark") as spark, ps.connect(one_machine) as log, ps.connect(cluster.url) as kafka:
        runs = [
            start(tmp_path / "one", one_machine, "local[2]"),
            start(tmp_path / "many", cluster.url, spark.url),
        ]
        try:
            for run in runs:
                assert run.popen.wait(TIMEOUT_S) == 0, run.last_words()
        finally:
            for run in runs:
                run.kill()
        payments = rows(log, "payments")
        assert Counter(map(json.dumps, payments)) == Counter(map(json.dumps, rows(kafka, "payments")))
        for stream in (log, kafka):
            totals = rows(stream, "spending")
            found = {
                (row["customer"], row["window"]["start"][WINDOW]): (row["payments"], row["cents"]) for row in totals
            }
            assert found == expected(payments), f"at {stream.url}"
            assert len(totals) == len(found), "every window came out once"
            assert len(list(stream.read("payments.dlq"))) == sum(row["currency"] not in EUROS for row in payments)
        said = ["\n".join(line for line in run.output().splitlines() if " EUR " in line) for run in runs]
        assert said[0] == said[1]
        assert said[0].count("in 6 windows") == 5
