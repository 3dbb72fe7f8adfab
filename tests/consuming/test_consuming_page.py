"""The tables on the page about consuming have every option there is. What it shows is run by tests/docs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.consuming.health import Health
from penstock.consuming.options import ConsumerOptions
from penstock.model.circuit_breaker import CircuitBreaker
from penstock.model.retry import Retry
from tools.docs_tables import on_page_markdown

PAGE: Final = (Path(__file__).parents[2] / "docs" / "consuming.md").read_text("utf-8")


@pytest.mark.parametrize("kind", [ConsumerOptions, Retry, CircuitBreaker])
def test_every_option_has_a_row_with_its_default_and_what_it_trades(kind: type[Any]) -> None:
    mark = f"<!-- table: {kind.__module__}:{kind.__name__} -->"
    assert mark in PAGE
    rows = on_page_markdown(mark).splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [field.name for field in dataclasses.fields(kind)]
    assert all(re.fullmatch(r"\| `\w+` \| `[^|]+` \| .+ \|", row) for row in rows), rows


def test_every_field_of_health_is_explained() -> None:
    shown = [field.name for field in dataclasses.fields(Health) if field.name not in ("topic", "group", "is_running")]
    for name in shown:
        assert f"`{name}`" in PAGE, name
