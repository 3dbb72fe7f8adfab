"""One program, `examples/any_system.py`, runs unchanged on six systems and more: only its URL differs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.systems.every_system import SYSTEMS

PROGRAM: Final = Path(__file__).parents[2] / "examples" / "any_system.py"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_program_runs_on(system: Callable[[Path], AbstractContextManager[str]], tmp_path: Path) -> None:
    with system(tmp_path) as url:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), url],
            cwd=tmp_path,
            env={**os.environ, "PYTHONWARNINGS": "error"},
            capture_output=True,
            text=True,
            errors="replace",  # librdkafka logs whatever bytes it has in hand
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "500 of 500 views of this run were counted" in done.stdout
    assert done.stdout.count(" 100\n") == 5, "each page was seen 100 times"
