"""An app on a durable queue, in a process of its own, that may be killed between handling and settling.

For each record it adds a line to a file of effects. It ends when the queue is empty.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from penstock.abc import Delivery, Outcome
from penstock.app import App
from tests.forking import FORKING
from tests.testing.sqlite_queue import SqliteDelivery, SqliteQueue


class DyingQueue(SqliteQueue):
    """Kills its process at the nth settle, before or after it is made; 0: never."""

    def __init__(self, folder: Path, nth: int, after: bool) -> None:
        super().__init__(folder)
        self._left = nth
        self._after = after
        self.is_empty = threading.Event()

    def receive(self, limit: int, wait_s: float) -> Sequence[SqliteDelivery]:
        deliveries = super().receive(limit, wait_s)
        with self.transaction() as database:
            if not database.execute("SELECT count(*) FROM queue").fetchone()[0]:
                self.is_empty.set()
        return deliveries

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        self._left -= 1
        if self._left == 0 and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        super().settle(delivery, outcome, delay_s)
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def start(folder: Path, nth: int, after: bool) -> BaseProcess:
    process = FORKING.Process(target=work, args=(folder, nth, after))
    process.start()
    return process


def work(folder: Path, nth: int, after: bool) -> None:
    queue = DyingQueue(folder, nth, after)
    file = os.open(folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    app = App(group="g")

    @app.handle(queue, workers=2, dead_letters=False)
    def handle(value: bytes) -> None:
        os.write(file, value + b"\n")

    thread = app.start()
    assert queue.is_empty.wait(60)
    app.stop()
    thread.join(30)
    queue.close()
