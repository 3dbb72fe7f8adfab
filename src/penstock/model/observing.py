"""The extension point for metrics, traces and lineage.

The rooms that do the work know nothing of Prometheus or OpenTelemetry. They register each producer, consumer or
deadline with `OBSERVED.enter` and remove it with `leave` when it ends. These count their work anyway; exporters read
the numbers on demand. Records that carry trace headers, and calls that are traced one by one, go through
`OBSERVED.tracer`, a `penstock.abc.Tracer`; without one, that costs one attribute lookup. Apps and pipelines report the
runs of handlers and queries to `OBSERVED.lineage`, a `penstock.abc.Lineage`.

`penstock.observe` uses only this interface, and so can an observer of your own (StatsD, a debugger).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.abc import Lineage, Tracer
    from penstock.model.receipt import Receipt
    from penstock.model.record import NewRecord

Left = Callable[[object], None]
"""Called once with a part that has ended, while its numbers can still be read. It must be quick and must not raise."""


class Observed:
    """The parts that run in this process, and the tracer. Thread-safe."""

    def __init__(self) -> None:
        self.tracer: Tracer | None = None
        """Told about each record sent and each call of a handler. Consumers read it when they start."""
        self.lineage: Lineage | None = None
        """Told about each run of a handler and of a query. Apps and pipelines read it when they start."""
        self.is_timed = False
        """Whether handler durations are measured, which costs time where each record is a task."""
        self._lock = threading.Lock()
        self._parts: dict[int, object] = {}
        self._on_left: list[Left] = []

    def enter(self, part: object) -> None:
        """Register a part that starts working. It must `leave`: until then it is kept alive."""
        with self._lock:
            self._parts[id(part)] = part

    def leave(self, part: object) -> None:
        """Remove a part that has ended; its numbers are final. No effect if it is not registered."""
        with self._lock:
            if self._parts.pop(id(part), None) is None:
                return
            listeners = list(self._on_left)
        for listener in listeners:
            listener(part)

    def parts(self) -> list[object]:
        """The registered parts, oldest first."""
        with self._lock:
            return list(self._parts.values())

    def when_left(self, listener: Left) -> None:
        """Call the listener with each part that ends from now on, so that its counts are not lost."""
        with self._lock:
            self._on_left.append(listener)

    def forked(self) -> None:
        """Clear everything in a forked child: the work of the parent is not its own."""
        self._lock = threading.Lock()
        self._parts = {}


def send_traced(tracer: Tracer, record: NewRecord, send: Callable[[NewRecord], Receipt]) -> Receipt:
    """Send a record with trace headers, and report the outcome to the tracer."""
    record, settled = tracer.sending(record)
    try:
        receipt = send(record)
    except BaseException as error:
        settled(error)
        raise
    receipt.add_done_callback(settled)
    return receipt


OBSERVED: Final = Observed()
"""The parts of this process."""
os.register_at_fork(after_in_child=OBSERVED.forked)
