"""What is told of records after kills: each guarantee forbids other things, and what it forbids is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.prove.judging import Judgement, Traces, judge_consumers, judge_producers

GOOD = (0, 1, 2, 3)
BAD = (4,)


def judged(
    guarantee: str,
    handled: Sequence[int] = GOOD,
    effects: Sequence[int] = GOOD,
    letters: Sequence[int] = BAD,
    given_up: Sequence[int] = (),
    *,
    in_order: bool = True,
) -> Judgement:
    has_effects = guarantee == "exactly-once"
    traces = Traces(list(handled), Counter(effects if has_effects else ()), Counter(letters), Counter(given_up))
    return judge_consumers(guarantee, GOOD, BAD, traces, (lambda number: number % 2) if in_order else None)


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_where_each_record_had_its_turn_every_promise_was_kept(guarantee: str) -> None:
    judgement = judged(guarantee)
    assert not judgement.broken
    assert judgement.records == 5
    assert not [*judgement.lost, *judgement.repeated, *judgement.not_once, *judgement.given_up]


@pytest.mark.parametrize(
    ("guarantee", "broken"), [("at-most-once", False), ("at-least-once", True), ("exactly-once", True)]
)
def test_a_record_that_nobody_handled_is_lost(guarantee: str, broken: bool) -> None:
    judgement = judged(guarantee, handled=(0, 1, 3), effects=(0, 1, 3))
    assert set(judgement.lost) == {2}
    assert any("were lost, such as [2]" in each for each in judgement.broken) == broken


@pytest.mark.parametrize(
    ("guarantee", "broken"), [("at-most-once", True), ("at-least-once", False), ("exactly-once", False)]
)
def test_a_record_that_was_handled_again_breaks_at_most_once_alone(guarantee: str, broken: bool) -> None:
    judgement = judged(guarantee, handled=(0, 1, 2, 3, 3))
    assert set(judgement.repeated) == {3}
    assert bool(judgement.broken) == broken


@pytest.mark.parametrize("effects", [(0, 1, 2), (0, 1, 2, 3, 3)])
def test_an_effect_that_did_not_happen_or_happened_twice_breaks_exactly_once(effects: Sequence[int]) -> None:
    judgement = judged("exactly-once", effects=effects)
    assert set(judgement.not_once) == {3}
    assert any("exactly once" in each for each in judgement.broken)


def test_what_was_given_up_is_not_lost_but_must_have_no_effect_then() -> None:
    rest, letters, given_up = (0, 1, 2), (4, 3), (3,)
    assert not judged("at-least-once", rest, letters=letters, given_up=given_up).broken
    assert not judged("exactly-once", rest, rest, letters, given_up).broken
    assert set(judged("exactly-once", GOOD, GOOD, letters, given_up).not_once) == {3}


def test_a_dead_letter_of_a_good_record_that_was_not_given_up_by_right_does_not_excuse_its_loss() -> None:
    assert set(judged("at-least-once", handled=(0, 1, 2), letters=(4, 3)).lost) == {3}


def test_a_bad_record_that_is_no_dead_letter_is_lost() -> None:
    assert set(judged("at-least-once", letters=()).lost) == {4}


def test_a_record_is_out_of_order_when_it_first_comes_behind_a_later_one_of_its_lane() -> None:
    overtaken = judged("at-least-once", handled=(2, 0, 1, 3))
    assert set(overtaken.out_of_order) == {0}
    assert any("out of order" in each for each in overtaken.broken)
    assert not judged("at-least-once", handled=(1, 0, 3, 2)).broken, "records of different lanes overtake each other"
    assert not judged("at-least-once", handled=(0, 2, 0, 2, 1, 3)).broken, "what comes again comes behind, of course"
    assert not judged("at-least-once", handled=(2, 0, 1, 3), in_order=False).broken


def test_a_record_that_nobody_sent_is_strange() -> None:
    assert set(judged("at-most-once", handled=(*GOOD, 99)).strange) == {99}
    assert set(judged("at-least-once", handled=(*GOOD, *BAD)).strange) == set(BAD), "its handler can do no work"


def test_an_unknown_guarantee_is_refused() -> None:
    with pytest.raises(ValueError, match="not a guarantee"):
        _ = Judgement("most-of-the-time", 1).broken


SIZES = {1: 3, 2: 2}
STORED = [("a", 1, 0), ("b", 1, 1), ("a", 1, 2), ("a", 2, 0)]


def test_producers_keep_their_promise_where_all_that_was_taken_is_there_once() -> None:
    taken = {(1, 0), (1, 1), (2, 0)}
    judgement = judge_producers(taken, SIZES, {"t": STORED})
    assert not judgement.broken, "1-2 was sent, and not taken when its producer died: it may be there"
    assert judgement.records == 4


@pytest.mark.parametrize(
    ("stored", "fate", "record"),
    [
        (STORED[1:], "lost", (1, 0)),
        ([*STORED, STORED[1]], "not_once", (1, 1)),
        ([STORED[2], STORED[0], *STORED[1::2]], "out_of_order", (1, 0)),
        ([*STORED, ("b", 2, 7)], "strange", (2, 7)),
    ],
)
def test_what_producers_lose_repeat_swap_or_make_up_is_found(
    stored: list[tuple[str, int, int]], fate: str, record: tuple[int, int]
) -> None:
    judgement = judge_producers({(1, 0), (1, 1)}, SIZES, {"t": stored})
    assert set(getattr(judgement, fate)) == {record}
    assert judgement.broken


def test_order_holds_within_a_key_of_a_topic_and_no_further() -> None:
    stored = {"t": [("a", 1, 2), ("b", 1, 0)], "u": [("a", 1, 1)]}
    assert not judge_producers((), SIZES, stored).broken
