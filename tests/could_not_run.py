"""Gathers what a test run skipped and tells it grouped by reason.

A skipped test reaches the controlling process as a report, also from a worker of pytest-xdist. A module that is skipped
while it is collected does not: xdist passes on collection failures only. So each worker hands over its own at its end.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import pytest

KEY: Final = "could_not_run"
NOT_APPLICABLE: Final = "does not apply: "
"""So begin the reasons of conformance cases about what a backend does not claim to do: nothing is missing there."""


class CouldNotRun:
    """A pytest plugin that remembers, for every test or module that was skipped, the reason given."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # An expected failure is also reported as skipped; it did run.
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = reason_of(report.longrepr)
            if not reason.startswith(NOT_APPLICABLE):
                self._reasons[without_group(report.nodeid)] = reason

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._reasons[report.nodeid] = reason_of(report.longrepr)

    def for_the_controller(self) -> dict[str, object]:
        return {KEY: dict(self._reasons)}

    def merge(self, worker_output: dict[str, object]) -> None:
        """Take over what `for_the_controller` said in another process; a worker that crashed said nothing."""
        reasons = worker_output.get(KEY, {})
        assert isinstance(reasons, dict)
        self._reasons.update(reasons)

    def grouped(self) -> dict[str, list[str]]:
        """What could not run, by reason, both in order."""
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for nodeid, reason in sorted(self._reasons.items()):
            groups[reason].append(nodeid)
        return dict(sorted(groups.items()))

    def write(self, reporter: pytest.TerminalReporter) -> None:
        groups = self.grouped()
        if not groups:
            reporter.write_line("could not run: nothing, every test that was asked for ran")
            return
        reporter.write_line("could not run:", yellow=True, bold=True)
        for reason, nodeids in groups.items():
            reporter.write_line(f"  {reason}")
            for line in by_file(nodeids):
                reporter.write_line(f"    {line}")


def by_file(nodeids: Iterable[str]) -> list[str]:
    """One line a file: how many of its tests, or the test itself if it is only one."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for nodeid in nodeids:
        files[nodeid.partition("::")[0]].append(nodeid)
    return [ids[0] if len(ids) == 1 else f"{file}: {len(ids)} tests" for file, ids in files.items()]


def without_group(nodeid: str) -> str:
    """The id as a person would type it: pytest-xdist appends `@group` to tests that must stay together."""
    return re.sub(r"@[^@\]]+$", "", nodeid)


def reason_of(longrepr: object) -> str:
    """The reason out of a skip's report: (file, line, "Skipped: reason")."""
    text = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
    return " ".join(text.removeprefix("Skipped: ").split()) or "no reason given"
