"""What holds of alerts whatever happens: drawn at random, and shown in its smallest form when it does not."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.observe.alerts import Evaluator, LogSettings, Phase, Rule, RuleKind
from penstock.observe.alerts.evaluator import EvaluatorState
from penstock.observe.alerts.notification_log import NotificationLog, NotificationState
from tests.observe.alerts.seeing import at, group

FOR_S, QUIET_S = 20.0, 40.0
RULE = Rule(name="behind", kind=RuleKind.LAG_S, threshold=100, for_s=FOR_S, quiet_s=QUIET_S)
NOTIFIER = LogSettings(name="log", repeat_s=0)

steps = st.lists(
    st.tuples(
        st.integers(1, 30),
        st.sampled_from([0.0, 50.0, 95.0, 100.0, 500.0, None]),
        st.sampled_from([False, False, False, True]),
        st.sampled_from([False, False, False, False, True]),
    ),
    max_size=60,
)
"""Seconds that pass, lag in seconds (None: nobody knows), whether the stream is away, whether the process restarts."""


@given(steps)
def test_alerts_fire_and_end_only_by_what_was_seen_and_never_in_haste(
    drawn: list[tuple[int, float | None, bool, bool]],
) -> None:
    evaluator, now, before = Evaluator([RULE]), 0, None
    fired, ended = [], []
    for passed, lag_s, is_away, restarts in drawn:
        now += passed
        if restarts:
            memory = msgspec.json.decode(msgspec.json.encode(evaluator.remember()), type=EvaluatorState)
            evaluator = Evaluator([RULE])
            evaluator.recall(memory)
        states = evaluator.evaluate(at(now, group(end=10, lag_s=lag_s), problem="gone" if is_away else None))
        alert = evaluator.alerts[0] if evaluator.alerts else None
        phase = alert.phase if alert is not None else None
        if is_away:
            assert phase == before, "old facts changed something"
        if phase is Phase.FIRING and before is not Phase.FIRING:
            assert lag_s is not None
            assert lag_s >= RULE.threshold
            fired.append(now)
        if phase is Phase.RESOLVED and before is Phase.FIRING:
            assert lag_s is not None
            assert lag_s < RULE.threshold
            ended.append(now)
        assert len(states) <= 1
        before = phase
    for end, again in zip(ended, fired[1:], strict=False):
        assert again - end >= FOR_S
    for start, end in zip(fired, ended, strict=False):
        assert end - start >= QUIET_S


@given(steps, st.lists(st.booleans(), min_size=60, max_size=60))
def test_everybody_is_told_of_each_firing_once_and_of_its_end_once(
    drawn: list[tuple[int, float | None, bool, bool]], arrives: list[bool]
) -> None:
    evaluator, ledger, now = Evaluator([RULE]), NotificationLog(), 0
    told: list[tuple[Phase, int]] = []
    fired: set[int] = set()

    def tell(does_arrive: bool) -> None:
        items = ledger.due(evaluator.alerts, NOTIFIER, at(now).at_ms, lambda *_: False)
        if does_arrive:
            ledger.arrived("log", items, at(now).at_ms)
            told.extend((item.phase, item.fired_ms) for item in items)
        else:
            ledger.failed("log", items, "out of reach")

    for (passed, lag_s, is_away, restarts), does_arrive in zip(drawn, arrives, strict=False):
        now += passed
        if restarts:
            ledger = NotificationLog(
                msgspec.json.decode(msgspec.json.encode(ledger.lines), type=list[NotificationState])
            )
        evaluator.evaluate(at(now, group(end=10, lag_s=lag_s), problem="gone" if is_away else None))
        fired |= {alert.fired_ms for alert in evaluator.alerts if alert.fired_ms is not None}
        tell(does_arrive)
    tell(True)
    tell(True)
    assert len(told) == len(set(told)), "somebody was told twice"
    assert {fired_ms for _, fired_ms in told} <= fired
    if fired:
        (alert,) = evaluator.alerts
        assert told[-1] == (alert.phase, alert.fired_ms), "the last word is not what is so"
