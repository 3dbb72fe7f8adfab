"""The evaluator: when alerts fire, when they do not, and when they are over."""

from __future__ import annotations

import msgspec
import pytest

from penstock.observe.alerts import Evaluator, Phase, Rule, RuleKind
from penstock.observe.alerts.evaluator import MOST_RESOLVED, EvaluatorState
from penstock.observe.alerts.rules import AlertState
from penstock.observe.facts import GroupFacts, ReaderFacts, Snapshot
from tests.observe.alerts.seeing import at, capture, group, letters, pipeline, topic

BEHIND = Rule(name="behind", kind=RuleKind.LAG_S, threshold=100, for_s=30, quiet_s=20)


def only(states: list[AlertState]) -> AlertState:
    (state,) = states
    return state


def phases(evaluator: Evaluator, *snapshots: Snapshot) -> list[Phase | None]:
    """What became of the only alert after each snapshot; None: there was none."""
    found: list[Phase | None] = []
    for snapshot in snapshots:
        states = evaluator.evaluate(snapshot)
        found.append(only(states).phase if states else None)
    return found


def test_an_alert_fires_when_its_rule_has_held_for_long_enough() -> None:
    evaluator = Evaluator([BEHIND])
    slow = group(end=10, lag_s=150)
    assert phases(evaluator, at(0, group()), at(5, slow), at(30, slow), at(34, slow)) == [
        None,
        Phase.PENDING,
        Phase.PENDING,
        Phase.PENDING,
    ]
    state = only(evaluator.evaluate(at(35, slow)))
    assert state.phase is Phase.FIRING
    assert state.fired_ms == at(35).at_ms
    assert state.value == 150
    assert "billing is 10 records, 2 min 30 s behind" in state.text


def test_a_pending_alert_that_stops_holding_is_forgotten_and_its_time_begins_again() -> None:
    slow, fast = group(end=10, lag_s=150), group(end=10, lag_s=1)
    assert phases(Evaluator([BEHIND]), at(0, slow), at(20, slow), at(25, fast), at(30, slow), at(55, slow)) == [
        Phase.PENDING,
        Phase.PENDING,
        None,
        Phase.PENDING,
        Phase.PENDING,
    ]


def test_an_alert_is_resolved_when_it_has_been_quiet_for_long_enough() -> None:
    evaluator = Evaluator([BEHIND])
    slow, fast = group(end=10, lag_s=150), group(end=10, lag_s=1)
    assert phases(evaluator, at(0, slow), at(30, slow), at(35, fast), at(54, fast), at(55, fast)) == [
        Phase.PENDING,
        Phase.FIRING,
        Phase.FIRING,
        Phase.FIRING,
        Phase.RESOLVED,
    ]
    assert only(evaluator.states()).since_ms == at(55).at_ms
    assert only(evaluator.states()).fired_ms == at(30).at_ms


def test_a_value_that_hovers_about_its_threshold_does_not_make_an_alert_flap() -> None:
    evaluator = Evaluator([Rule(name="behind", kind=RuleKind.LAG_S, threshold=100, quiet_s=0)])
    seen = [at(second, group(end=10, lag_s=101 if second % 2 else 91)) for second in range(1, 40)]
    assert set(phases(evaluator, *seen)) == {Phase.FIRING}
    assert phases(evaluator, at(41, group(end=10, lag_s=89))) == [Phase.RESOLVED]


def test_an_alert_that_comes_and_goes_faster_than_it_is_quiet_stays_one_alert() -> None:
    evaluator = Evaluator([Rule(name="behind", kind=RuleKind.LAG_S, threshold=100, quiet_s=60)])
    seen = [at(second, group(end=10, lag_s=500 if second % 50 < 5 else 0)) for second in range(0, 500, 5)]
    fired = {only(evaluator.evaluate(snapshot)).fired_ms for snapshot in seen}
    assert fired == {at(0).at_ms}


def test_a_resolved_alert_that_holds_again_is_a_new_firing() -> None:
    evaluator = Evaluator([Rule(name="behind", kind=RuleKind.LAG_S, threshold=100, for_s=10, quiet_s=0)])
    slow, fast = group(end=10, lag_s=150), group(end=10, lag_s=1)
    seen = (at(0, slow), at(10, slow), at(20, fast), at(30, slow), at(35, fast), at(40, slow), at(50, slow))
    assert phases(evaluator, *seen) == [
        Phase.PENDING,
        Phase.FIRING,
        Phase.RESOLVED,
        Phase.PENDING,
        Phase.RESOLVED,
        Phase.PENDING,
        Phase.FIRING,
    ]
    assert only(evaluator.states()).fired_ms == at(50).at_ms


