"""Records that kill the process that handles them: found by those who come after, and given up."""

from __future__ import annotations

from pathlib import Path

from tests.crash.killed_by_a_record import KILLER, Run


def test_a_record_that_kills_its_process_every_time_ends_with_the_dead_letters_and_the_others_are_handled(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    deaths = 0
    while run.finish() == -9:
        deaths += 1
        assert deaths < 20, "it is never found"
    assert set(run.handled()) == {number for number in range(30) if number != KILLER}
    (letter,) = run.letters()
    assert letter.record.value == str(KILLER).encode()
    assert letter.error_kind == "WorkerDiedError"
    assert "5 times" in letter.error
    assert deaths == 3 + 5


def test_a_record_with_the_key_of_one_that_kills_waits_for_it_and_has_its_chance(tmp_path: Path) -> None:
    run = Run(tmp_path, in_pairs=True)
    deaths = 0
    while run.finish() == -9:
        deaths += 1
        assert deaths < 20, "it is never found"
    assert sorted(set(run.handled())) == sorted({0, *range(1, 30, 2), KILLER + 1} - {KILLER})
    assert [letter.record.value for letter in run.letters()] == [str(KILLER).encode()]
