"""Since when a stream is away: known from snapshots, each of which only tells of its own time."""

from __future__ import annotations

from penstock.console.service import Outage, Outages
from penstock.console.web.frame import outage_text
from penstock.observe.facts import Snapshot


def test_an_outage_began_with_the_first_look_in_vain_however_many_follow() -> None:
    outages = Outages()
    for at_ms, problem in ((1_000, None), (2_000, "away"), (3_000, "still away")):
        outages.heard(Snapshot(at_ms, problem=problem))
    assert outages.now == Outage(since_ms=2_000, known_ms=1_000)
    outages.heard(Snapshot(4_000))
    assert outages.now is None
    outages.heard(Snapshot(5_000, problem="away again"))
    assert outages.now == Outage(since_ms=5_000, known_ms=4_000)


def test_until_the_first_answer_nothing_is_known() -> None:
    outages = Outages()
    assert outages.now is None
    assert not outages.is_known
    outages.heard(Snapshot(1_000, problem="away"))
    assert outages.now == Outage(since_ms=1_000, known_ms=None)
    assert not outages.is_known
    outages.heard(Snapshot(2_000))
    assert outages.is_known


def test_it_is_told_since_when_and_from_when_what_is_shown_is() -> None:
    told = outage_text(Outage(since_ms=65_000, known_ms=60_000), 125_000)
    assert told.startswith("Away since 1970-01-01 00:01:05 UTC, 1 min ago. What you see was last known at 1970")
    assert "Nothing was known before" in outage_text(Outage(since_ms=65_000, known_ms=None), 66_000)
