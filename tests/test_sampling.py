"""Samples of cases, and the last lines of a run, which tell of them and of the slowest tests."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.sampling import ALWAYS, EVERY_ROOM, SOAK
from tests.seeds import VARIABLE
from tests.slowest import Slowest
from tests.test_could_not_run import IN_ONE_PROCESS, IN_WORKERS, run_pytest

TESTS = """
import pathlib
import time

import pytest

from tests.sampling import sample, times

def tell(case):
    with pathlib.Path("tried").open("a") as file:
        file.write(f"{case}\\n")

@pytest.mark.sampled(5)
@pytest.mark.parametrize("number", range(100))
def test_marked(number):
    tell(f"marked {number}")

@pytest.mark.sampled(1, each="store")
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_each(store, number):
    tell(f"{store} {number}")

def test_loop():
    for number in sample(range(50), 3):
        tell(f"loop {number}")

def test_repeated():
    for number in range(times(2, soak=20)):
        tell(f"repeated {number}")

@pytest.mark.sampled(1, among="long ones")
def test_one_long():
    tell("long one")

@pytest.mark.sampled(1, among="long ones")
@pytest.mark.parametrize("number", [2, *(pytest.param(number, marks=pytest.mark.soak) for number in range(3, 13))])
def test_other_long(number):
    tell(f"long {number}")

@pytest.mark.soak
def test_second_opinion():
    tell("second opinion")

def test_slow():
    time.sleep(0.2)
"""


def tried(folder: Path, *arguments: str, **environment: str) -> tuple[list[str], str]:
    """The cases that a run tries, and what it prints."""
    (folder / "test_cases.py").write_text(TESTS)
    (folder / "tried").unlink(missing_ok=True)
    done = run_pytest(folder, *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted((folder / "tried").read_text().splitlines()), done.stdout


@pytest.mark.parametrize("arguments", [IN_ONE_PROCESS, IN_WORKERS], ids=["one process", "workers"])
def test_a_run_tries_a_sample_and_says_so_with_the_seed_that_repeats_it(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    cases, printed = tried(tmp_path, *arguments)
    assert [sum(case.startswith(kind) for case in cases) for kind in ("marked", "sqlite", "redis", "long", "loop")] == [
        5,
        1,
        1,
        1,
        3,
    ]
    told = re.search(rf"^sampled: 13 of 203 cases \({VARIABLE}=(\d+) ", printed, re.MULTILINE)
    assert told is not None, printed
    again, _ = tried(tmp_path, *arguments, **{VARIABLE: told[1]})
    assert again == cases
    other, _ = tried(tmp_path, *arguments, **{VARIABLE: str(int(told[1]) + 1)})
    assert other != cases


@pytest.mark.parametrize("arguments", [IN_ONE_PROCESS, IN_WORKERS], ids=["one process", "workers"])
def test_a_soak_tries_everything(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    cases, printed = tried(tmp_path, *arguments, **{SOAK: "1", VARIABLE: "7"})
    assert len(cases) == len(set(cases)) == 100 + 20 + 50 + 20 + 12 + 1
    assert f"sampled: nothing, every case was tried ({VARIABLE}=7)\n" in printed


def test_a_run_of_every_room_leaves_out_some_tests_of_the_rooms_that_take_long(tmp_path: Path) -> None:
    numbered = (
        "import pathlib\nimport pytest\n@pytest.mark.parametrize('number', range(12))\n"
        "def test_number(number):\n    pathlib.Path('tried').open('a').write(f'{__name__} {number}\\n')\n"
        f"def {ALWAYS[0]}():\n    pathlib.Path('tried').open('a').write('killed\\n')\n"
    )
    for room in ("systems", "log"):
        (tmp_path / "tests" / room).mkdir(parents=True)
        (tmp_path / "tests" / room / f"test_{room}.py").write_text(numbered)

    def counts(**environment: str) -> tuple[int, int, str]:
        (tmp_path / "tried").unlink(missing_ok=True)
        done = run_pytest(tmp_path, *IN_ONE_PROCESS, "tests", **{VARIABLE: "7", **environment})
        assert done.returncode == 0, done.stdout + done.stderr
        said = (tmp_path / "tried").read_text()
        assert said.count("killed") == 2, "in each room"
        return said.count("test_systems"), said.count("test_log"), done.stdout

    *tried_of_rooms, printed = counts(**{EVERY_ROOM: "1"})
    assert tried_of_rooms == [2, 12]
    assert f"sampled: 2 of 12 cases ({VARIABLE}=7 " in printed
    for whole in ({}, {EVERY_ROOM: "1", SOAK: "1"}):
        assert counts(**whole)[:2] == (12, 12)


def test_a_case_that_is_asked_for_by_its_name_is_always_tried(tmp_path: Path) -> None:
    for number in ("17", "63"):
        cases, _ = tried(tmp_path, *IN_ONE_PROCESS, f"test_cases.py::test_marked[{number}]")
        assert cases == [f"marked {number}"]


def test_the_slowest_tests_are_named_at_the_end(tmp_path: Path) -> None:
    _, printed = tried(tmp_path, *IN_WORKERS)
    last = printed.partition("the slowest of ")[2].splitlines()
    assert re.fullmatch(r"11 tests, which took \d+ s in all workers:", last[0]), printed
    assert re.fullmatch(r" +0\.\d s  test_cases\.py::test_slow", last[1]), printed
    assert not any(line.startswith("seconds by folder") for line in last), "there is only one"
    assert last[-2].startswith("sampled: ")
    assert last[-1].startswith("could not run: ")


def test_the_seconds_of_each_folder_are_told_at_the_end() -> None:
    seen = Slowest()
    lines: list[str] = []
    took = {"tests/log/test_a.py::test_x": 2.0, "tests/log/test_b.py::test_y": 1.0, "tests/test_c.py::test_z": 4.0}
    for nodeid, seconds in took.items():
        report = pytest.TestReport(nodeid, ("", None, ""), {}, "passed", None, "call", duration=seconds)
        seen.pytest_runtest_logreport(report)
    seen.write(SimpleNamespace(write_line=lines.append))  # type: ignore[arg-type]
    assert lines[-1] == "seconds by folder: tests 4, tests/log 3"
