"""An example runs as it says: by one command, without anything prepared, until it ends by itself.

`penstock run` runs the like, too, whose pipelines are gone when `main` returns.
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.cli import programs
from penstock.cli.programs import run_file
from penstock.spark.pipeline import Pipeline, defined_pipelines
from penstock.spark.run.settings import RunSettings

ROOT: Final = Path(__file__).parents[3]
NAME: Final = "examples/pipelines/click_enrichment.py"


def test_every_example_has_a_test_of_its_name() -> None:
    examples = {path.stem for path in (ROOT / "examples/pipelines").glob("*.py")}
    assert examples - {path.stem.removeprefix("test_") for path in (ROOT / "tests").rglob("test_*.py")} == set()


@pytest.mark.sampled(1, among="programs with a JVM of their own")
@pytest.mark.timeout(600)
def test_an_example_is_one_command(spark: SparkSession, tmp_path: Path) -> None:
    told = re.search(r"^    python (\S+) \[URL\]$", (ROOT / NAME).read_text(), re.MULTILINE)
    assert told is not None
    done = subprocess.run(
        [sys.executable, str(ROOT / told[1])], cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "300 clicks after the changes" in done.stdout
    assert list(tmp_path.iterdir()) == [], "what it leaves goes away with its folder"


def test_a_program_that_ran_its_pipelines_and_threw_them_away_has_done_its_work(
    spark: SparkSession, log_url: str, connection: ps.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(*_: object) -> None:
        with Pipeline("thrown-away", log_url) as pipeline:
            pipeline.write(pipeline.read("words").select("value"), "copies")
            pipeline.run(once=True)
        del pipeline
        gc.collect()

    connection.send("words", b"hello")
    connection.flush(timeout_s=60)
    monkeypatch.setattr(programs, "run_program", program)
    run_file(Path("program.py"), [], RunSettings(once=True), close=False)
    assert "thrown-away" not in {pipeline.name for pipeline in defined_pipelines()}
    assert [record.value for record in connection.read("copies")] == [b"hello"]
