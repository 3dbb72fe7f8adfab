"""A consumer that saves each record, in a process of its own, which its parent kills whenever it likes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from penstock.app import App
from penstock.consuming.consumer import Consumer
from penstock.model import NewRecord
from penstock.streams.memory import MemoryStream
from tests.forking import FORKING

GROUP: Final = "billing"
TOPIC: Final = "numbers"
SEEN: Final = "PENSTOCK_TEST_SEEN"
"""The environment names the file of what was handled, for handlers in processes of their own, too."""


@dataclass(frozen=True)
class Run:
    """One way to consume `numbers`, by as many processes as it takes."""

    folder: Path
    kind: str
    """Of the handler: "plain", "async", "list" or "pull"."""
    options: dict[str, Any] = field(default_factory=dict)
    records: int = 1000
    url: str | None = None
    """Of a log that holds the numbers. None: each process makes them again, record for record the same."""

    def start(self) -> BaseProcess:
        process = FORKING.Process(target=_run, args=(self,))
        process.start()
        return process

    def handled(self) -> list[int]:
        seen = self.folder / "seen.txt"
        return [int(line) for line in seen.read_text().splitlines()] if seen.exists() else []


def numbers(count: int) -> list[NewRecord]:
    return [NewRecord(TOPIC, str(number).encode(), str(number % 20).encode()) for number in range(count)]


def note(values: Sequence[bytes]) -> None:
    """Append to the file, in one write, that these were handled."""
    file = os.open(os.environ[SEEN], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, b"".join(value + b"\n" for value in values))
    os.close(file)


def handle(value: bytes) -> None:
    note([value])


async def handle_async(value: bytes) -> None:
    note([value])


def handle_list(values: list[bytes]) -> None:
    note(values)


HANDLERS: Final[dict[str, Callable[[Any], Any]]] = {"plain": handle, "async": handle_async, "list": handle_list}


def _run(run: Run) -> None:
    os.environ[SEEN] = str(run.folder / "seen.txt")
    options = {"commit_interval_s": 0, "checkpoints": f"sqlite:{run.folder / 'checkpoints.db'}", **run.options}
    streams: str | MemoryStream
    if not options.get("shared"):
        options["session_timeout_s"] = 0.3 if run.url is None else 6.0
    if run.url is None:
        streams = MemoryStream(partitions=2)
        streams.open_topic(TOPIC).append(numbers(run.records))
    else:
        streams = run.url
    if run.kind == "pull":
        with Consumer(streams, TOPIC, group=GROUP, **options) as consumer:
            for record in consumer:
                assert record.value is not None
                note([record.value])
    app = App(streams, group=GROUP)
    app.handle(TOPIC, **options)(HANDLERS[run.kind])
    app.run()
    sys.exit(0)
