"""Every example runs as it stands, twice: the second time finds what the first has left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests import real_parts
from tests.streams.embedded import stop_broker

EXAMPLES: Final = Path(__file__).parents[1] / "examples"
SAYS: Final = {
    "send_and_read.py": "of this run: [b'",
    "survive_a_crash.py": "stored 20000 of which 20000 are different",
    "bank.py": "every balance equals the replay of its events",
    "fraud.py": "300 transactions judged",
    "plain_kafka_client.py": "any client will do",
    "orders.py": "billed 299 orders of 300",
    "usage.py": "every use was counted once",
    "any_system.py": "500 of 500 views of this run were counted",
    "enrich_clicks.py": "enriched 400 clicks of 400",
    "search_index.py": "the index has 3 articles of 3",
}


NEEDS: Final = dict.fromkeys(("enrich_clicks.py", "search_index.py"), real_parts.postgres_programs)
"""What an example needs beside Python. The test is skipped where it is missing."""


def test_every_example_is_run() -> None:
    assert set(SAYS) == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("name", sorted(SAYS))
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        NEEDS[name]()
    try:
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, str(EXAMPLES / name)],
                cwd=tmp_path,
                env={**os.environ, "PYTHONWARNINGS": "error"},
                capture_output=True,
                text=True,
                errors="replace",  # librdkafka logs whatever bytes it has in hand
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
            assert SAYS[name] in done.stdout
    finally:
        stop_broker(tmp_path / "data")
