"""Getting the real parts: what is said and kept when it works, and when it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import parts, set_up


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def put_script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_on_a_bare_machine_every_part_has_its_reason_and_set_up_does_not_fail(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tools.set_up"],
        cwd=parts.ROOT,
        env={
            "PATH": str(tmp_path / "bin"),
            "PENSTOCK_CACHE": os.environ["PENSTOCK_CACHE"],
            "PIP_NO_INDEX": "1",  # pip itself is always there; without an index it has nothing to install
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    reason = "there is no apt-get on this machine to install kcat with"
    assert f"kcat: could not be had: {reason}\n" in done.stdout
    assert parts.why_missing("kcat") == reason
    assert parts.why_missing("kafka") == (
        "mvn is not installed: there is no apt-get on this machine to install maven with"
    )
    assert parts.why_missing("spark-connector") == parts.why_missing("kafka")
    assert parts.why_missing("kafkajs").startswith("npm is not installed: ")
    assert parts.why_missing("quixstreams").startswith("python pip failed: ERROR: ")


def test_a_reason_is_forgotten_once_the_part_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> str:
        raise set_up.StepFailed("no\n  network")

    set_up.settle("kcat", fail)
    assert parts.why_missing("kcat") == "no network"
    set_up.settle("kcat", lambda: "kcat stands here")
    assert not parts.failure_note("kcat").exists()
    assert capsys.readouterr().out == "kcat: could not be had: no network\nkcat: kcat stands here\n"


def test_a_failed_command_is_told_by_its_most_telling_line(tmp_path: Path) -> None:
    script = put_script(tmp_path / "apt-get", "echo Reading; echo 'E: no such package'; echo 'E: again'; exit 100")
    with pytest.raises(set_up.StepFailed, match=r"^apt-get install failed: E: no such package$"):
        set_up.run([script, "-q", "install"], timeout_s=10, telling="^E: ")


def test_a_command_that_says_nothing_is_told_by_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(set_up.StepFailed, match="exit code 3"):
        set_up.run([put_script(tmp_path / "npm", "exit 3"), "install"], timeout_s=10, telling="x")


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(set_up.StepFailed, match="did not end within 0 s"):
        set_up.run([put_script(tmp_path / "mvn", "exec sleep 60")], timeout_s=0.2, telling="x")


def test_a_password_inside_an_address_is_not_repeated() -> None:
    line = "npm error network http://me:" + "secret@mirror.example/kafkajs"
    assert set_up.reason_in(line, "^npm error") == "npm error network http://mirror.example/kafkajs"


def test_half_a_download_is_never_found(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    with set_up.fresh_folder(folder) as fresh:
        (fresh / "one.jar").touch()

    def cut_off() -> None:
        with set_up.fresh_folder(folder) as fresh:
            (fresh / "two.jar").touch()
            raise OSError("cut off")

    with pytest.raises(OSError, match="cut off"):
        cut_off()
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "kafka",
        "kafka/one.jar",
    ]


def test_a_download_made_from_another_recipe_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An npm that leaves a mark of the package.json it was given stands in for the network."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    put_script(tmp_path / "npm", "mkdir node_modules && cp package.json node_modules/")
    recipe = tmp_path / "package.json"
    monkeypatch.setattr(parts, "KAFKAJS_PACKAGE", recipe)

    recipe.write_text("first")
    modules = Path(set_up.fetch_kafkajs())
    assert (modules / "package.json").read_text() == "first"
    (modules / "kept").touch()
    set_up.fetch_kafkajs()
    assert (modules / "kept").exists()

    recipe.write_text("second")
    set_up.fetch_kafkajs()
    assert (modules / "package.json").read_text() == "second"
    assert not (modules / "kept").exists()
