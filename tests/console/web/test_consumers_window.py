"""The picture of a checkpoint's window."""

from __future__ import annotations

import random

from penstock.console.web.pages.consumers import COLUMNS, NARROWEST_FAILING, strips
from penstock.model import Checkpoint
from penstock.model.checkpoint import Claim, Failing
from tests.seeds import seed_of


def test_an_empty_window_has_no_picture() -> None:
    assert strips(Checkpoint(5, 5)) == []


def test_a_small_window_is_drawn_to_scale() -> None:
    claims = (Claim(6, 8, "host", 1, 1, 1_000), Claim(8, 10, "", 2, 2, 1_000))
    drawn = strips(Checkpoint(0, 10, ((1, 5),), (Failing(0, 1, "e", 1, 1),), claims=claims))
    assert drawn == [
        ("claimed", 360.0, 120.0),
        ("waiting", 480.0, 120.0),
        ("finished", 60.0, 240.0),
        ("failing", 0.0, 60.0),
    ]


def test_a_window_of_millions_is_drawn_with_few_strips_none_of_them_outside_or_too_narrow_to_be_seen() -> None:
    chance = random.Random(seed_of())
    edges = sorted(chance.sample(range(1, 5_000_000), 40_000))
    runs = tuple(zip(edges[::2], edges[1::2], strict=True))
    failing = tuple(Failing(pointer, 1, "e", 1, 1) for pointer in range(0, 5_000_000, 1_000))
    drawn = strips(Checkpoint(0, 5_000_000, runs, failing))
    assert len(drawn) < 3 * COLUMNS
    assert all(left >= 0 and left + width <= COLUMNS + 0.1 for _, left, width in drawn)
    assert all(width >= NARROWEST_FAILING for kind, _, width in drawn if kind == "failing")
    assert max(left for kind, left, _ in drawn if kind == "failing") > COLUMNS - 3 * NARROWEST_FAILING


def test_a_failing_record_at_the_very_end_is_still_in_the_picture() -> None:
    (drawn,) = strips(Checkpoint(0, 1_000_000, (), (Failing(999_999, 1, "e", 1, 1),)))
    assert drawn == ("failing", COLUMNS - NARROWEST_FAILING, NARROWEST_FAILING)
