"""`penstock init`: what it writes works, and nothing of anybody's is overwritten."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.commands import init
from penstock.errors import ConfigError

command = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
command.command("init")(init.init)


def run(*words: str) -> tuple[int, str]:
    """The exit code, and what was said; our own errors are raised, as the root of the command tells them."""
    done = CliRunner().invoke(command, list(words), catch_exceptions=False)
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize(("options", "stream"), [([], "memory"), (["--no-spark"], "log")])
def test_a_project_passes_its_own_tests(tmp_path: Path, options: list[str], stream: str) -> None:
    assert run(str(tmp_path / "shop"), *options)[0] == 0
    ours = ("--ignore", "tests/test_pipeline.py", "-p", "no:cacheprovider", f"--penstock-stream={stream}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *ours],
        cwd=tmp_path / "shop",
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "2 passed" in done.stdout


def test_without_spark_nothing_speaks_of_it(tmp_path: Path) -> None:
    assert run(str(tmp_path / "shop"), "--no-spark")[0] == 0
    written = [path for path in (tmp_path / "shop").rglob("*") if path.is_file()]
    assert "pipeline.py" not in {path.name for path in written}
    for path in written:
        assert not re.search("spark|pipeline", path.read_text(), re.IGNORECASE), path


def test_no_word_of_the_templates_is_left(tmp_path: Path) -> None:
    assert run(str(tmp_path / "shop"))[0] == 0
    for path in (tmp_path / "shop").rglob("*"):
        if path.is_file():
            assert not re.search(r"@[A-Z_]+@", path.read_text()), path
    assert 'group="shop"' in (tmp_path / "shop" / "app.py").read_text()


@pytest.mark.parametrize(
    ("folder", "options", "name"),
    [("Web Shop", [], "web-shop"), ("2.0", ["--name", "web_shop"], "web_shop"), ("shop.example", [], "shop-example")],
)
def test_the_name_is_that_of_the_folder_unless_given(
    tmp_path: Path, folder: str, options: list[str], name: str
) -> None:
    assert run(str(tmp_path / folder), *options)[0] == 0
    project = tomllib.loads((tmp_path / folder / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["dependencies"]) == (name, ["penstock[spark]"])


@pytest.mark.parametrize("name", ["", "Shop", "web shop", "1st", "-shop", "shop-", 'shop"', "../shop", "s" * 61, "ü"])
def test_a_name_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    code, said = run(str(tmp_path / "new"), f"--name={name}")
    assert code == 2
    assert "is not a valid project name" in said.replace("│ ", "")
    assert not (tmp_path / "new").exists()


def test_a_name_that_would_hide_an_import_is_refused(tmp_path: Path) -> None:
    code, said = run(str(tmp_path / "new"), "--name", "pyspark")
    assert code == 2
    assert "my-pyspark" in said


def test_a_folder_that_gives_no_name_says_to_give_one(tmp_path: Path) -> None:
    code, said = run(str(tmp_path / "2026"))
    assert code == 2
    assert "--name" in said


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty \(it has app\.py\).*penstock init .*/starter"):
        run(str(tmp_path), "--name", "shop")
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]
    assert (tmp_path / "app.py").read_text() == "mine"


def test_a_folder_that_is_under_version_control_and_else_empty_is_taken(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert run(str(tmp_path), "--name", "shop")[0] == 0
    assert (tmp_path / "app.py").exists()


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "shop").write_text("")
    with pytest.raises(ConfigError, match="is a file: name a folder"):
        run(str(tmp_path / "shop"))


def test_it_says_what_to_do_next(tmp_path: Path) -> None:
    code, said = run(str(tmp_path / "shop"))
    assert code == 0
    assert f"cd {tmp_path / 'shop'} pytest python app.py penstock run pipeline.py --once" in said
