"""An example runs as it says: by one command, without anything prepared, until it ends by itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).parents[3]
NAME: Final = "examples/pipelines/click_enrichment.py"


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
