"""Three declines and then an approval: every match that a loop over the sorted rows finds, and no other."""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.late.gate import OnTimeGate
from penstock.spark.patterns import sequence
from penstock.spark.patterns.ordering import WAITING, InOrder
from penstock.spark.patterns.sequences import RECENT, STEPS, Sequences
from penstock.spark.state.stateful_functions import Simulation, simulate
from tests.seeds import seed_of
from tests.spark.patterns.models import matches
from tests.spark.time.batches import START, Batches, Collected, at

PAYMENTS = "id int, card string, outcome string, at timestamp"
SECOND = datetime.timedelta(seconds=1)
EVENT = StructType([StructField("id", IntegerType()), StructField("at", TimestampType())])
KEPT = StructType([*EVENT.fields, StructField(STEPS, LongType())])
FOUND = StructType(
    [
        StructField("card", StringType()),
        StructField("started", TimestampType()),
        StructField("ended", TimestampType()),
        StructField("events", ArrayType(EVENT)),
    ]
)


@pytest.mark.parametrize("adjacent", [False, True])
@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("steps", [2, 3])
def test_every_match_is_found_once_in_whatever_pieces_rows_come(adjacent: bool, overlapping: bool, steps: int) -> None:
    rng = random.Random(seed_of())
    total = 0
    for _ in range(60):
        within = rng.choice([2, 5, 20])
        events = [
            (number, rng.randrange(30), {step for step in range(steps) if rng.random() < 0.4}) for number in range(25)
        ]
        simulated, state = simulation(steps, within, adjacent=adjacent, overlapping=overlapping)
        found: list[Row] = []
        waiting = events
        for until in [*sorted(rng.sample(range(30), 4)), 60]:
            came = [event for event in waiting if event[1] <= until + 3]
            waiting = [event for event in waiting if event not in came]
            rows = [
                Row(id=number, at=START + when * SECOND, **{STEPS: sum(1 << step for step in can_be)})
                for number, when, can_be in rng.sample(came, len(came))
                if can_be or adjacent
            ]
            found += simulated.rows("c", rows)
            found += simulated.watermark(START + until * SECOND)
        wanted = matches(events, steps, within, adjacent=adjacent, overlapping=overlapping)
        assert sorted(tuple(event.id for event in row.events) for row in found) == wanted
        total += len(wanted)
        for row in found:
            assert (row.card, row.started, row.ended) == ("c", row.events[0].at, row.events[-1].at)
        simulated.watermark(START + 100 * SECOND)
        assert not state(), "nothing is left of what nobody can complete"
    assert total > 10


def simulation(
    steps: int, within: float, *, adjacent: bool, overlapping: bool
) -> tuple[Simulation, Callable[[], list[Any]]]:
    found = Sequences(
        InOrder("at", "id"),
        "at",
        EVENT.names,
        steps,
        datetime.timedelta(seconds=within),
        adjacent=adjacent,
        overlapping=overlapping,
    )
    simulated = simulate(
        found.arrived, FOUND, lists={WAITING: KEPT, RECENT: KEPT}, timers="event", on_timer=found.due, time="at"
    )
    tester = simulated._tester
    return simulated, lambda: [*tester.peekListState(RECENT, "c"), *tester.peekListState(WAITING, "c")]


def test_three_declines_then_an_approval_by_card_across_batches_and_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    rng = random.Random(seed_of())
    payments = Batches(spark, tmp_path / "in", PAYMENTS)
    made: dict[int, tuple[str, str, float]] = {}
    numbers = itertools.count()
    for batch in range(5):
        rows = []
        for _ in range(16):
            number, when = next(numbers), batch * 40 + rng.randrange(-30_000, 40_000) / 1_000
            made[number] = (rng.choice("ab"), rng.choice(["declined", "declined", "approved"]), when)
            rows.append({"id": number, "card": made[number][0], "outcome": made[number][1], "at": at(when)})
        payments.put([*rows, {"id": -2, "card": "a", "outcome": "declined", "at": None}])
    payments.put([{"id": -1, "card": "end", "outcome": "approved", "at": at(10_000)}])
    gate = OnTimeGate("late", "at", grace="20 seconds", side=str(tmp_path / "side"))
    steps = ["outcome = 'declined'"] * 3 + [F.col("outcome") == "approved"]
    found = sequence(gate.apply(payments.stream()), "card", "at", steps, "60 seconds")
    assert found.columns == ["card", "started", "ended", "events"]
    collected = Collected(tmp_path / "ck", [gate])
    with pytest.raises(StreamingQueryException):
        collected.run(found, fail_at=3)
    collected.run(found)
    late = {row.id for row in collected.late}
    assert late > {-2}
    for card in "ab":
        events = [
            (number, when, {0, 1, 2} if outcome == "declined" else {3})
            for number, (whose, outcome, when) in made.items()
            if whose == card and number not in late
        ]
        left = [tuple(event.id for event in row.events) for row in collected.rows if row.card == card]
        assert left == sorted(left, key=lambda match: made[match[-1]][2])
        assert sorted(left) == matches(events, 4, 60, adjacent=False, overlapping=False)
    assert collected.dropped == 0
    assert collected.rows


def test_what_is_no_sequence_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    payments = Batches(spark, tmp_path / "in", PAYMENTS).stream()

    def find(frame: DataFrame = payments, key: Any = "card", steps: Any = ("id > 0", "id > 1"), **more: Any) -> None:
        sequence(frame, key, "at", steps, **({"within": "1 minute", "grace": "1 second"} | more))

    find(key=["card", "outcome"])
    with pytest.raises(ConfigError, match="a sequence has 2 to 60 steps"):
        find(steps=["id > 0"])
    with pytest.raises(ConfigError, match="a sequence has 2 to 60 steps"):
        find(steps="id > 0")
    with pytest.raises(SchemaMismatchError, match="no column 'user' for the key"):
        find(key="user")
    with pytest.raises(SchemaMismatchError, match="the key has a column events"):
        find(payments.withColumnRenamed("card", "events"), key="events")
    with pytest.raises(SchemaMismatchError, match="set grace="):
        find(grace=None)
    with pytest.raises(ConfigError, match="within"):
        find(within="soon")
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        find(steps=["id > 0", "amount > 0"])
