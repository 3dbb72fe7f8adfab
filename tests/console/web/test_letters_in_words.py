"""Two texts beside each other, and the names of places."""

from __future__ import annotations

from penstock.console.web.pages.dead_letters.comparison import LONGEST_LINES, Pair, only_near_differences, side_by_side
from penstock.console.web.pages.dead_letters.places import place_name, spec_of
from penstock.observe.facts import LetterFacts


def test_equal_lines_stand_beside_each_other_and_others_are_marked() -> None:
    pairs = side_by_side("a\nb\nc", "a\nx\ny\nc")
    assert pairs == [Pair("a", "a"), Pair("b", "x"), Pair(None, "y"), Pair("c", "c")]
    assert [pair.differs for pair in pairs] == [False, True, True, False]


def test_what_is_far_from_any_difference_is_left_out() -> None:
    lines = [str(number) for number in range(20)]
    pairs = side_by_side("\n".join(lines), "\n".join([*lines[:10], "other", *lines[11:]]))
    shown = list(only_near_differences(pairs, around=1))
    assert shown == [None, Pair("9", "9"), Pair("10", "other"), Pair("11", "11"), None]


def test_texts_without_a_difference_have_nothing_to_show() -> None:
    assert list(only_near_differences(side_by_side("a\nb", "a\nb"))) == [None]
    assert side_by_side("", "") == []


def test_of_a_long_text_the_beginning_is_compared() -> None:
    assert len(side_by_side("same\n" * 100_000, "same\n" * 100_000)) == LONGEST_LINES


def test_the_password_of_a_database_is_neither_shown_nor_part_of_an_address() -> None:
    spec = "postgresql://anna:secret@db.example/letters"
    assert place_name(spec) == "postgresql://anna@db.example/letters"
    assert spec_of(place_name(spec), [LetterFacts("orders.dlq", 1), LetterFacts(spec, 2)]) == spec
    assert spec_of("elsewhere", [LetterFacts(spec, 2)]) == "elsewhere"
    assert [place_name(each) for each in ("orders.dlq", "sqlite:./a.db")] == ["orders.dlq", "sqlite:./a.db"]
