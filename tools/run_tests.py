"""Runs the tests: `python -m tools.run_tests [options of pytest]`.

In a fresh clone, the tests are compiled first: pytest rewrites the assertions of each module, and every worker would do
that for all modules at the same time.

A test that waits for a server may fail because the machine was busy with the tests beside it. So a few failures are run
again, one at a time. A test that then passes does not fail the run, but is named in its last lines: it is either too
impatient or has found a race, and both deserve a look. A test that fails again fails the run.

Runs of one commit try the same sample of cases, wherever they run; the next commit tries another. A soak draws a new
seed each time. PENSTOCK_SEED overrides both.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

FAILED_TESTS: Final = "PENSTOCK_FAILED_TESTS"
"""The environment variable with the file that tests/failed_tests.py writes: one test a line."""
SEED: Final = "PENSTOCK_SEED"
SOAK: Final = "PENSTOCK_SOAK"
EVERY_ROOM: Final = "PENSTOCK_EVERY_ROOM"
"""The environment variable that says that all rooms are tested."""
MOST_RUN_AGAIN: Final = 10
"""With more failures than this, the machine is not the reason."""
TESTS_FAILED: Final = 1
"""The exit code of pytest when tests ran and some failed."""
TESTS: Final = Path("tests")
COMPILED: Final = TESTS / "log" / "__pycache__"
"""What a run of all rooms leaves, and `make check` does not."""

Run = Callable[[Sequence[str], Path], int]
"""Runs pytest with these arguments, and writes the tests that failed to the file; returns its exit code."""


def main(options: Sequence[str], run: Run) -> int:
    with tempfile.TemporaryDirectory(prefix="penstock-tests-") as folder:
        first, second = Path(folder) / "first", Path(folder) / "second"
        code = run(options, first)
        failed = _lines(first)
        if code != TESTS_FAILED or not failed:
            return code
        if len(failed) > MOST_RUN_AGAIN:
            _say(f"{len(failed)} tests failed, more than {MOST_RUN_AGAIN}: none is run again")
            return code
        _say(f"run again, one at a time: {len(failed)} that failed")
        code = run(failed, second)
        passed = [test for test in failed if test not in _lines(second)]
        if passed and code in (0, TESTS_FAILED):
            _say("failed beside other tests, passed alone:")
            for test in passed:
                _say(f"  {test}")
        return code


def _run_pytest(arguments: Sequence[str], failed_tests: Path) -> int:
    environment = {**os.environ, FAILED_TESTS: str(failed_tests)}
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, check=False).returncode


def _compile_tests() -> None:
    """Collect each half of the rooms in a process of its own. Errors are left to the run itself."""
    rooms = sorted(str(path) for path in TESTS.iterdir() if path.is_dir() and path.name != COMPILED.name)
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet"]
    halves = [
        subprocess.Popen([*command, *half], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for half in (rooms[::2], rooms[1::2])
    ]
    for half in halves:
        half.wait()


def seed() -> str:
    """The seed of a run: of its commit, or a new one in a soak and outside a checkout."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if os.environ.get(SOAK) or asked.returncode != 0:
        return str(random.SystemRandom().randrange(1 << 32))
    return str(int(asked.stdout[:8], 16))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # Both runs sample the same cases.
    os.environ.setdefault(SEED, seed())
    if os.environ.get(EVERY_ROOM) and not COMPILED.exists():
        _compile_tests()
    sys.exit(main(sys.argv[1:], _run_pytest))
