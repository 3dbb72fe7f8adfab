"""Records that kill the process that handles them: found by those who come after, and given up."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

import penstock
from tests.crash.killed_by_a_record import DEATHS, KEYS, KILLER, Run, numbers
from tests.servers import Penstock

RECORDS: Final = 400
LATE: Final = 390
"""It kills when most of the others are done, so that all of them were in doubt."""


def test_a_record_that_kills_its_process_every_time_ends_with_the_dead_letters_and_the_others_are_handled(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    assert run.finish_over_deaths() == DEATHS
    assert set(run.handled()) == {number for number in range(30) if number != KILLER}
    (letter,) = run.letters()
    assert letter.record.value == str(KILLER).encode()
    assert letter.error_kind == "WorkerDiedError"
    assert "5 times" in letter.error


@pytest.mark.parametrize("order", ["partition", "key", "none"])
def test_a_record_that_kills_is_found_among_many_with_few_saves(order: str, tmp_path: Path) -> None:
    run = Run(tmp_path, records=RECORDS, killer=LATE, order=order)
    assert run.finish_over_deaths() <= DEATHS, "no more than with each record alone"
    assert run.saves() < RECORDS / 3, "in groups of 20, and then the 20 of one"
    handled = run.handled()
    assert set(handled) == {number for number in range(RECORDS) if number != LATE}
    (letter,) = run.letters()
    assert letter.record.value == str(LATE).encode()
    if order != "none":
        for key in range(KEYS):
            last: dict[int, int] = {number: place for place, number in enumerate(handled) if number % KEYS == key}
            assert sorted(last, key=last.__getitem__) == sorted(last), "none overtook another of its key"


def test_in_transactions_as_well_and_each_record_is_copied_once(tmp_path: Path) -> None:
    quick = ("--config", "group.min.session.timeout.ms=1000", "--config", "group.initial.rebalance.delay.ms=0")
    with Penstock(tmp_path / "log", *quick) as broker, penstock.connect(f"kafka://{broker.bootstrap}") as stream:
        for topic in ("orders", "copies"):
            stream.create_topic(topic, 1)
        for record in numbers(RECORDS):
            stream.send("orders", record.value, key=record.key)
        stream.flush(30)
        run = Run(tmp_path, records=RECORDS, killer=LATE, url=stream.url)
        assert run.finish_over_deaths() == DEATHS
        assert run.saves() < RECORDS / 3
        copied = [int(record.value or b"") for record in stream.read("copies")]
    assert copied == [number for number in range(RECORDS) if number != LATE]
    assert [letter.record.value for letter in run.letters()] == [str(LATE).encode()]


def test_a_record_with_the_key_of_one_that_kills_waits_for_it_and_has_its_chance(tmp_path: Path) -> None:
    run = Run(tmp_path, in_pairs=True)
    run.finish_over_deaths()
    assert sorted(set(run.handled())) == sorted({0, *range(1, 30, 2), KILLER + 1} - {KILLER})
    assert [letter.record.value for letter in run.letters()] == [str(KILLER).encode()]
