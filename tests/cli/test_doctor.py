"""`penstock doctor`, as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Command

PATIENT = ("--within", "10s")


@pytest.fixture(scope="module")
def alone() -> Command:
    """The command, without a stream."""
    made = Command("")
    made.environment = {name: value for name, value in made.environment.items() if name != "PENSTOCK_URL"}
    return made


def test_the_doctor_looks_at_everything_and_says_what_to_do(run: Command, tmp_path: Path) -> None:
    done = run("doctor", *PATIENT, "--data", str(tmp_path), "--write", "--json")
    whats = {finding["what"].partition(" 9")[0].partition(" 8")[0].removesuffix("s") for finding in done.json}
    assert {"python", "extra", "java", "memory", "file handle", "data folder", "temporary", "clock", "port"} <= whats
    assert {"stream", "broker clock"} <= whats
    assert all(finding["fix"] for finding in done.json if finding["level"] != "ok")
    assert done.code == (1 if any(finding["level"] == "fail" for finding in done.json) else 0)


def test_something_to_fix_is_exit_code_1(alone: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = alone("doctor", "--within", "1s", "--data", str(tmp_path / "file"))
    assert done.code == 1
    assert "FAIL  data folder" in done.out
    assert "-> name another one with --data" in done.out
    assert "to fix" in done.err


def test_a_wish_that_cannot_be_met_is_refused(alone: Command) -> None:
    assert "--url" in alone("doctor", "--write").err
    assert alone("doctor", "--write").code == 2
    assert alone("doctor", "--within", "0").code == 2
