"""Tables of settings in the documentation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.log.config import TOPIC_SETTINGS
from tools import docs_tables


@dataclass(frozen=True)
class Limits:
    connections: int = 100
    """How many clients may be connected
    at once."""
    idle_s: float = 600.0
    """How long one may be silent, `a | b`."""


@dataclass(frozen=True)
class Unexplained:
    connections: int = 100


def test_every_visible_setting_of_a_topic_has_a_row_and_hidden_ones_have_none() -> None:
    page = docs_tables.on_page_markdown("# Settings\n\n<!-- table: penstock.log.config:TOPIC_SETTINGS -->\n")
    assert page.startswith("# Settings\n\n| name |")
    for name, setting in TOPIC_SETTINGS.items():
        assert (f"| `{name}` |" in page) != setting.hidden, name


def test_a_fixed_setting_says_why() -> None:
    table = docs_tables.table_of("penstock.log.config", "TOPIC_SETTINGS")
    assert f"| `preallocate` | `false` | {TOPIC_SETTINGS['preallocate'].fixed_because} |" in table


def test_the_fields_of_a_dataclass_are_explained_by_their_docstrings() -> None:
    assert docs_tables.fields_table(Limits).splitlines()[2:] == [
        "| `connections` | `100` | How many clients may be connected at once. |",
        "| `idle_s` | `600.0` | How long one may be silent, `a \\| b`. |",
    ]


def test_a_field_without_an_explanation_stops_the_build() -> None:
    with pytest.raises(TypeError, match=r"without a docstring.*connections"):
        docs_tables.fields_table(Unexplained)


def test_a_name_that_is_gone_stops_the_build() -> None:
    with pytest.raises(AttributeError, match="NO_SUCH_TABLE"):
        docs_tables.on_page_markdown("<!-- table: penstock.log.config:NO_SUCH_TABLE -->")
