"""Tables of settings in the documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from penstock.log.configs.topic_config import TOPIC_SETTINGS
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


def serve(
    listen: Annotated[str, typer.Option(help="HOST:PORT.")] = "127.0.0.1:9092",
    config: Annotated[list[str] | None, typer.Option(help="NAME=VALUE.")] = None,
) -> None: ...


def unexplained(listen: Annotated[str, typer.Option()] = "127.0.0.1:9092") -> None: ...


def test_every_visible_setting_of_a_topic_has_a_row_and_hidden_ones_have_none() -> None:
    page = docs_tables.on_page_markdown(
        "# Settings\n\n<!-- table: penstock.log.configs.topic_config:TOPIC_SETTINGS -->\n"
    )
    assert page.startswith("# Settings\n\n| name |")
    for name, setting in TOPIC_SETTINGS.items():
        assert (f"| `{name}` |" in page) != setting.hidden, name


def test_a_setting_that_is_fixed_or_has_no_effect_says_why() -> None:
    table = docs_tables.table_of("penstock.log.configs.topic_config", "TOPIC_SETTINGS")
    fixed, idle = TOPIC_SETTINGS["remote.storage.enable"], TOPIC_SETTINGS["preallocate"]
    assert f"| `remote.storage.enable` | `false` | {fixed.fixed_because} |" in table
    assert f"| `preallocate` | `false` | true or false | {idle.no_effect_because} |" in table


def test_a_setting_that_can_change_while_a_broker_runs_has_a_star() -> None:
    table = docs_tables.table_of("penstock.broker.settings", "BROKER_SETTINGS")
    assert r"| `log.retention.ms` \* |" in table
    assert "| `log.retention.hours` |" in table


def test_the_fields_of_a_dataclass_are_explained_by_their_docstrings() -> None:
    assert docs_tables.fields_table(Limits).splitlines()[2:] == [
        "| `connections` | `100` | How many clients may be connected at once. |",
        "| `idle_s` | `600.0` | How long one may be silent, `a \\| b`. |",
    ]


def test_a_field_without_an_explanation_stops_the_build() -> None:
    with pytest.raises(TypeError, match=r"without a docstring.*connections"):
        docs_tables.fields_table(Unexplained)


def test_the_options_of_a_command_are_explained_by_their_help() -> None:
    assert docs_tables.options_table(serve).splitlines()[2:] == [
        "| `--listen` | `127.0.0.1:9092` | HOST:PORT. |",
        "| `--config` |  | NAME=VALUE. |",
    ]


def test_an_api_is_listed_by_its_name_in_the_protocol() -> None:
    assert docs_tables.versions_table({25: (0, 4), 0: (3, 3)}).splitlines()[2:] == [
        "| Produce | 0 | 3 |",
        "| AddOffsetsToTxn | 25 | 0 to 4 |",
    ]


def test_an_option_without_help_stops_the_build() -> None:
    with pytest.raises(TypeError, match=r"without help.*listen"):
        docs_tables.options_table(unexplained)


def test_a_name_that_is_gone_stops_the_build() -> None:
    with pytest.raises(AttributeError, match="NO_SUCH_TABLE"):
        docs_tables.on_page_markdown("<!-- table: penstock.log.configs.topic_config:NO_SUCH_TABLE -->")
