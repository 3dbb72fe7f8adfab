"""The fraud case, in batches and in real-time mode, against an independent computation."""

from __future__ import annotations

import datetime
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps
from examples.pipelines import fraud_detection
from penstock.spark import Pipeline, RealTime
from tests.seeds import seed_of

Verdicts = dict[tuple[str, datetime.datetime], dict[str, Any]]
COLUMNS = ("transactions", "cents", "amount", "distance", "merchant_risk", "velocity", "points", "verdict")


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch, log_url: str) -> tuple[str, Any]:
    """Some hundred transactions, with cards and merchants in their topics: the URL, and what was generated."""
    monkeypatch.setattr(fraud_detection, "TRANSACTIONS", 400)
    generated = fraud_detection.generate(seed_of())
    _, cards, merchants = generated
    with ps.connect(log_url) as stream:
        stream.create_topic("transactions", 1)
        for card in cards:
            stream.send(fraud_detection.cards, card)
        for merchant in merchants[1:]:  # nothing is known about the first
            stream.send(fraud_detection.merchants, merchant)
        stream.flush()
    return log_url, (generated[0], cards, merchants[1:])


def expected(generated: Any) -> Verdicts:
    """The same, record by record, in plain Python."""
    transactions, cards, merchants = generated
    homes = {card.card: (card.home_x_km, card.home_y_km) for card in cards}
    risks = {merchant.merchant: merchant.risk for merchant in merchants}
    groups: dict[tuple[str, datetime.datetime], list[Any]] = defaultdict(list)
    for each in transactions:
        groups[each.card, each.at.replace(second=0, microsecond=0)].append(each)
    found = {}
    for key, members in groups.items():
        away = [math.dist(homes[each.card], (each.x_km, each.y_km)) for each in members]
        row = {
            "transactions": len(members),
            "cents": sum(each.cents for each in members),
            "amount": max(60 if each.cents > 500_000 else 25 if each.cents > 100_000 else 0 for each in members),
            "distance": 50 if max(away) > 1_000 else 0,
            "merchant_risk": max(risks.get(each.merchant, 20) for each in members),
            "velocity": min(60, max(0, len(members) - 3) * 10),
        }
        points = row["amount"] + row["distance"] + row["merchant_risk"] + row["velocity"]
        found[key] = {**row, "points": points, "verdict": _verdict(points)}
    return found


def _verdict(points: int) -> str:
    if points >= 100:
        return "block"
    return "review" if points >= 60 else "clear"


def keyed(rows: list[dict[str, Any]]) -> Verdicts:
    return {
        (row["card"], _moment(row["minute"])): {name: row[name] for name in COLUMNS} for row in rows
    }  # fmt: skip


def _moment(text: str) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)


@pytest.mark.sampled(1, among="worked cases")
def test_verdicts_of_batches_in_a_database_are_those_of_plain_python(
    spark: SparkSession, case: tuple[str, Any], tmp_path: Path
) -> None:
    url, generated = case
    rows = fraud_detection.run_in_batches(url, f"sqlite:{tmp_path / 'fraud.db'}", generated[0])
    assert keyed(rows) == expected(generated)


def test_verdicts_in_real_time_are_those_of_plain_python(
    real_time: SparkSession, case: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, generated = case
    monkeypatch.setattr(fraud_detection, "session", lambda *_, **__: real_time)
    rows = fraud_detection.run_in_real_time(url, generated[0])
    assert keyed(rows) == expected(generated)


def test_each_transaction_brings_a_verdict_of_its_own_in_real_time(
    real_time: SparkSession, case: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, generated = case
    monkeypatch.setattr(fraud_detection, "session", lambda *_, **__: real_time)
    fraud_detection.run_in_real_time(url, generated[0][:50])
    with ps.connect(url) as stream:
        told = [json.loads(record.value or b"") for record in stream.read("verdicts")]
    assert len(told) == 50
    assert {row["transactions"] for row in told} >= {1}


def test_a_pipeline_that_cannot_run_in_real_time_runs_in_batches_and_says_why(
    real_time: SparkSession, log_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ps.connect(log_url) as stream:
        stream.create_topic("numbers", 1)
        stream.send("numbers", b"7")
        stream.flush()
        with Pipeline("fallback", log_url, spark=real_time) as pipeline:
            rows = pipeline.read("numbers", engine="python").select(F.col("value"))
            with caplog.at_level("WARNING", "penstock.spark"):
                pipeline.write(rows, "copies", guarantee="at-least-once", trigger=RealTime("1 second"))
            assert any('engine="native"' in record.getMessage() for record in caplog.records)
            pipeline.run(once=True)
        assert [record.value for record in stream.read("copies")] == [b"7"]
