"""Where the tests of Spark run: all of them in one worker of pytest-xdist, which starts one JVM."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.sampling import EVERY_ROOM

TESTS = Path(__file__).with_name("test_java.py")
ROOT = TESTS.parents[2]
TIMEOUT_S = 200.0


def test_the_tests_of_spark_stay_in_one_worker() -> None:
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadgroup", str(TESTS)]
    every_test = {name: value for name, value in os.environ.items() if name != EVERY_ROOM}
    done = subprocess.run(
        command, cwd=ROOT, env=every_test, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    workers = re.findall(r"^\[(gw\d+)\].* PASSED .*@spark", done.stdout, re.MULTILINE)
    assert len(workers) > 1, done.stdout
    assert len(set(workers)) == 1, done.stdout
