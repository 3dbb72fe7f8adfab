"""An app on any stream, in processes that are killed: each record is handled at least once, whatever happens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import penstock
from penstock import App, Retry
from tests.consuming.eventually import wait_until
from tests.forking import FORKING

GROUP: Final = "billing"
RECORDS: Final = 200
FAILS_ONCE: Final = b"13"
FAILS_ALWAYS: Final = b"66"
SESSION_S: Final = 1.0


def check_a_killed_app_loses_nothing(url: str, topic: str, folder: Path, checkpoints: str | None, victim: int) -> None:
    """Send records, kill the first consumer once it has handled `victim` of them, and let the next one finish."""
    with penstock.connect(url) as stream:
        stream.create_topic(topic, 2)
        receipts = [stream.send(topic, b"%d" % number, key=b"%d" % (number % 7)) for number in range(RECORDS)]
        stream.flush(30)
        assert len({(place.partition, place.offset) for place in (each.result(0) for each in receipts)}) == RECORDS
    first = FORKING.Process(target=run_app, args=(url, topic, folder, checkpoints, None))
    first.start()
    try:
        wait_until(lambda: len(handled(folder)) >= victim, 60.0)
    finally:
        first.kill()
        first.join(30)
    second = FORKING.Process(target=run_app, args=(url, topic, folder, checkpoints, "latest"))
    second.start()
    second.join(60)
    assert second.exitcode == 0, f"the second consumer ended with {second.exitcode}"
    values = handled(folder)
    expected = {b"%d" % number for number in range(RECORDS)} - {FAILS_ALWAYS}
    assert set(values) == expected, f"missing: {expected - set(values)}; not expected: {set(values) - expected}"
    assert (folder / "failed").read_bytes().split().count(FAILS_ONCE) == 1, "the failed record was not retried"
    with penstock.connect(url) as stream:
        letters = [record.value for record in stream.read(f"{topic}.dlq", timeout_s=10)]
    assert set(letters) == {FAILS_ALWAYS}, f"the dead letters are {letters}"


def handled(folder: Path) -> list[bytes]:
    seen = folder / "handled"
    return seen.read_bytes().split() if seen.exists() else []


def run_app(url: str, topic: str, folder: Path, checkpoints: str | None, end: str | None) -> None:
    app = App(url, group=GROUP, checkpoints=checkpoints)

    @app.handle(topic, retry=Retry(2, first_delay_s=0.01), session_timeout_s=SESSION_S, commit_interval_s=0.05)
    def handle(value: bytes) -> None:
        if value == FAILS_ALWAYS or (value == FAILS_ONCE and not (folder / "failed").exists()):
            if value == FAILS_ONCE:
                note(folder / "failed", value)
            raise ValueError(f"{value!r} fails")
        note(folder / "handled", value)

    app.run(end=end)  # type: ignore[arg-type]


def note(path: Path, value: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, value + b"\n")
    os.close(file)
