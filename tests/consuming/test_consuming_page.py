"""What the page about consuming shows is run as it stands, and its tables have every option there is."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.consuming.breaker import Breaker
from penstock.consuming.health import Health
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.retry import Retry
from tests.streams.embedded import stop_broker
from tools.docs_tables import on_page_markdown

PAGE: Final = (Path(__file__).parents[2] / "docs" / "consuming.md").read_text("utf-8")
BLOCK: Final = re.compile(r"^```python\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_runs_as_one_program(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text("\n".join(block["text"] for block in BLOCK.finditer(PAGE)))
    try:
        done = subprocess.run(
            [sys.executable, "page.py"],
            cwd=tmp_path,
            # Threads that print into one pipe can spoil each other's text in older Pythons, unless it is unbuffered.
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            capture_output=True,
            text=True,
            errors="replace",  # librdkafka logs whatever bytes it has in hand
            timeout=100,
            check=False,
        )
    finally:
        stop_broker(tmp_path / "data")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for what in ("billed", "audited", "booked"):
        assert done.stdout.count(what) == 100, f"{done.stdout}\n{done.stderr}"
    assert "succeeded attempt 1" in done.stdout


@pytest.mark.parametrize("kind", [ConsumerOptions, Retry, Breaker])
def test_every_option_has_a_row_with_its_default_and_what_it_trades(kind: type[Any]) -> None:
    mark = f"<!-- table: {kind.__module__}:{kind.__name__} -->"
    assert mark in PAGE
    rows = on_page_markdown(mark).splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [field.name for field in dataclasses.fields(kind)]
    assert all(re.fullmatch(r"\| `\w+` \| `[^|]+` \| .+ \|", row) for row in rows), rows


def test_every_field_of_health_is_explained() -> None:
    shown = [field.name for field in dataclasses.fields(Health) if field.name not in ("topic", "group", "is_running")]
    for name in shown:
        assert f"`{name}`" in PAGE, name