def test_old_facts_of_a_stream_that_is_away_neither_fire_nor_resolve_anything() -> None:
    evaluator = Evaluator([BEHIND])
    slow, fast = group(end=10, lag_s=150), group(end=10, lag_s=1)
    assert (
        phases(evaluator, at(0, slow), at(20, slow, problem="gone"), at(60, slow, problem="gone"))
        == [Phase.PENDING] * 3
    )
    # The time without an answer is not time in which the rule held.
    assert phases(evaluator, at(65, slow), at(90, slow), at(95, slow)) == [Phase.PENDING, Phase.PENDING, Phase.FIRING]
    seen = [at(second, fast, problem="gone") for second in range(100, 400, 10)]
    assert set(phases(evaluator, *seen)) == {Phase.FIRING}
    assert only(evaluator.evaluate(at(410, problem="gone"))).phase is Phase.FIRING


def test_a_stream_that_does_not_answer_is_an_alert_of_its_own_and_ends_with_the_first_answer() -> None:
    evaluator = Evaluator([Rule(name="away", kind=RuleKind.STREAM_AWAY, threshold=30, quiet_s=0)])
    assert phases(evaluator, at(0), at(5, problem="refused"), at(34, problem="refused")) == [None, None, None]
    state = only(evaluator.evaluate(at(35, problem="refused")))
    assert state.phase is Phase.FIRING
    assert state.text == "the stream has not answered for 30 s: refused"
    assert phases(evaluator, at(40)) == [Phase.RESOLVED]


def test_a_stream_that_was_never_there_is_away() -> None:
    evaluator = Evaluator([Rule(name="away", kind=RuleKind.STREAM_AWAY, threshold=0)])
    assert only(evaluator.evaluate(at(0, problem="refused"))).phase is Phase.FIRING


def test_time_to_loss_is_worse_when_it_is_lower() -> None:
    evaluator = Evaluator([Rule(name="loss", kind=RuleKind.TIME_TO_LOSS_S, threshold=3600, quiet_s=0)])
    far, near, hovering = (group(end=10, time_to_loss_s=each) for each in (7200, 3000, 3700))
    assert phases(evaluator, at(0, far), at(5, near), at(10, hovering), at(15, far)) == [
        None,
        Phase.FIRING,
        Phase.FIRING,
        Phase.RESOLVED,
    ]
    assert phases(evaluator, at(20, near), at(25, group(end=10))) == [Phase.FIRING, Phase.RESOLVED]


def test_what_retention_will_take_is_named_with_what_to_do() -> None:
    evaluator = Evaluator([Rule(name="loss", kind=RuleKind.TIME_TO_LOSS_S, threshold=3600)])
    text = only(evaluator.evaluate(at(0, group(end=10, lag_s=5, time_to_loss_s=2520)))).text
    assert "billing will lose records of orders in 42 min" in text
    assert "raise the topic's retention" in text


def test_records_that_expired_unread_are_lost() -> None:
    evaluator = Evaluator([Rule(name="lost", kind=RuleKind.LOST, threshold=1)])
    assert evaluator.evaluate(at(0, group())) == []
    text = only(evaluator.evaluate(at(5, group(committed=0, start=7, end=9, lost=7)))).text
    assert text.startswith("7 records of orders expired before group billing read them")


def test_lag_is_evaluatord_for_groups_and_pipelines_and_one_name_is_one_subject() -> None:
    evaluator = Evaluator([Rule(name="lag", kind=RuleKind.LAG, threshold=100)])
    groups, pipelines = (group("a", end=100), group("b", end=99)), (pipeline("p", lag=500), pipeline("q", lag=None))
    states = evaluator.evaluate(at(0, *groups, *pipelines))
    assert sorted(state.subject for state in states) == ["a", "p"]
    both = Evaluator([Rule(name="lag", kind=RuleKind.LAG, threshold=100, quiet_s=0)])
    assert (
        phases(both, *(at(second, group("x", end=1), pipeline("x", lag=500)) for second in range(5)))
        == [Phase.FIRING] * 5
    )


