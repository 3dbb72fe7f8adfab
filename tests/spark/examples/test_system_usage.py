"""The example of system usage, counted by hand beside it."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from examples.pipelines import system_usage
from tests.seeds import seed_of

BEGIN = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
MINUTE = datetime.timedelta(minutes=1)
GRACE = MINUTE
IN_A_BATCH = 1_100
"""More than the first batch can have, in whose time no row can be told to be late."""

Totals = Counter[tuple[datetime.datetime, str, str]]


def rows_of(connection: ps.Connection, topic: str) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in connection.read(topic)]


def minute_of(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(second=0, microsecond=0)


def sent(connection: ps.Connection) -> Totals:
    totals: Totals = Counter()
    for row in rows_of(connection, "transactions"):
        if row["system"] != "clock":
            totals[minute_of(row["at"]), row["system"], "transactions"] += 1
            totals[minute_of(row["at"]), row["system"], "cents"] += row["cents"]
    return totals


def counted(connection: ps.Connection) -> Totals:
    totals: Totals = Counter()
    for row in rows_of(connection, "usage"):
        for column in ("transactions", "cents"):
            place = minute_of(row["window"]["start"]), row["system"], column
            assert place not in totals, f"{place} is there twice"
            totals[place] = row[column]
    return totals


def set_aside(connection: ps.Connection) -> Totals:
    totals: Totals = Counter()
    for row in rows_of(connection, "transactions.late"):
        totals[minute_of(row["at"]), row["system"], "transactions"] += 1
        totals[minute_of(row["at"]), row["system"], "cents"] += row["cents"]
    return totals


def delays(seed: int) -> list[datetime.timedelta]:
    """How long after it happened each transaction arrived, by its number."""
    step = datetime.timedelta(minutes=system_usage.MINUTES) / system_usage.TRANSACTIONS
    return [BEGIN + each.number * step - each.at for each in system_usage.generate(seed, BEGIN)]


@pytest.mark.sampled(1, among="worked cases")
def test_every_transaction_is_counted_in_its_minute_or_set_aside_once(
    spark: SparkSession, log_url: str, connection: ps.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of()
    system_usage.main(log_url, seed)
    out = capsys.readouterr().out
    usage, late = counted(connection), set_aside(connection)
    assert usage + late == sent(connection)
    aside = rows_of(connection, "transactions.late")
    places = [(row["at"], row["number"]) for row in aside]
    assert len(places) == len(set(places))

    numbers = {row["number"] for row in aside}
    # A batch is four minutes of arrivals, and the watermark is that of the batch before it.
    delayed = delays(seed)
    assert all(delayed[number] > GRACE for number in numbers)
    assert {number for number in range(IN_A_BATCH, len(delayed)) if delayed[number] > 8 * MINUTE} <= numbers

    on_time = sum(count for (_, _, column), count in usage.items() if column == "transactions")
    assert on_time + len(numbers) == system_usage.TRANSACTIONS
    assert f"{on_time:,} on time and {len(numbers):,} late make 5,000 of 5,000" in out
