"""mypy and pyright over what users write: programs that are right, the examples, the starter, and a page of mistakes.

pyright is there as basedpyright, which brings the Node that it runs on from the package index.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from penstock.app import App
from penstock.cli.commands import init
from penstock.consuming.options import CommonOptions, ConsumerOptions, HandlerOptions, PollOptions

HERE: Final = Path(__file__).parent
EXAMPLES: Final = HERE.parents[1] / "examples"
WRONG: Final = "# wrong"

pytestmark = [pytest.mark.xdist_group("type-checkers"), pytest.mark.timeout(600)]
"""One worker: both take their time to read all of Penstock."""

Flagged = dict[str, dict[int, str]]
"""By the name of the file: lines, and what is said of them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs, in a place that no setting of this repository reaches."""
    made = tmp_path_factory.mktemp("programs")
    (made / "use.py").write_text((HERE / "use.py").read_text())
    (made / "misuse.py").write_text((HERE / "misuse.py.in").read_text())
    init.init(made / "shop", name=None, no_spark=False)
    return made


def ran(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode in (0, 1), f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def by_mypy(folder: Path) -> Flagged:
    flagged: Flagged = {}
    cache = f"--cache-dir={folder / 'cache'}"
    told = ran(folder, "mypy", "--strict", cache, "use.py", "misuse.py")
    told += ran(folder / "shop", "mypy", "--strict", cache, ".")
    for file, line, what in re.findall(r"^(\S+):(\d+): error: (.*)$", told, re.MULTILINE):
        flagged.setdefault(Path(file).name, {})[int(line)] = what
    assert len(re.findall(r"^(Found|Success)", told, re.MULTILINE)) == 2, told
    return flagged


@pytest.fixture(scope="module")
def by_pyright(folder: Path) -> Flagged:
    settings = {
        "include": [".", str(EXAMPLES)],
        "typeCheckingMode": "standard",  # what comes from pyspark is not known well enough for more
        "strict": ["*.py", "shop/app.py", "shop/tests/test_app.py"],
        "executionEnvironments": [{"root": "shop"}, {"root": "."}, {"root": str(EXAMPLES.parent)}],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    told = json.loads(ran(folder, "basedpyright", "--outputjson", "--pythonpath", sys.executable))
    assert told["summary"]["filesAnalyzed"] >= 10
    flagged: Flagged = {}
    for found in told["generalDiagnostics"]:
        if found["severity"] == "error":
            lines = flagged.setdefault(Path(found["file"]).name, {})
            lines[found["range"]["start"]["line"] + 1] = found["message"]
    return flagged


def test_every_option_is_one_that_type_checkers_know() -> None:
    """Each option of a consumer is a parameter of `App.handle`, or stands in what types its others."""
    known = {*HandlerOptions.__annotations__, *inspect.signature(App.handle).parameters}
    options = {field.name for field in dataclasses.fields(ConsumerOptions)}
    assert options <= known
    assert CommonOptions.__annotations__.keys() <= options
    assert PollOptions.__annotations__.keys() <= options
    assert HandlerOptions.__annotations__.keys() <= options


@pytest.mark.parametrize("checker", ["by_mypy", "by_pyright"])
def test_each_mistake_is_flagged_and_nothing_else(request: pytest.FixtureRequest, checker: str) -> None:
    flagged: Flagged = request.getfixturevalue(checker)
    lines = (HERE / "misuse.py.in").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith(WRONG)}
    assert len(wrong) > 30
    missed = [lines[number - 1] for number in sorted(wrong - flagged["misuse.py"].keys())]
    assert missed == []
    assert {number: what for number, what in flagged["misuse.py"].items() if number not in wrong} == {}


@pytest.mark.parametrize("checker", ["by_mypy", "by_pyright"])
def test_nothing_is_wrong_with_the_rest(request: pytest.FixtureRequest, checker: str) -> None:
    """The page of right use, the starter with its tests, and for pyright the examples; mypy checks those with all of
    the repository."""
    flagged: Flagged = request.getfixturevalue(checker)
    assert {file: lines for file, lines in flagged.items() if file != "misuse.py"} == {}
