"""An app on an embedded log, in a process of its own, that its parent kills whenever it likes.

It copies numbers from one topic to another, exactly once, and notes in a file, at least once, that it has seen them.
"""

from __future__ import annotations

import os
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from penstock.app import App
from penstock.consuming import Retry
from tests.forking import FORKING

SESSION_S: Final = 6.0


def start(url: str, seen: Path) -> BaseProcess:
    process = FORKING.Process(target=_run, args=(url, seen))
    process.start()
    return process


def _run(url: str, seen: Path) -> None:
    app = App(url, group="copy")
    notes = os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    quick: dict[str, Any] = {
        "session_timeout_s": SESSION_S,
        "commit_interval_s": 0.02,
        "retry": Retry(5, first_delay_s=0.01),
    }

    @app.handle("numbers", to="copies", guarantee="exactly-once", **quick)
    def copy(value: bytes) -> bytes:
        return value

    @app.handle("numbers", group="note", order="key", workers=2, **quick)
    def note(value: bytes) -> None:
        os.write(notes, value + b"\n")

    app.run()
