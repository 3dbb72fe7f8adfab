"""The fraud case with a deadline: analysers in real-time mode, verdicts gathered in time, and rows in PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

import psycopg
import pytest

import penstock as ps
from examples.pipelines import fraud_in_time
from examples.pipelines.fraud_in_time import BLOCK, FAR_KM, LARGE_CENTS, QUICK, Transaction
from penstock.spark.sessions.jars import connector_jars
from tests.postgres import shared_postgres

PROGRAM: Final = Path(fraud_in_time.__file__)
COUNT: Final = 100


@pytest.fixture
def database() -> str:
    if not any(jar.name.startswith("postgresql-") for jar in connector_jars()):
        pytest.skip("PostgreSQL's Java driver is missing: run `penstock spark jars --force` (or `make parts`)")
    return shared_postgres().fresh_database()


def expected(sent: list[Transaction]) -> dict[int, dict[str, int]]:
    """The points of each analyser, in plain Python."""
    uses: Counter[tuple[str, object]] = Counter()
    points: dict[int, dict[str, int]] = defaultdict(dict)
    for each in sent:
        uses[minute := (each.card, each.at.replace(second=0, microsecond=0))] += 1
        points[each.id] = {
            "amount": 60 if each.cents > LARGE_CENTS else 0,
            "distance": 50 if each.km_from_home > FAR_KM else 0,
            "velocity": min(60, max(0, uses[minute] - QUICK) * 10),
        }
    return points


@pytest.mark.timeout(600)
def test_every_transaction_has_one_verdict_of_the_scores_that_it_does_not_miss(
    log_url: str, database: str, tmp_path: Path
) -> None:
    command = [sys.executable, str(PROGRAM), "--transactions", str(COUNT), "--database", database, log_url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert f"{COUNT} transactions judged" in done.stdout
    assert "every verdict is in PostgreSQL" in done.stdout
    with ps.connect(log_url) as stream:
        sent = [fraud_in_time.transactions.decode(record.value) for record in stream.read("transactions")]
        verdicts = [fraud_in_time.verdicts.decode(record.value) for record in stream.read("verdicts")]
        late = Counter(
            (score.transaction, score.analyser)
            for record in stream.read("late-scores")
            if (score := fraud_in_time.scores.decode(record.value)) is not None
        )
    points = expected([each for each in sent if each is not None])
    assert Counter(each.transaction for each in verdicts if each is not None) == Counter(points.keys())
    missing: set[tuple[int, str]] = set()
    for each in verdicts:
        assert each is not None
        absent = each.missing.split()
        there = sum(found for name, found in points[each.transaction].items() if name not in absent)
        assert (each.points, each.verdict) == (there, "block" if there >= BLOCK else "clear")
        assert each.label == ("partial" if absent else "complete")
        missing |= {(each.transaction, name) for name in absent}
    assert set(late) <= missing, "only missing scores are late"
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT transaction, points, label, missing FROM verdicts ORDER BY 1").fetchall()
    assert rows[-COUNT:] == [
        (each.transaction, each.points, each.label, each.missing)
        for each in sorted((each for each in verdicts if each is not None), key=lambda each: each.transaction)[-COUNT:]
    ]
    assert len(rows) == len({row[0] for row in rows}), "each row once"
