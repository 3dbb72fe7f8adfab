"""Tests that failed beside others are run again alone, and both outcomes are told."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.failed_tests import FailedTests
from tools.run_tests import FAILED_TESTS, MOST_RUN_AGAIN, SOAK, main, seed


class Runs:
    """Stands for pytest: each run has the next exit code and failures."""

    def __init__(self, *outcomes: tuple[int, Sequence[str]]) -> None:
        self._outcomes = list(outcomes)
        self.arguments: list[list[str]] = []

    def __call__(self, arguments: Sequence[str], failed_tests: Path) -> int:
        self.arguments.append(list(arguments))
        code, failed = self._outcomes.pop(0)
        if failed:
            failed_tests.write_text("".join(f"{test}\n" for test in failed))
        return code


def test_a_run_without_failures_is_the_only_one() -> None:
    runs = Runs((0, []))
    assert main(["--numprocesses", "4"], runs) == 0
    assert runs.arguments == [["--numprocesses", "4"]]


def test_what_failed_is_run_again_alone_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs((1, ["t.py::test_a", "t.py::test_b[x y]"]), (0, []))
    assert main(["--numprocesses", "4"], runs) == 0
    assert runs.arguments == [["--numprocesses", "4"], ["t.py::test_a", "t.py::test_b[x y]"]]
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "failed beside other tests, passed alone:",
        "  t.py::test_a",
        "  t.py::test_b[x y]",
    ]


def test_what_fails_twice_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs((1, ["t.py::test_a", "t.py::test_b"]), (1, ["t.py::test_b"]))
    assert main([], runs) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == ["failed beside other tests, passed alone:", "  t.py::test_a"]


def test_many_failures_are_not_run_again() -> None:
    runs = Runs((1, [f"t.py::test_{number}" for number in range(MOST_RUN_AGAIN + 1)]))
    assert main([], runs) == 1
    assert len(runs.arguments) == 1


@pytest.mark.parametrize("code", [2, 3, 4, 5])
def test_a_run_that_did_not_get_to_its_end_fails(code: int) -> None:
    runs = Runs((code, ["t.py::test_a"]))
    assert main([], runs) == code
    assert len(runs.arguments) == 1


def test_runs_of_one_commit_have_one_seed_and_soaks_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(message: str) -> None:
        author = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        subprocess.run(["git", *author, "commit", "--quiet", "--allow-empty", "-m", message], check=True)

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(SOAK, raising=False)
    assert seed() != seed(), "there is no checkout"
    subprocess.run(["git", "init", "--quiet"], check=True)
    commit("one")
    first = seed()
    assert seed() == first
    commit("two")
    assert seed() != first
    monkeypatch.setenv(SOAK, "1")
    assert seed() != seed()


def test_failures_are_written_without_their_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv(FAILED_TESTS, str(tmp_path / "failed"))
    failed = FailedTests()
    for phase, nodeid in (("setup", "t.py::test_a[x@y]@group"), ("teardown", "t.py::test_a[x@y]@group")):
        report = pytest.TestReport(nodeid, ("t.py", 1, "test_a"), {}, "failed", "error", phase)  # type: ignore[arg-type]
        failed.pytest_runtest_logreport(report)
    failed.write(request.config.pluginmanager.get_plugin("terminalreporter"))  # type: ignore[arg-type]
    assert (tmp_path / "failed").read_text() == "t.py::test_a[x@y]\n"
