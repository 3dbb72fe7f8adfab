"""Tells `tools/run_tests.py` which tests failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.could_not_run import without_group
from tools.run_tests import FAILED_TESTS


class FailedTests:
    """A pytest plugin that writes failed tests to a file. In the controller of pytest-xdist it hears of all."""

    def __init__(self) -> None:
        self._failed: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[without_group(report.nodeid)] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None

    def write(self, reporter: pytest.TerminalReporter) -> None:
        path = os.environ.get(FAILED_TESTS)
        if path and self._failed:
            Path(path).write_text("".join(f"{test}\n" for test in self._failed), encoding="utf-8")
