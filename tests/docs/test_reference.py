"""The reference has everything that there is to refer to."""

from __future__ import annotations

import inspect
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

import penstock
import penstock.testing
import penstock.testing.conformance
from tests.docs.blocks import ROOT
from tools import docs_commands, docs_errors

REFERENCE: Final = ROOT / "docs" / "reference"
SETTINGS: Final = (REFERENCE / "settings.md").read_text("utf-8")


def documented(page: str) -> set[str]:
    return set(re.findall(r"^::: (\S+)$", (REFERENCE / page).read_text("utf-8"), re.MULTILINE))


def test_every_public_name_is_in_the_api() -> None:
    errors = docs_errors.classes()
    expected = {f"penstock.{name}" for name in penstock.__all__ if name not in errors}
    assert expected <= documented("api.md")
    assert {name for name in penstock.__all__ if name.endswith("Error")} <= set(errors)


def test_every_public_name_of_pipelines_is_in_the_api() -> None:
    spark = pytest.importorskip("penstock.spark", reason="pyspark is not installed: it comes with penstock[spark]")
    from penstock.spark import patterns

    expected = {f"penstock.spark.{name}" for name in spark.__all__}
    expected |= {f"penstock.spark.patterns.{name}" for name in patterns.__all__}
    assert documented("api-spark.md") == expected | {"penstock.spark.typing"}


def test_every_public_name_of_lake_tables_is_in_the_api() -> None:
    lakes = pytest.importorskip("penstock.lakes", reason="pyarrow is not installed: it comes with penstock[delta]")
    assert documented("api-lakes.md") == {f"penstock.lakes.{name}" for name in lakes.__all__}


def test_every_public_name_for_tests_is_in_the_api() -> None:
    expected = {f"penstock.testing.{name}" for name in penstock.testing.__all__}
    expected |= {f"penstock.testing.conformance.{name}" for name in penstock.testing.conformance.__all__}
    assert documented("api-testing.md") == expected


def test_every_error_says_what_to_do() -> None:
    text = docs_errors.tables()
    for name in docs_errors.classes().keys() - docs_errors.ROOTS:
        assert f"`{name}`" in text


def test_an_error_without_advice_stops_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_errors, "FAMILIES", {"Some": {"ConfigError": "Mend it."}})
    with pytest.raises(TypeError, match=r"has no advice for .*UrlError"):
        docs_errors.tables()


def test_every_command_is_in_the_reference_with_its_options_and_examples() -> None:
    page = docs_commands.on_page_markdown("<!-- overview of commands -->\n<!-- commands -->")
    assert "[`penstock topics`](#penstock-topics) | `list`, `create`" in page
    assert "### penstock topics create" in page
    assert "| `--partitions NUMBER` |" in page
    assert "penstock topics create orders --partitions 6" in page
    assert "| `--url URL` | `kafka://127.0.0.1:9092`, or `$PENSTOCK_URL` |" in page


def test_every_environment_variable_is_in_the_settings() -> None:
    found = subprocess.run(
        ["grep", "-rhoE", "--include=*.py", "[\"'$]PENSTOCK_[A-Z_]+", str(ROOT / "src")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for name in {line[1:] for line in found.stdout.split()}:
        assert f"`{name}`" in SETTINGS, f"{name} is read by the code and not in {REFERENCE / 'settings.md'}"


@pytest.mark.parametrize(
    ("method", "heading"), [("__init__", "Pipeline"), ("read", "Pipeline.read"), ("write", "Pipeline.write")]
)
def test_every_argument_of_a_pipeline_is_in_the_settings_with_its_default(method: str, heading: str) -> None:
    module = pytest.importorskip(
        "penstock.spark.pipeline", reason="pyspark is not installed: it comes with penstock[spark]"
    )
    _, _, section = SETTINGS.partition(f"| argument of `{heading}` |")
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", section.partition("\n\n")[0], re.MULTILINE))
    parameters: dict[str, Any] = {
        name: str(getattr(each.default, "value", each.default))
        for name, each in inspect.signature(getattr(module.Pipeline, method)).parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert rows == parameters


def test_the_pictures_of_a_page_are_there(tmp_path: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for path in re.findall(r"\]\((\S+\.(?:svg|png))\)", page.read_text("utf-8")):
            assert (page.parent / path).is_file(), f"{page} shows {path}"
