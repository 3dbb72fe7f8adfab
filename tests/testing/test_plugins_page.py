"""What the page for authors of backends shows is run as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

PAGE: Final = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text("utf-8")
BLOCK: Final = re.compile(r"^```python\n# (?P<name>\S+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS: Final = {block["name"]: block["text"] for block in BLOCK.finditer(PAGE)}


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in BLOCKS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_page_has_what_is_run_here() -> None:
    assert set(BLOCKS) == {"test_my_backends.py", "test_my_program.py"}


def test_pytest_finds_and_runs_them(folder: Path) -> None:
    cases = "reading_changes_nothing or whole_or_not_at_all or rejected or faults"
    said = run(folder, "pytest", "-v", *BLOCKS, "-k", cases)
    for name in ("TestMyStore", "TestMyStreams", "TestMyQueue", "test_what_faults_look_like"):
        assert name in said
    assert "4 passed" in said


def test_unittest_runs_them_too(folder: Path) -> None:
    said = run(folder, "unittest", "-v", "test_my_backends.TestMyStreams.test_reading_changes_nothing")
    assert "OK" in said
