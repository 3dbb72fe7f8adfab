"""Capacity: the arithmetic behind `penstock plan`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.observe import capacity as figures
from penstock.observe.capacity import Demand, bytes_text, plan, time_text

DAY_S = 86_400.0
MODEST = Demand(rate_per_s=5_000, size_bytes=1_000, retention_s=7 * DAY_S, readers=3)


def changed(**fields: Any) -> Demand:
    return dataclasses.replace(MODEST, **fields)


def test_what_flows_is_rate_times_size_times_readers() -> None:
    made = plan(MODEST)
    assert made["records a day"].value == 432_000_000
    assert made["comes in"].value == 5_000_000
    assert made["goes out"].value == 15_000_000
    assert plan(changed(replication=3))["goes out"].value == 25_000_000


def test_disk_is_what_is_kept_and_what_is_still_written_with_room_to_spare() -> None:
    made = plan(MODEST)
    kept = 5_000 * 1_012 * 7 * DAY_S
    still_written = made["partitions"].value * 2**30
    assert made["disk"].value == pytest.approx((kept + still_written) / 0.8)
    assert plan(changed(replication=3))["disk"].value == pytest.approx(made["disk"].value * 3)


def test_a_slow_topic_does_not_fill_a_segment() -> None:
    made = plan(changed(rate_per_s=1, retention_s=DAY_S))
    assert made["disk"].value == pytest.approx((1_012 * DAY_S + 1_012 * 7 * DAY_S) / 0.8)


def test_a_reader_may_stand_still_until_retention_or_the_disk_ends_it() -> None:
    assert plan(MODEST)["a reader may stand still for"].value == 168
    small = plan(changed(disk_bytes=10**12))
    assert small["disk full after"].value == pytest.approx(0.8e12 / (5_000 * 1_012) / 3600)
    assert small["a reader may stand still for"].value == small["disk full after"].value
    assert plan(changed(disk_bytes=10**14))["a reader may stand still for"].value == 168


def test_workers_are_the_time_that_handlers_take() -> None:
    made = plan(changed(handler_ms=5.0))
    assert made["handler workers"].value == 57  # 5,000/s x 5 ms = 25 busy ones, / 0.889 / 0.5
    assert made["handler processes"].value == 2
    assert made["partitions"].value == 4
    with pytest.raises(StopIteration):
        plan(MODEST)["handler workers"]


def test_the_margin_is_what_an_outage_is_caught_up_with() -> None:
    made = plan(changed(handler_ms=5.0))
    able = 57 * 0.889 * 1000 / 5
    assert made["an hour's outage is caught up in"].value == pytest.approx(5_000 / (able - 5_000))


def test_one_embedded_log_is_enough_until_it_would_be_busy_for_half_the_time() -> None:
    made = plan(MODEST)
    assert made.is_one_log_enough
    assert made["embedded log busy"].value == pytest.approx(5_000 * (1 / 260_315 + 3 / 406_640))
    busy = plan(changed(rate_per_s=60_000))
    assert not busy.is_one_log_enough
    assert "would be busy for 67.3% of the time" in busy.verdict


def test_replicas_need_kafka() -> None:
    made = plan(changed(replication=3))
    assert not made.is_one_log_enough
    assert "one node on purpose" in made.verdict
    assert made["Kafka brokers"].value == 3


def test_brokers_are_for_the_bytes_or_the_disks_and_one_may_fail() -> None:
    assert plan(changed(replication=3, rate_per_s=100_000))["Kafka brokers"].value == 5
    assert plan(changed(replication=3, disk_bytes=10**12))["Kafka brokers"].value == 13


def test_what_does_not_fit_on_the_disk_is_said_with_what_would() -> None:
    made = plan(changed(disk_bytes=10**12))
    assert "3.83 TB do not fit on one disk of 1 TB" in made.verdict
    assert "a retention of 43.9 h" in made.verdict


def test_spark_needs_cores_by_the_measured_rows() -> None:
    made = plan(changed(rate_per_s=200_000))
    assert made["Spark cores"].value == 8
    assert made["Spark executors"].value == 2
    assert made["partitions"].value >= 8


def test_keys_bound_the_partitions_and_a_key_that_is_too_hot_is_told_of() -> None:
    made = plan(changed(handler_ms=5.0, keys=3))
    assert made["partitions"].value == 3
    assert "order by key cannot be kept up" in made.warnings[0]
    assert plan(changed(handler_ms=5.0, keys=20_000)).warnings == ()


def test_records_that_brokers_refuse_are_told_of() -> None:
    assert "max.message.bytes" in plan(changed(size_bytes=5_000_000)).warnings[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate_per_s": 0},
        {"rate_per_s": float("nan")},
        {"size_bytes": 0},
        {"retention_s": -1},
        {"readers": -1},
        {"keys": 0},
        {"replication": 0},
        {"handler_ms": -1},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        changed(**wrong)


@given(
    rate=st.floats(0.001, 1e7),
    size=st.integers(1, 10**7),
    retention=st.floats(1, 1e9),
    readers=st.integers(0, 100),
    handler=st.none() | st.floats(0, 10_000),
    keys=st.none() | st.integers(1, 10**6),
    replication=st.integers(1, 5),
    disk=st.none() | st.integers(10**6, 10**16),
)
def test_any_demand_has_answers_that_add_up(
    rate: float,
    size: int,
    retention: float,
    readers: int,
    handler: float | None,
    keys: int | None,
    replication: int,
    disk: int | None,
) -> None:
    made = plan(Demand(rate, size, retention, readers, handler, keys, replication, disk))
    for line in made.lines:
        assert line.value >= 0
        assert line.text
        assert line.how
    assert made["partitions"].value >= 1
    assert made["Kafka brokers"].value >= max(3, replication)
    assert made["an hour's outage is caught up in"].value <= 1.2
    if handler is not None:
        assert made["handler workers"].value * 1000 >= rate * handler


def test_the_figures_stand_where_they_say() -> None:
    """So that a new measurement is taken up here, too."""
    root = Path(__file__).parents[2]
    for figure in (*figures.WRITE_COST.values(), *figures.READ_COST.values(), figures.HANDLING_PER_S):
        assert f"{figure.value:,.0f}" in (root / figure.where).read_text(), figure.what
    latest = (root / figures.KAFKA_WRITE_BYTES_PER_S.where).read_text()
    assert f"{figures.KAFKA_WRITE_BYTES_PER_S.value / 1000:,.0f} records/s" in latest
    assert f"{figures.RECOVERY_S_PER_GB.value:g} s/GB" in latest
    readme = (root / "README.md").read_text()
    (rows,) = re.findall(r"10 s windows to log, exactly-once with fsync \| ([\d,]+) rows/s", readme)
    assert int(rows.replace(",", "")) == 2 * figures.SPARK_ROWS_PER_CORE_S.value


PAGE = Path(__file__).parents[2] / "docs/how-to/capacity.md"
GROWING = Demand(rate_per_s=1_000, size_bytes=500, retention_s=3 * DAY_S, readers=2, handler_ms=1.0)
"""The load that the page follows from a thousand records a second to a million."""


def growing_table() -> str:
    """The table of the page. One log keeps one copy; Kafka keeps three."""
    plans = []
    for rate in (1e3, 1e4, 1e5, 1e6):
        alone = plan(dataclasses.replace(GROWING, rate_per_s=rate))
        replication = 1 if alone.is_one_log_enough else 3
        plans.append((alone, plan(dataclasses.replace(GROWING, rate_per_s=rate, replication=replication))))
    rows = [["records", *(alone["an hour's outage is caught up in"].how.split(" ")[0] for alone, _ in plans)]]
    rows.append(["the stream", *("one log" if a.is_one_log_enough else p["Kafka brokers"].text for a, p in plans)])
    rows.append(["one log would be busy for", *(alone["embedded log busy"].text for alone, _ in plans)])
    flows = ("comes in", "goes out", "disk", "partitions", "handler workers", "handler processes", "Spark cores")
    rows += [[what, *(made[what].text for _, made in plans)] for what in flows]
    rows.append(
        [
            "Spark runs",
            *(
                "local" if p["Spark executors"].value == 1 else f"{p['Spark executors'].text} executors"
                for _, p in plans
            ),
        ]
    )
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def test_the_page_from_a_thousand_to_a_million_says_what_the_plan_says() -> None:
    assert growing_table() in PAGE.read_text("utf-8"), f"write this into {PAGE.name}:\n{growing_table()}"


def test_the_page_says_where_the_next_part_takes_over() -> None:
    """Each point is the last rate, in thousands, at which the plan still has the smaller answer."""
    page = PAGE.read_text("utf-8")

    def last(enough: Callable[[figures.Plan], bool], **fields: Any) -> int:
        fits = (
            rate
            for rate in range(1_000, 1_000_000, 1_000)
            if not enough(plan(dataclasses.replace(GROWING, rate_per_s=rate + 1_000, **fields)))
        )
        return next(fits)

    for point, rate in (
        ("one process handles it", last(lambda made: made["handler processes"].value == 1, handler_ms=None)),
        ("one process of 32 workers handles it", last(lambda made: made["handler processes"].value == 1)),
        ("a disk of 8 TB holds it", last(lambda made: made.is_one_log_enough, disk_bytes=8 * 10**12)),
        ("one log carries it", last(lambda made: made.is_one_log_enough)),
        ("one machine of 4 cores computes it", last(lambda made: made["Spark executors"].value == 1)),
    ):
        assert re.search(rf"^\| {re.escape(point)} \| {rate:,}/s \|", page, re.MULTILINE), f"| {point} | {rate:,}/s |"


def test_quantities_read_well() -> None:
    assert [bytes_text(each) for each in (0, 999, 1_000, 999_999, 3.83e12, 5e21)] == [
        "0 B",
        "999 B",
        "1 KB",
        "1 MB",
        "3.83 TB",
        "5,000 EB",
    ]
    assert [time_text(each) for each in (0.137, 90, 7200, 604_800, 4e8)] == [
        "0.137 s",
        "90 s",
        "2 h",
        "7 days",
        "12.7 years",
    ]
