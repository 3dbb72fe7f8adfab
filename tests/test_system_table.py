"""The table of systems names each by one name."""

from __future__ import annotations

import re
from pathlib import Path

MARKED = re.compile(r'\bmark\.system\(\s*"([^"]+)"')
MET = re.compile(r'\b(?:met|meet|run)\(\s*"([^"]+)"')


def test_every_system_that_tests_are_marked_with_says_what_it_met() -> None:
    sources = [path.read_text("utf-8") for path in Path(__file__).parent.rglob("*.py")]
    marked = {name for source in sources for name in MARKED.findall(source)}
    met = {name for source in sources for name in MET.findall(source)}
    assert marked
    assert not marked - met, 'the table would call these systems "not started"'
