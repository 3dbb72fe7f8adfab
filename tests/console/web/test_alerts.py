"""Alerts: rules are made, muted and removed by hand, and what is wrong with one stands at its field."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from penstock.console.web.pages.alerts import KIND_WORDS, field_of, threshold_text
from penstock.errors import ConfigError
from penstock.observe.alerts import Rule, RuleKind
from tests.console.web.worked_log import Worked


@pytest.mark.xdist_group("chromium")
def test_a_rule_is_refused_at_its_field_then_made_muted_and_removed(page: Page, worked: Worked) -> None:
    page.goto(f"{worked.address}/alerts")
    page.get_by_role("button", name="Add rule").click()
    dialog = page.locator(".dialog")
    dialog.get_by_label("Name", exact=True).fill("stalled")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.locator(".q-field--error")).to_contain_text("there is a rule stalled already")
    dialog.get_by_label("Name", exact=True).fill("by-hand")
    dialog.get_by_label("Threshold").fill("0")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.locator(".q-field--error")).to_have_count(1)
    expect(dialog.locator(".q-field--error")).to_contain_text("always holds")
    dialog.get_by_label("Threshold").fill("120")
    dialog.get_by_role("button", name="Save").click()
    row = page.locator("tr", has_text="by-hand")
    expect(row).to_contain_text("the oldest unread record has waited 2 min")
    row.click()
    page.locator(".dialog").get_by_role("button", name="8 h", exact=True).click()
    expect(row).to_contain_text(re.compile(r"until \d{4}-"))
    row.click()
    page.locator(".dialog").get_by_role("button", name="Remove").click()
    page.locator(".dialog", has_text="Remove rule by-hand?").get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": ""}, "name"),
        ({"threshold": -1.0}, "threshold"),
        ({"for_s": 1e12}, "for_s"),
        ({"quiet_s": -1.0}, "quiet_s"),
        ({"match": ""}, "match"),
        ({"notify": ("log", "log")}, "notify"),
    ],
)
def test_whatever_a_rule_refuses_is_said_at_the_field_it_is_about(wrong: dict[str, object], field: str) -> None:
    given: dict[str, object] = {"name": "match", "kind": RuleKind.LAG, "threshold": 1.0, **wrong}
    with pytest.raises(ConfigError) as refused:
        Rule(**given)  # type: ignore[arg-type]
    assert field_of(str(refused.value).removeprefix(f"rule {given['name']}: ")) == field


@pytest.mark.parametrize("kind", list(RuleKind))
def test_every_kind_of_rule_is_told_in_words(kind: RuleKind) -> None:
    assert kind in KIND_WORDS
    assert "{" not in threshold_text(Rule(name="x", kind=kind, threshold=90.0))