def test_a_group_that_has_lag_and_does_not_commit_is_stalled() -> None:
    evaluator = Evaluator([Rule(name="stalled", kind=RuleKind.STALLED, threshold=60, quiet_s=0)])
    idle = [at(second, group(committed=10, end=10)) for second in (0, 300, 600)]
    assert phases(evaluator, *idle) == [None] * 3
    stuck = [at(second, group(committed=10, end=second)) for second in (605, 635, 664)]
    assert phases(evaluator, *stuck) == [None] * 3
    state = only(evaluator.evaluate(at(665, group(committed=10, end=665))))
    assert state.phase is Phase.FIRING
    assert "committed nothing in orders/0 for 1 min" in state.text
    assert phases(evaluator, at(670, group(committed=11, end=665))) == [Phase.RESOLVED]


def test_one_stuck_partition_stalls_a_group_whose_others_get_on() -> None:
    evaluator = Evaluator([Rule(name="stalled", kind=RuleKind.STALLED, threshold=60)])
    states: list[AlertState] = []
    for second in range(0, 66, 5):
        stuck = ReaderFacts("billing", "orders", 0, 5, 0, 100)
        moving = ReaderFacts("billing", "orders", 1, second, 0, 100)
        states = evaluator.evaluate(at(second, GroupFacts("billing", "stable", 1, (stuck, moving))))
    assert "orders/0" in only(states).text


def test_a_group_without_members_is_told_to_be_started() -> None:
    evaluator = Evaluator([Rule(name="stalled", kind=RuleKind.STALLED, threshold=30)])
    seen = [evaluator.evaluate(at(second, group(committed=0, end=5, member=None))) for second in (0, 30)]
    assert "no members: start its consumers" in only(seen[-1]).text


def test_a_member_that_never_commits_while_records_come_is_stalled() -> None:
    evaluator = Evaluator([Rule(name="stalled", kind=RuleKind.STALLED, threshold=30)])
    waiting = [at(second, group(committed=None, end=100)) for second in (0, 60, 120)]
    assert phases(evaluator, *waiting) == [None] * 3
    coming = [at(second, group(committed=None, end=second)) for second in (125, 150, 155)]
    assert phases(evaluator, *coming) == [None, None, Phase.FIRING]


def test_a_failed_query_stalls_its_pipeline_at_once() -> None:
    evaluator = Evaluator([Rule(name="stalled", kind=RuleKind.STALLED, threshold=600, quiet_s=0)])
    state = only(evaluator.evaluate(at(0, pipeline(state="failed", error="ValueError: <b>bad</b>\nrow"))))
    assert state.phase is Phase.FIRING
    assert state.text == "pipeline usage: query spend has failed: ValueError: <b>bad</b>\\nrow"
    assert phases(evaluator, at(5, pipeline(batch_id=1))) == [Phase.RESOLVED]


def test_a_failed_query_is_told_with_the_place_in_the_program_behind_a_long_message() -> None:
    evaluator = Evaluator([Rule(name="stalled", kind=RuleKind.STALLED, threshold=600)])
    error = f"ValueError: {'a price is missing ' * 20}, at usage.py:7 in price"
    assert "usage.py:7 in price" in only(evaluator.evaluate(at(0, pipeline(state="failed", error=error)))).text


def test_a_query_that_finishes_no_batch_while_there_is_lag_is_stalled() -> None:
    evaluator = Evaluator([Rule(name="stalled", kind=RuleKind.STALLED, threshold=60)])
    assert phases(evaluator, at(0, pipeline(batch_id=3)), at(60, pipeline(batch_id=3))) == [None, None]
    assert phases(evaluator, *(at(second, pipeline(batch_id=3, lag=9)) for second in (65, 95, 125))) == [
        None,
        None,
        Phase.FIRING,
    ]


def test_a_pipeline_that_was_stopped_on_purpose_is_not_stalled_and_one_that_was_killed_is() -> None:
    rule = Rule(name="stalled", kind=RuleKind.STALLED, threshold=30)
    stopped = [at(second, pipeline(state="stopped", lag=9, is_running=False)) for second in (0, 30, 60)]
    assert phases(Evaluator([rule]), *stopped) == [None] * 3
    killed = [at(second, pipeline(state="running", lag=0, is_running=False)) for second in (0, 30)]
    assert phases(Evaluator([rule]), *killed) == [None, Phase.FIRING]


