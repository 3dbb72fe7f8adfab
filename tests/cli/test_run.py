"""`penstock run`, as far as it goes without Spark: what is wrong is told before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import COMMAND, Command
from tests.servers import free_ports

pytest.importorskip("pyspark", reason="pyspark is not installed: it comes with penstock[spark]")

TIMEOUT_S = 60.0


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """One that says how it was called, and defines nothing."""
    (tmp_path / "beside.py").write_text("WORD = 'found'\n")
    file = tmp_path / "program.py"
    file.write_text(
        "import sys, beside\nprint(__name__, sys.argv[1:], beside.WORD, sys.modules['__main__'].__file__ == __file__)\n"
    )
    return file


@pytest.mark.parametrize(
    ("options", "code", "complaint"),
    [
        (["--master", "spork://here:1"], 2, "is not a Spark master: write local[N]"),
        (["--master", "local[0]"], 2, "is not a Spark master"),
        (["--master", "spark://nowhere"], 2, "is not a Spark master"),
        (["--conf", "spark.ui.enabled"], 2, "is not NAME=VALUE"),
        (["--conf", "ui.enabled=true"], 2, "they begin with spark."),
        (["--from", "yesterday-ish"], 2, "is not a position"),
        (["--from", "42"], 2, "is an offset"),
        (["--engine", "steam"], 2, "steam"),
        (["--metrics", "9464"], 1, "the address for metrics '9464' is not HOST:PORT"),
        (["--archive", "env.tar.gz"], 1, "a local master runs everything in this process"),
        (["--retire"], 2, "it needs --reprocess"),
        (["--switch", "always"], 2, "it needs --reprocess"),
        (["--reprocess", "--delete-topics"], 2, "it needs --retire"),
        (["--reprocess", "--from", "latest"], 2, "starts at the earliest records"),
    ],
)
def test_what_is_written_wrongly_is_told(
    run: Command, program: Path, options: list[str], code: int, complaint: str
) -> None:
    done = run("run", str(program), *options)
    assert (done.code, "Traceback" in done.err) == (code, False), done.err
    assert complaint in " ".join(done.err.replace("│", " ").split())
    assert "__main__" not in done.out, "the program was not begun"


def test_a_program_that_is_not_there_is_told(run: Command, tmp_path: Path) -> None:
    done = run("run", str(tmp_path / "no.py"))
    assert done.code == 2
    assert "there is no file" in done.err


def test_a_master_that_does_not_answer_is_told_at_once(run: Command, program: Path) -> None:
    (port,) = free_ports(1)
    done = run("run", str(program), "--master", f"spark://127.0.0.1:{port}")
    assert done.code == 1
    assert f"no Spark master answers at spark://127.0.0.1:{port}" in done.err


def test_yarn_needs_to_know_its_cluster(run: Command, program: Path) -> None:
    unset = {name: value for name, value in run.environment.items() if name not in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")}
    done = subprocess.run(
        [*COMMAND, "run", str(program), "--master", "yarn"],
        capture_output=True,
        text=True,
        env=unset,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "HADOOP_CONF_DIR" in done.stderr


def test_a_program_is_run_as_python_runs_it(run: Command, program: Path) -> None:
    done = run("run", str(program), "--", "--customers", "10", "--once")
    assert done.out == "__main__ ['--customers', '10', '--once'] found True\n"
    assert done.code == 1
    assert "program.py defines no pipeline" in done.err


def test_a_mistake_in_the_program_is_shown_from_its_own_lines_on(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def f():\n    return 1 / 0\n\nf()\n")
    done = run("run", str(file))
    assert done.code == 1
    assert "ZeroDivisionError" in done.err
    assert "return 1 / 0" in done.err
    assert "penstock/cli" not in done.err
    file.write_text("def f(:\n")
    done = run("run", str(file))
    assert (done.code, "SyntaxError" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ("from pyspark.sql.functions import udf\n@udf('long')\ndef f(x): ...\n", True),
        ("from penstock.spark import Pipeline\n", True),
        ("from penstock.spark import Pipeline\nfrom penstock.spark.windows import session\nsession('at')\n", True),
        ("import penstock\nprint(penstock.__version__)\n", False),
        ("from penstock.spark import Pipeline, session\n", False),
        ("from penstock.spark.sessions.opening import session\n", False),
        ("import penstock.spark\npenstock.spark.session(conf={})\n", False),
        ("from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n", False),
        ("import pyspark\npyspark.SparkContext()\n", False),
        ("def f(:\n", False),
    ],
)
def test_a_session_is_made_for_programs_that_use_spark_and_make_none(tmp_path: Path, source: str, needed: bool) -> None:
    from penstock.cli.programs import needs_session

    (tmp_path / "program.py").write_text(source)
    assert needs_session(tmp_path / "program.py") is needed


def test_a_program_chooses_its_own_exit_code(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "leaves.py"
    file.write_text("raise SystemExit(7)\n")
    assert run("run", str(file)).code == 7


def test_errors_of_ours_are_one_sentence(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "refused.py"
    file.write_text("from penstock.spark.pipeline import Pipeline\np = Pipeline('a b', 'log:./x')\n")
    done = run("run", str(file))
    assert (done.code, "Traceback" in done.err) == (1, False)
    assert "penstock: the name of a pipeline 'a b' is not allowed" in done.err


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    file = tmp_path / "needs_spark.py"
    file.write_text("from penstock.spark.sessions.opening import session\nsession()\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    hidden = (
        "from pathlib import Path; import penstock.java.installed as java; java.jvm_folders = lambda: (); "
        "from penstock.cli import main; main()"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_REMOTE")}
    done = subprocess.run(
        [sys.executable, "-c", hidden, "run", str(file)],
        capture_output=True,
        text=True,
        env={**environment, "PATH": str(empty)},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "Spark needs Java 17 or newer; found none" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_may_stand_behind_reprocess() -> None:
    import typer

    from penstock.cli.main import app

    command = typer.main.get_command(app)
    run_command = command.commands["run"]  # type: ignore[attr-defined]
    for written in (["--reprocess", "v3"], ["--reprocess=v3"], ["--reprocess", "--version", "v3"]):
        context = run_command.make_context("run", ["x.py", *written, "--once", "--", "--reprocess", "v9"])
        assert context.params["reprocess"] is True
        assert context.params["version"] == "v3"
        assert list(context.params["arguments"]) == ["--reprocess", "v9"]
    context = run_command.make_context("run", ["--reprocess", "x.py"])
    assert (context.params["reprocess"], context.params["version"]) == (True, None)
    assert str(context.params["file"]) == "x.py"


def test_no_versions_yet_says_how_to_make_one(run: Command) -> None:
    done = run.well("pipelines", "versions")
    assert "penstock run FILE.py --reprocess" in done.err
    assert run.well("pipelines", "versions", "--json").json == []


def test_a_pipeline_nobody_knows_is_told(run: Command) -> None:
    for arguments in (["switch", "nobody", "v2"], ["retire", "nobody", "v2"], ["compare", "nobody", "v2"]):
        done = run("pipelines", *arguments)
        assert (done.code, "Traceback" in done.err) == (1, False)
        assert "pipeline 'nobody' has no version 'v2'" in done.err
