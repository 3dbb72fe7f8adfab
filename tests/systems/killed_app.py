"""An app whose process is killed and started again: no record is lost, whatever system it reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from penstock import App, Retry
from tests.consuming.eventually import wait_until
from tests.forking import FORKING

FAILS_ONCE: Final = b"13"
FAILS_ALWAYS: Final = b"66"


def run_and_kill(url: str, topic: str, folder: Path, kill_after: int, **options: Any) -> list[bytes]:
    """Kill an app when it has handled `kill_after` records, start it again to the end, and return what was handled."""
    first = FORKING.Process(target=run_app, args=(url, topic, folder, None, options))
    first.start()
    try:
        wait_until(lambda: len(handled(folder)) >= kill_after, 60.0)
    finally:
        first.kill()
        first.join(30)
    second = FORKING.Process(target=run_app, args=(url, topic, folder, "latest", options))
    second.start()
    second.join(60)
    assert second.exitcode == 0, f"the second process ended with {second.exitcode}"
    assert (folder / "failed").read_bytes().split().count(FAILS_ONCE) == 1, "the failed record was not tried again"
    return handled(folder)


def handled(folder: Path) -> list[bytes]:
    file = folder / "handled"
    return file.read_bytes().split() if file.exists() else []


def run_app(url: str, topic: str, folder: Path, end: Any, options: dict[str, Any]) -> None:
    of_app = {name: options[name] for name in ("checkpoints",) if name in options}
    of_handler = {name: options[name] for name in ("dead_letters",) if name in options}
    app = App(url, group="billing", **of_app)

    @app.handle(topic, retry=Retry(2, first_delay_s=0.01), session_timeout_s=1.0, commit_interval_s=0.05, **of_handler)
    def handle(value: bytes) -> None:
        number = value.strip(b'{"number: }')
        if number == FAILS_ONCE and not (folder / "failed").exists():
            _note(folder / "failed", number)
            raise ValueError("fails once")
        if number == FAILS_ALWAYS:
            raise ValueError("fails always")
        _note(folder / "handled", number)

    app.run(end=end)


def _note(path: Path, value: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, value + b"\n")
    os.close(file)
