"""Installing packages: with uv when it can be had, with pip when not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import install

Calls = list[tuple[str, ...]]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Every command that would have run. One whose words contain a line of `failing` fails."""
    made: Calls = []

    def call(*command: str, environment: dict[str, str] | None = None) -> int:
        made.append((Path(command[0]).name, *command[1:3]))
        failing = tmp_path / "failing"
        return int(failing.exists() and failing.read_text() in " ".join(made[-1]))

    monkeypatch.setattr(install, "call", call)
    monkeypatch.setattr(install, "UV", tmp_path / "uv")
    monkeypatch.setattr(sys, "executable", "python")
    monkeypatch.setattr(sys, "prefix", "an environment of its own")
    monkeypatch.setattr(install, "uv_settings", dict)
    return made


def test_uv_installs_and_pip_only_brings_uv(calls: Calls) -> None:
    assert install.main(["core"]) == 0
    assert calls == [("python", "-m", "pip"), ("uv", "pip", "install")]


def test_pip_takes_over_when_uv_cannot_be_had(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv").touch()
    (tmp_path / "failing").write_text("uv pip install")
    assert install.main(["dev"]) == 0
    assert calls == [("uv", "pip", "install"), ("python", "-m", "pip")]


def test_it_fails_when_pip_fails_as_well(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "failing").write_text("pip")
    assert install.main(["core"]) == 1
    assert calls == [("python", "-m", "pip"), ("python", "-m", "pip")]


@pytest.mark.parametrize("arguments", [[], ["all"], ["core", "dev"]])
def test_an_unknown_level_is_refused(arguments: list[str], calls: Calls) -> None:
    assert install.main(arguments) == 2
    assert calls == []


def test_a_level_installs_the_groups_it_needs() -> None:
    core, demo, dev = (install.requirements(level) for level in ("core", "demo", "dev"))
    assert core == ["--editable", "."]
    assert demo == ["--editable", ".[demo]"]
    assert any(package.startswith("pytest>=") for package in dev)
    assert any(package.startswith("ruff>=") for package in dev)
