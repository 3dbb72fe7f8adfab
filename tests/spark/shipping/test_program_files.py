"""Which files belong to a program."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

import penstock
from penstock.errors import ConfigError
from penstock.spark.run import failures
from penstock.spark.sessions import packaging, program_files
from penstock.spark.sessions.packaging import NEEDED, archive_settings, complaint_about, main_file


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "program.py"


def _names(program: Path) -> set[str]:
    return {name for name, _ in program_files.program_files(program)}


def test_a_program_takes_along_what_it_imports_and_nothing_else(tmp_path: Path) -> None:
    program = _write(
        tmp_path,
        {
            "program.py": "import json, rates\nfrom shop.prices import price\n\ndef f():\n    import lazily\n",
            "rates.py": "from further import x\n",
            "further.py": "x = 1\n",
            "lazily.py": "",
            "shop/__init__.py": "",
            "shop/prices.py": "from .deep.down import y\n",
            "shop/deep/__init__.py": "",
            "shop/deep/down.py": "y = 1\n",
            "shop/table.csv": "a,b\n",
            "shop/__pycache__/prices.cpython-311.pyc": "",
            "unrelated.py": "",
            "other_package/__init__.py": "",
            "data/orders.csv": "",
        },
    )
    assert _names(program) == {
        "program.py",
        "rates.py",
        "further.py",
        "lazily.py",
        "shop/__init__.py",
        "shop/prices.py",
        "shop/deep/__init__.py",
        "shop/deep/down.py",
        "shop/table.csv",
    }


def test_a_package_without_an_init_is_one(tmp_path: Path) -> None:
    program = _write(tmp_path, {"program.py": "import space.inner\n", "space/inner.py": "", "space/x.py": ""})
    assert _names(program) == {"program.py", "space/inner.py", "space/x.py"}


def test_an_environment_beside_the_program_is_not_a_part_of_it(tmp_path: Path) -> None:
    program = _write(
        tmp_path,
        {
            "program.py": "import venv_like\n",
            "venv_like/lib/python3.11/site-packages/numpy/__init__.py": "",
        },
    )
    names = _names(program)
    assert "program.py" in names
    assert not any("site-packages" in name for name in names)


def test_what_was_imported_by_other_means_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _write(tmp_path, {"program.py": "import importlib\nimportlib.import_module('by_its_name_only')\n"})
    _write(tmp_path, {"by_its_name_only.py": ""})
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("by_its_name_only")
    monkeypatch.delitem(sys.modules, "by_its_name_only", raising=True)
    assert _names(program) == {"program.py"}
    __import__("by_its_name_only")
    try:
        assert _names(program) == {"program.py", "by_its_name_only.py"}
    finally:
        del sys.modules["by_its_name_only"]


def test_a_module_that_cannot_be_parsed_is_told_where_it_is_imported_and_not_here(tmp_path: Path) -> None:
    program = _write(tmp_path, {"program.py": "import broken\n", "broken.py": "def f(:\n"})
    assert _names(program) == {"program.py", "broken.py"}


def test_a_folder_of_everything_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_files, "MOST_FILES", 10)
    files = {f"big/m{number}.py": "" for number in range(20)}
    program = _write(tmp_path, {"program.py": "import big.m1\n", "big/__init__.py": "", **files})
    with pytest.raises(ConfigError, match="install them on the executors"):
        list(program_files.program_files(program))


def test_the_command_itself_is_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    command = types.ModuleType("__main__")
    command.__file__ = str(Path(str(penstock.__file__)).parent / "cli" / "__main__.py")
    monkeypatch.setitem(sys.modules, "__main__", command)
    assert main_file() is None


def test_executors_are_sent_all_of_penstock_and_its_lines_are_not_those_of_the_program() -> None:
    sent = dict(packaging._files(None))
    assert {"penstock/__init__.py", "penstock/serde/topic.py", "pyspark_penstock/__init__.py"} <= sent.keys()
    assert not failures._is_users(str(sent["penstock/serde/topic.py"]))
    assert program_files._is_installed(sent["penstock/serde/topic.py"])


def test_executors_that_lack_packages_are_named_with_what_to_do() -> None:
    whole = ("one", "/usr/bin/python3", "3.11.2", ())
    lacking = ("two", "/usr/bin/python3", "3.11.2", ("confluent_kafka", "pyarrow"))
    assert complaint_about([whole, whole]) is None
    complaint = complaint_about([whole, lacking, lacking])
    assert complaint is not None
    assert complaint.count("two (/usr/bin/python3, Python 3.11.2) lacks confluent-kafka, pyarrow") == 1
    assert "venv-pack" in complaint
    assert "--archive environment.tar.gz" in complaint


def test_what_is_asked_for_is_what_penstock_imports() -> None:
    """A dependency that is added must be asked for on executors, too."""
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, penstock, penstock.log.arrow, penstock.spark.source, penstock.spark.sink;"
            "import penstock.spark.values.decoding;"
            "print(*sorted({name.split('.')[0] for name in sys.modules}))",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.split()
    known = {*sys.stdlib_module_names, *NEEDED, "penstock", "pyspark", "py4j", "typing_extensions", "__main__"}
    sent_along = {"prometheus_client"}
    strange = {name for name in set(told) - known - sent_along if not name.startswith("_") and name != "cython_runtime"}
    assert not strange, f"add to penstock.spark.sessions.packaging.NEEDED what is needed of: {sorted(strange)}"


def test_an_archive_is_for_clusters(tmp_path: Path) -> None:
    archive = tmp_path / "environment.tar.gz"
    archive.touch()
    with pytest.raises(ConfigError, match="runs everything in this process"):
        archive_settings(str(archive), "local[2]")
    with pytest.raises(ConfigError, match="there is no archive"):
        archive_settings(str(tmp_path / "no.tar.gz"), "yarn")
    (tmp_path / "x.rar").touch()
    with pytest.raises(ConfigError, match="is not an archive that Spark can unpack"):
        archive_settings(str(tmp_path / "x.rar"), "yarn")
    settings = archive_settings(str(archive), "spark://h:1")
    assert settings["spark.archives"] == f"{archive}#environment"
    assert settings["spark.executorEnv.PATH"].startswith("./environment/bin:")
