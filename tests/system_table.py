"""The stream systems, queues and channels that a test run met: server, version, features, and how its tests ended.

Tests of a system carry `pytestmark = pytest.mark.system("NATS JetStream")`, and say once what they met, with `met`. The
run ends with a table of them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

import pytest

from penstock.abc import Features
from tests.could_not_run import NOT_APPLICABLE, reason_of

MARKER: Final = "system"
KEY: Final = "systems"
PROPERTY: Final = "system"

_met: dict[str, tuple[str, list[str]]] = {}
"""By system: its server with version, and the names of the adapter's features."""


def met(system: str, server: str, features: Features) -> None:
    """Say which server the tests of a system run against, and what our adapter can do there."""
    _met[system] = (server, sorted(feature.name.lower() for feature in features))


@dataclass(eq=False)
class Systems:
    """A pytest plugin that counts the outcomes of the tests of each system, and prints the table."""

    outcomes: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    reasons: dict[str, str] = field(default_factory=dict)
    servers: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    collected: Counter[str] = field(default_factory=Counter)
    """By system: how many cases it has, those outside the sample of this run included."""
    begun: Counter[str] = field(default_factory=Counter)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        marker = item.get_closest_marker(MARKER)
        if marker is not None:
            self.collected[marker.args[0]] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        marker = item.get_closest_marker(MARKER)
        if marker is not None:
            item.user_properties.append((PROPERTY, marker.args[0]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        system = dict(report.user_properties).get(PROPERTY)
        if not isinstance(system, str):
            return
        self.begun[system] += report.when == "setup"
        if report.when != "call" and report.passed:
            return
        if report.skipped:
            reason = reason_of(report.longrepr)
            if reason.startswith(NOT_APPLICABLE):
                return
            self.reasons[system] = reason
        self.outcomes[system][report.outcome] += 1

    def for_the_controller(self) -> dict[str, object]:
        return {KEY: json.dumps({"met": _met, "collected": self.collected})}

    def merge(self, worker_output: dict[str, object]) -> None:
        """Take over what another process met. All of them collect the same cases."""
        told = json.loads(str(worker_output.get(KEY, "{}")))
        self.servers.update(told.get("met", {}))
        self.collected |= Counter(told.get("collected", {}))

    def write(self, reporter: pytest.TerminalReporter) -> None:
        if not self.outcomes:
            return
        servers = {**_met, **self.servers}
        reporter.write_line("systems:", bold=True)
        for system, outcomes in sorted(self.outcomes.items()):
            server, features = servers.get(system, ("not started", []))
            counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
            ended = counts if outcomes.keys() - {"skipped"} else f"not run: {self.reasons[system]}"
            begun, of = self.begun[system], self.collected[system]
            sampled = f" ({begun} of {of} cases were tried)" if begun < of else ""
            reporter.write_line(f"  {system}: {server}; {ended}{sampled}")
            if features:
                reporter.write_line(f"    {', '.join(features)}")
