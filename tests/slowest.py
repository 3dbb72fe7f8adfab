"""Which tests, and which folders of them, took longest, with what they set up and took down."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from tests.could_not_run import without_group

COUNT: Final = 10


class Slowest:
    """A pytest plugin that adds up how long each test took. In the controller of pytest-xdist it hears of all."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[without_group(report.nodeid)] += report.duration  # type: ignore[assignment]

    def write(self, reporter: pytest.TerminalReporter) -> None:
        total_s = sum(self._seconds.values())
        reporter.write_line(f"the slowest of {len(self._seconds):,} tests, which took {total_s:,.0f} s in all workers:")
        for nodeid, seconds in self._seconds.most_common(COUNT):
            reporter.write_line(f"  {seconds:6.1f} s  {nodeid}")
        rooms: Counter[str] = Counter()
        for nodeid, seconds in self._seconds.items():
            rooms[nodeid.partition("::")[0].rpartition("/")[0] or "tests"] += seconds
        if len(rooms) > 1:
            told = ", ".join(f"{room} {seconds:,.0f}" for room, seconds in rooms.most_common())
            reporter.write_line(f"seconds by folder: {told}")
