"""What every test run shares: the list, at its very end, of what could not run and why."""

from __future__ import annotations

import signal
from collections.abc import Generator
from typing import Protocol

import pytest

from tests.could_not_run import CouldNotRun

LIST = pytest.StashKey[CouldNotRun]()


class Worker(Protocol):
    """What the controller of pytest-xdist keeps about one of its worker processes."""

    config: pytest.Config


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell without job control starts what runs in the background with SIGINT ignored, and every process that a
        # test starts and interrupts would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[LIST] = CouldNotRun()
    config.pluginmanager.register(config.stash[LIST], "could-not-run")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Worker) -> None:
    """A worker of pytest-xdist has ended: add what only it could see."""
    node.config.stash[LIST].merge(getattr(node, "workeroutput", {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """After everything else has been printed, so that the list is the last thing on the screen."""
    listed = session.config.stash[LIST]
    worker_output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if worker_output is not None:
        worker_output.update(listed.for_the_controller())
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if worker_output is None and reporter is not None:
        listed.write(reporter)
