"""Rules: what can be written, and what is said of what cannot."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.observe.alerts import DEFAULT_RULES, Rule, RuleKind, Severity


def test_a_rule_may_be_written_with_plain_values() -> None:
    rule = Rule(name="big", kind="lag", threshold=5, severity="critical", notify=["log"])  # type: ignore[arg-type]
    assert (rule.kind, rule.severity, rule.threshold, rule.notify) == (RuleKind.LAG, Severity.CRITICAL, 5.0, ("log",))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": ""}, "not a valid name for a rule"),
        ({"name": "two\nlines"}, "printable"),
        ({"kind": "lagg"}, "kinds are lag_s, lag"),
        ({"severity": "urgent"}, "severities warning, critical"),
        ({"threshold": -1}, "must be a number >= 0"),
        ({"threshold": 0}, "always holds"),
        ({"threshold": float("nan")}, "must be a number >= 0"),
        ({"threshold": "5"}, "must be a number"),
        ({"for_s": -1}, "must be seconds"),
        ({"quiet_s": 1e12}, "must be seconds"),
        ({"match": ""}, "write \\* for everything"),
        ({"notify": "log"}, "list of names"),
        ({"notify": ("log", "log")}, "twice"),
        ({"kind": "stream_away", "match": "billing"}, "leave match at"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_says_what_to_write(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Rule(**{"name": "rule", "kind": "lag", "threshold": 5, **wrong})


def test_a_rule_is_for_the_names_that_match_and_not_for_those_it_leaves_out() -> None:
    rule = Rule(name="all", kind=RuleKind.LAG, threshold=1, match="bill*", unless="*-test")
    assert rule.is_for("billing")
    assert not rule.is_for("billing-test")
    assert not rule.is_for("shop")
    assert not Rule(name="all", kind=RuleKind.LAG, threshold=1, match="billing").is_for("Billing")


def test_there_are_default_rules_for_what_always_needs_somebody() -> None:
    kinds = {rule.kind for rule in DEFAULT_RULES}
    assert kinds >= {
        RuleKind.STREAM_AWAY,
        RuleKind.LOST,
        RuleKind.TIME_TO_LOSS_S,
        RuleKind.STALLED,
        RuleKind.LAG_S,
        RuleKind.LETTERS_RATE,
    }
    assert len({rule.name for rule in DEFAULT_RULES}) == len(DEFAULT_RULES)
