"""Processes that are easily killed, for tests of who kills them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Final

from penstock.testing.crashing import die
from tests.forking import FORKING
from tests.prove.deaths import Death

STEPS: Final = ("wake up", "work")


def start(death: Death | None) -> BaseProcess:
    """Does its steps, each once, and ends; dies at one of them if told to."""
    return _started(_take_steps, death)


def start_endless(death: Death | None) -> BaseProcess:
    """Waits for longer than any test."""
    return _started(_wait, death)


def start_failing(death: Death | None) -> BaseProcess:
    """Ends with exit code 3."""
    return _started(_fail, death)


def _started(what: Callable[[Death | None], None], death: Death | None) -> BaseProcess:
    process = FORKING.Process(target=what, args=(death,))
    process.start()
    return process


def _take_steps(death: Death | None) -> None:
    if death is not None and death.at in STEPS:
        die()


def _wait(_: Death | None) -> None:
    threading.Event().wait(300)


def _fail(_: Death | None) -> None:
    os._exit(3)
