"""Which programs files and folders contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.supervising.finding import programs_in, uses_spark

APP = "import penstock as ps\napp = ps.App('memory:', group='g')\n"
PIPELINE = "from penstock.spark import Pipeline\npipe = Pipeline('p', 'log:./data')\n"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_a_folder_is_the_programs_in_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        billing=APP,
        usage=PIPELINE,
        renamed="from penstock import App as Application\nApplication('memory:', group='g')\n",
        broken="def f(:\n",
        models="import penstock as ps\norders = ps.Topic('orders')\n",
        other="class App: ...\nApp()\n",
        test_billing=APP,
        conftest=APP,
    )
    assert [each.name for each in programs_in([tmp_path])] == ["billing", "broken", "renamed", "usage"]


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, made="print('an app made elsewhere')\n")
    (program,) = programs_in([tmp_path / "made.py"])
    assert (program.name, program.arguments) == ("made", (str(tmp_path / "made.py"),))


def test_programs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for name in ("orders", "clicks"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, app=APP)
    assert [each.name for each in programs_in([tmp_path / "orders", tmp_path / "clicks"])] == [
        "orders-app",
        "clicks-app",
    ]


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    write(tmp_path, models="orders = 1\n")
    with pytest.raises(ConfigError, match=r"no file in .* creates an App, a Pipeline or a LakeSink"):
        programs_in([tmp_path])
    with pytest.raises(ConfigError, match="there is no file or folder"):
        programs_in([tmp_path / "no.py"])
    with pytest.raises(ConfigError, match="is named 2 times"):
        programs_in([tmp_path / "models.py", tmp_path / "models.py"])


def test_spark_is_found_in_the_modules_that_a_program_imports(tmp_path: Path) -> None:
    write(tmp_path, app=APP, pipe="import shared.pipelines\n", plain="import app\nimport json\n")
    (tmp_path / "shared").mkdir()
    write(tmp_path / "shared", pipelines=PIPELINE)
    assert [uses_spark(tmp_path / f"{name}.py") for name in ("app", "pipe", "plain")] == [False, True, False]
