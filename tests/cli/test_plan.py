"""`penstock plan`, and the quantities that are written for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import typer

from penstock.cli.quantities import rate_per_s, seconds, size_bytes
from tests.cli.forked import ForkedCommand
from tests.cli.running import Command

GIVEN = ("plan", "--rate", "5000/s", "--size", "1KB", "--retention", "7d")


@pytest.fixture(scope="module")
def alone() -> Command:
    """The command, without a broker."""
    return ForkedCommand("kafka://127.0.0.1:1")


def test_the_plan_shows_its_arithmetic_and_its_figures(alone: Command) -> None:
    out = alone.well(*GIVEN, "--readers", "3").out
    assert out.startswith("One embedded log is enough")
    assert "5 MB/s  = 5,000/s x 1,000 B" in out
    assert "(benchmarks/results/latest.md)" in out


def test_the_plan_is_json_for_programs(alone: Command) -> None:
    made = alone.well(
        *GIVEN, "--handler-ms", "5", "--replication", "3", "--disk", "4TB", "--keys", "100", "--json"
    ).json
    assert made["is_one_log_enough"] is False
    assert {line["what"]: line["value"] for line in made["lines"]}["handler workers"] == 57
    assert made["figures"][0]["where"] == "benchmarks/results/latest.md"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--rate", "5000", "5000/s"),
        ("--size", "1000", "1KB (1000 bytes)"),
        ("--retention", "7", "7d"),
        ("--disk", "1 XB", "4TB"),
        ("--replication", "0", "1"),
        ("--handler-ms", "-1", "0"),
    ],
)
def test_a_quantity_without_its_unit_is_refused_with_examples(
    alone: Command, option: str, value: str, said: str
) -> None:
    done = alone(*GIVEN, option, value)
    assert done.code == 2
    assert option in done.err
    assert said in done.err


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (seconds, "0", 0),
        (seconds, "500ms", 0.5),
        (seconds, "1h30m", 5400),
        (seconds, " 7 d ", 604_800),
        (seconds, "1.5h", 5400),
        (size_bytes, "100B", 100),
        (size_bytes, "1KB", 1000),
        (size_bytes, "1kb", 1000),
        (size_bytes, "1KiB", 1024),
        (size_bytes, "1.5 GB", 1_500_000_000),
        (rate_per_s, "5000/s", 5000),
        (rate_per_s, "5,000 / s", 5000),
        (rate_per_s, "60k/min", 1000),
        (rate_per_s, "86.4M/day", 1000),
    ],
)
def test_quantities_are_understood(read: Callable[[str, str], float], text: str, value: float) -> None:
    assert read(text, "--x") == pytest.approx(value)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *(
            (seconds, text)
            for text in ("", " ", "5", "-5s", "5 fortnights", "5s5", "1e3s", "٣s", "5S", "999999999999d")
        ),
        *((size_bytes, text) for text in ("", "5", "0B", "-1KB", "1KB1", "1Kb/s", "1 K", "1e3B", "99999999999PB")),
        *((rate_per_s, text) for text in ("", "5", "5/", "/s", "0/s", "5/ms", "5/year", "-5/s", "1e3/s", "5 m/s")),
    ],
)
def test_quantities_that_are_none_are_refused(read: Callable[[str, str], float], text: str) -> None:
    with pytest.raises(typer.BadParameter):
        read(text, "--x")