def test_time_in_which_nobody_watched_does_not_count_as_standing_still() -> None:
    evaluator = Evaluator([Rule(name="stalled", kind=RuleKind.STALLED, threshold=120)])
    asleep = [at(second, group(committed=10, end=20)) for second in (0, 8 * 3600)]
    assert phases(evaluator, *asleep) == [None, None]


def test_a_topic_is_silent_when_nothing_was_appended_for_so_long() -> None:
    evaluator = Evaluator([Rule(name="silent", kind=RuleKind.TOPIC_SILENT, threshold=60, match="orders", quiet_s=0)])
    assert (
        phases(evaluator, at(0, topic(end=5), topic("other")), at(55, topic(end=5)), at(60, topic(end=6))) == [None] * 3
    )
    assert phases(evaluator, at(119, topic(end=6)), at(120, topic(end=6)), at(125, topic(end=7))) == [
        None,
        Phase.FIRING,
        Phase.RESOLVED,
    ]


def test_internal_topics_are_silent_only_for_who_names_them() -> None:
    offsets = topic("__consumer_offsets", is_internal=True)
    for match, expected in (("*", 0), ("__*", 0), ("__consumer_offsets", 1)):
        evaluator = Evaluator([Rule(name="silent", kind=RuleKind.TOPIC_SILENT, threshold=10, match=match)])
        evaluator.evaluate(at(0, offsets))
        assert len(evaluator.evaluate(at(10, offsets))) == expected


def test_dead_letters_are_counted_as_they_come_also_while_others_are_redriven() -> None:
    evaluator = Evaluator([Rule(name="letters", kind=RuleKind.LETTERS_RATE, threshold=10, quiet_s=0)])
    assert phases(evaluator, at(0, letters(1000)), at(30, letters(1004))) == [None, None]
    assert phases(evaluator, at(40, letters(2)), at(60, letters(8))) == [None, Phase.FIRING]
    assert only(evaluator.states()).value == 10
    assert phases(evaluator, at(180, letters(8))) == [Phase.RESOLVED]


def test_dead_letters_that_wait_are_evaluatord_by_their_number() -> None:
    evaluator = Evaluator([Rule(name="letters", kind=RuleKind.LETTERS_WAITING, threshold=100)])
    assert phases(evaluator, at(0, letters(99)), at(5, letters(100))) == [None, Phase.FIRING]


def test_what_nobody_knows_at_the_moment_changes_nothing() -> None:
    evaluator = Evaluator([Rule(name="behind", kind=RuleKind.LAG_S, threshold=100, quiet_s=0)])
    slow, unknown = group(end=10, lag_s=150), group(end=10, lag_s=None)
    assert phases(evaluator, at(0, unknown), at(5, slow), at(10, unknown), at(15, group(committed=10, end=10))) == [
        None,
        Phase.FIRING,
        Phase.FIRING,
        Phase.RESOLVED,
    ]


def test_a_group_that_is_gone_ends_its_alert() -> None:
    evaluator = Evaluator([BEHIND])
    slow = group(end=10, lag_s=150)
    assert phases(evaluator, at(0, slow), at(30, slow), at(35), at(55)) == [
        Phase.PENDING,
        Phase.FIRING,
        Phase.FIRING,
        Phase.RESOLVED,
    ]


def test_removing_a_rule_resolves_what_fires_by_it() -> None:
    evaluator = Evaluator([Rule(name="behind", kind=RuleKind.LAG_S, threshold=100)])
    evaluator.evaluate(at(0, group(end=10, lag_s=150)))
    evaluator.use([])
    state = only(evaluator.evaluate(at(5, group(end=10, lag_s=150))))
    assert (state.phase, state.text) == (Phase.RESOLVED, "its rule was removed")


def test_a_clock_that_is_set_back_does_not_break_the_evaluator() -> None:
    evaluator = Evaluator([BEHIND])
    slow = group(end=10, lag_s=150)
    assert phases(evaluator, at(1000, slow), at(0, slow), at(29, slow), at(30, slow)) == [
        Phase.PENDING,
        Phase.PENDING,
        Phase.PENDING,
        Phase.FIRING,
    ]


def test_resolved_alerts_are_kept_for_a_day_and_only_so_many() -> None:
    evaluator = Evaluator([Rule(name="behind", kind=RuleKind.LAG_S, threshold=100, quiet_s=0)])
    many = [group(f"group-{number}", end=10, lag_s=150) for number in range(MOST_RESOLVED + 5)]
    assert len(evaluator.evaluate(at(0, *many))) == MOST_RESOLVED + 5
    assert len(evaluator.evaluate(at(5))) == MOST_RESOLVED
    assert evaluator.evaluate(at(5 + 86_401)) == []


