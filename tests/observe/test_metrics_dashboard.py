"""The dashboard, the alert rules and the reference: they speak of the metrics that there are, and of no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.tidy.source import ROOT
from tools.docs_tables import every_metric, on_page_markdown

DASHBOARD: Final = ROOT / "dashboards" / "penstock.json"
ALERTS: Final = ROOT / "dashboards" / "alerts.yml"
PAGE: Final = ROOT / "docs" / "reference" / "metrics.md"
NAME: Final = re.compile(r"\bpenstock_[a-z_]+\b")
LABELS: Final = re.compile(r"\b(penstock_[a-z_]+)\{([^}]*)\}")
LABEL: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
EXPORTED: Final = {name: metric for metric in every_metric() for name in metric.exported}


def dashboard() -> dict[str, Any]:
    return dict(json.loads(DASHBOARD.read_text("utf-8")))


def expressions_of_dashboard() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]]


def expressions(file: Path) -> list[str]:
    return list(expressions_of_dashboard()) if file is DASHBOARD else [rule["expr"] for rule in rules()]


@pytest.mark.parametrize("file", [DASHBOARD, ALERTS], ids=lambda file: file.name)
def test_every_metric_that_is_asked_for_is_exported(file: Path) -> None:
    asked = {name for expression in expressions(file) for name in NAME.findall(expression)}
    assert len(asked) >= 15
    assert not asked - EXPORTED.keys()


@pytest.mark.parametrize("file", [DASHBOARD, ALERTS], ids=lambda file: file.name)
def test_every_label_that_is_asked_for_is_one_of_its_metric(file: Path) -> None:
    for expression in expressions(file):
        for name, conditions in LABELS.findall(expression):
            known = {*EXPORTED[name].labels, *({"le"} if name.endswith("_bucket") else ())}
            assert set(LABEL.findall(conditions)) <= known, expression


@pytest.mark.parametrize("file", [DASHBOARD, ALERTS], ids=lambda file: file.name)
def test_counters_are_asked_for_their_rate_and_gauges_are_not(file: Path) -> None:
    for expression in expressions(file):
        for name in NAME.findall(expression):
            is_rate = re.search(rf"\b(?:rate|increase)\({name}\b", expression) is not None
            assert is_rate == (EXPORTED[name].kind in ("counter", "histogram")), expression


def test_the_dashboard_has_its_rows_and_shows_what_the_one_on_call_needs() -> None:
    rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
    assert rows == ["Stream", "Groups", "Handlers", "Dead letters", "Pipelines", "Broker"]
    asked = " ".join(expressions_of_dashboard())
    for name in ("penstock_reader_lag_seconds", "penstock_reader_time_to_loss_seconds", "penstock_reader_lag_records"):
        assert name in asked


def test_every_panel_can_be_drawn_and_says_what_it_shows() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another"
        assert max(x for x, _ in cells) < 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["datasource"]["uid"] == "${datasource}", "the reader chooses where the data is"
            assert panel["targets"]
    assert next(each["type"] for each in dashboard()["templating"]["list"]) == "datasource"


def test_braces_and_brackets_of_every_expression_are_closed() -> None:
    for expression in [*expressions(DASHBOARD), *expressions(ALERTS)]:
        plain = re.sub(r'"[^"]*"', '""', expression)
        for opening, closing in ("()", "[]", "{}"):
            assert plain.count(opening) == plain.count(closing), expression


def test_every_alert_says_what_is_so_how_bad_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["action"]


def test_every_metric_is_in_the_reference_with_what_to_do() -> None:
    page = on_page_markdown(PAGE.read_text("utf-8"))
    for metric in every_metric():
        assert f"| `{metric.shown}` | {metric.kind} |" in page
        assert metric.documentation.replace("|", "\\|") in page
        assert metric.documentation.endswith(".")


def test_no_two_sources_give_one_name_to_different_things() -> None:
    names = [metric.name for metric in every_metric()]
    assert len(set(names)) == len(names)
