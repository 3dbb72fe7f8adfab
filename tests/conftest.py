"""What every test run shares: its seed, its profile of hypothesis, and its last lines: the slowest tests, the
systems that were met, what was sampled, and what could not run and why."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Protocol

import pytest
from hypothesis import settings

from tests import system_table
from tests.could_not_run import CouldNotRun
from tests.failed_tests import FailedTests
from tests.sampling import MARKER, SOAK_MARKER, Sampling, is_soak
from tests.seeds import VARIABLE
from tests.slowest import Slowest
from tests.system_table import Systems

LONGEST: Final = (
    "spark",
    "spark-examples",
    "spark-cluster",
    "chromium",
    "kafka-cluster",
    "demo",
    "java",
    "type-checkers",
    "rabbitmq-stream",
    "amqp1",
)
"""The groups of tests that take longest, the longest first."""
SOAK_TIMEOUT_S: Final = 4 * 3600
EXAMPLES: Final = {"test": 30, "soak": 1_000}
"""How many examples hypothesis tries where a test does not say it, by profile."""


@dataclass(frozen=True, slots=True)
class LastLines:
    """The plugins that write the last lines of a run, in their order."""

    slowest: Slowest = field(default_factory=Slowest)
    systems: Systems = field(default_factory=Systems)
    sampling: Sampling = field(default_factory=Sampling)
    could_not_run: CouldNotRun = field(default_factory=CouldNotRun)
    failed: FailedTests = field(default_factory=FailedTests)

    @property
    def plugins(self) -> tuple[Slowest, Systems, Sampling, CouldNotRun, FailedTests]:
        return self.slowest, self.systems, self.sampling, self.could_not_run, self.failed

    def for_the_controller(self) -> dict[str, object]:
        return {
            **self.systems.for_the_controller(),
            **self.sampling.for_the_controller(),
            **self.could_not_run.for_the_controller(),
        }

    def merge(self, worker_output: dict[str, object]) -> None:
        self.systems.merge(worker_output)
        self.sampling.merge(worker_output)
        self.could_not_run.merge(worker_output)

    def write(self, reporter: pytest.TerminalReporter) -> None:
        for each in self.plugins:
            each.write(reporter)


LAST_LINES = pytest.StashKey[LastLines]()


class Worker(Protocol):
    """What the controller of pytest-xdist keeps about one of its worker processes."""

    config: pytest.Config


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell without job control starts what runs in the background with SIGINT ignored, and every process that a
        # test starts and interrupts would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # One seed for the whole run. The workers of pytest-xdist inherit it: they must agree on what they collect.
    os.environ.setdefault(VARIABLE, str(random.SystemRandom().randrange(1 << 32)))
    for name, examples in EXAMPLES.items():
        settings.register_profile(name, max_examples=examples)
    settings.load_profile("soak" if is_soak() else "test")
    config.addinivalue_line("markers", f"{MARKER}(count, each=, among=): `make test` tries some, see tests/sampling.py")
    config.addinivalue_line("markers", f"{SOAK_MARKER}: `make soak` alone runs it, see tests/sampling.py")
    config.addinivalue_line("markers", f"{system_table.MARKER}(name): of one stream system, see tests/system_table.py")
    config.stash[LAST_LINES] = last_lines = LastLines()
    for plugin in last_lines.plugins:
        config.pluginmanager.register(plugin)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups, and after the conftest.py of any folder
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share what a fixture makes for their module stay in one worker, so that it is made once."""
    for item in items:
        if is_soak():  # whatever the test says of itself: it does many times as much
            item.add_marker(pytest.mark.timeout(SOAK_TIMEOUT_S), append=False)
        fixtures: dict[str, Sequence[pytest.FixtureDef[object]]] = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
        shared = any(fixture.scope == "module" for fixture in chain.from_iterable(fixtures.values()))
        if shared and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """What takes longest begins first, then what else stays together; single tests fill the gaps at the end."""
    marker = item.get_closest_marker("xdist_group")
    if marker is None:
        return len(LONGEST) + 1
    group = marker.kwargs.get("name") or marker.args[0]
    return LONGEST.index(group) if group in LONGEST else len(LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Worker) -> None:
    """A worker of pytest-xdist has ended: add what only it could see."""
    node.config.stash[LAST_LINES].merge(getattr(node, "workeroutput", {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """After everything else has been printed, so that these lines are the last on the screen."""
    last_lines = session.config.stash[LAST_LINES]
    worker_output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if worker_output is not None:
        worker_output.update(last_lines.for_the_controller())
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if worker_output is None and reporter is not None:
        last_lines.write(reporter)