def test_a_evaluator_goes_on_where_another_left_off() -> None:
    rules = [BEHIND, Rule(name="stalled", kind=RuleKind.STALLED, threshold=60)]
    slow = group(committed=3, end=10, lag_s=150)
    first = Evaluator(rules)
    first.evaluate(at(0, slow))
    first.evaluate(at(30, slow))
    kept = msgspec.json.decode(msgspec.json.encode(first.remember()), type=EvaluatorState)
    second = Evaluator(rules)
    second.recall(kept)
    assert [(state.rule, state.fired_ms) for state in second.evaluate(at(59, slow))] == [("behind", at(30).at_ms)]
    assert {state.rule for state in second.evaluate(at(60, slow)) if state.is_firing} == {"behind", "stalled"}


@pytest.mark.parametrize("name", ["\x1b[31mred", "two\nlines", "x" * 5000])
def test_names_cannot_break_a_line(name: str) -> None:
    state = only(Evaluator([Rule(name="lag", kind=RuleKind.LAG, threshold=1)]).evaluate(at(0, group(name, end=5))))
    assert state.subject == name
    assert state.text.isprintable()
    assert len(state.text) < 400


def test_what_needs_attention_first_comes_first() -> None:
    evaluator = Evaluator(
        [
            Rule(name="low", kind=RuleKind.LAG, threshold=1),
            Rule(name="high", kind=RuleKind.LAG, threshold=1, severity="critical"),  # type: ignore[arg-type]
            Rule(name="soon", kind=RuleKind.LAG, threshold=1, for_s=60, severity="critical"),  # type: ignore[arg-type]
        ]
    )
    assert [state.rule for state in evaluator.evaluate(at(0, group(end=5)))] == ["high", "low", "soon"]


def test_a_capture_whose_database_will_soon_remove_its_changes_is_an_alert() -> None:
    evaluator = Evaluator([Rule(name="loss-near", kind=RuleKind.TIME_TO_LOSS_S, threshold=3600)])
    assert phases(evaluator, at(0, capture()), at(5, capture(time_to_loss_s=7200.0))) == [None, None]
    state = only(evaluator.evaluate(at(10, capture(time_to_loss_s=600.0))))
    assert (state.subject, state.phase, state.value) == ("shop", Phase.FIRING, 600.0)
    assert (
        "in 10 min, postgresql://db/shop will remove changes that capture shop (streaming) has not read: start it "
        "if it does not run, or raise max_slot_wal_keep_size" in state.text
    )
    of_mysql = capture(time_to_loss_s=500.0, source="mariadb://db/shop")
    assert "or raise binlog_expire_logs_seconds" in only(evaluator.evaluate(at(15, of_mysql))).text


def test_a_group_and_a_capture_of_one_name_are_one_subject_with_the_shorter_time_to_loss() -> None:
    rule = Rule(name="loss-near", kind=RuleKind.TIME_TO_LOSS_S, threshold=3600)
    for of_group, of_capture in ((100.0, 200.0), (200.0, 100.0)):
        seen = at(0, group("shop", time_to_loss_s=of_group), capture("shop", time_to_loss_s=of_capture))
        assert only(Evaluator([rule]).evaluate(seen)).value == 100.0


def test_a_capture_that_failed_died_or_waits_stands_still() -> None:
    rule = Rule(name="stalled", kind=RuleKind.STALLED, threshold=300)
    failed = only(Evaluator([rule]).evaluate(at(1, capture(phase="failed", error="the slot is gone"))))
    assert failed.text == "capture shop has failed: the slot is gone"
    for phase in ("dead", "waiting"):
        evaluator = Evaluator([rule])
        assert phases(evaluator, at(100, capture(phase=phase)), at(301, capture(phase=phase))) == [None, Phase.FIRING]
    assert Evaluator([rule]).evaluate(at(1000, capture(phase="stopped"))) == []
    lost = Evaluator([Rule(name="lost", kind=RuleKind.LOST, threshold=1)])
    assert only(lost.evaluate(at(1, capture(phase="failed", is_lost=True, error="gone")))).text == (
        "capture shop lost changes: gone"
    )
