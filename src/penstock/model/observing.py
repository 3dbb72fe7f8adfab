"""Where those who observe meet what they observe: the one extension point for metrics and traces.

The rooms that do the work know nothing of Prometheus or OpenTelemetry. They enter what is at work with `OBSERVED.enter`
and take it out when it ends, once for each producer, consumer or deadline. It counts what it does anyway; whoever shows
the numbers reads them when asked. Records that must carry something along, and calls that are to be followed one by
one, go through `OBSERVED.tracer`, a `penstock.abc.Tracer`; while there is none, that costs a look at an attribute.

`penstock.observe` is built on this and nothing else. An observer of your own (StatsD, a debugger) can be, too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.abc import Tracer
    from penstock.model.receipt import Receipt
    from penstock.model.record import NewRecord

Left = Callable[[object], None]
"""Called with a part that has ended, once, while its numbers can still be read. It must be quick, and not raise."""


class Observed:
    """What is at work in this process, and who traces it. Any thread may use it."""

    def __init__(self) -> None:
        self.tracer: Tracer | None = None
        """Who is told of each record that is sent and each call of a handler. Consumers ask for it when they start."""
        self.is_timed = False
        """Whether somebody wants to know how long handlers take, which is not free where each record is a task."""
        self._lock = threading.Lock()
        self._parts: dict[int, object] = {}
        self._on_left: list[Left] = []

    def enter(self, part: object) -> None:
        """A part begins its work. It must `leave`: until then it is kept alive."""
        with self._lock:
            self._parts[id(part)] = part

    def leave(self, part: object) -> None:
        """A part has ended; its numbers are final. Without effect when it has left, or never entered."""
        with self._lock:
            if self._parts.pop(id(part), None) is None:
                return
            listeners = list(self._on_left)
        for listener in listeners:
            listener(part)

    def parts(self) -> list[object]:
        """What is at work now, in the order in which it began."""
        with self._lock:
            return list(self._parts.values())

    def when_left(self, listener: Left) -> None:
        """From now on, hear of each part that ends: what it counted is not to be forgotten."""
        with self._lock:
            self._on_left.append(listener)

    def forked(self) -> None:
        """In a process that was forked off, nothing of what its parent does is at work."""
        self._lock = threading.Lock()
        self._parts = {}


def send_traced(tracer: Tracer, record: NewRecord, send: Callable[[NewRecord], Receipt]) -> Receipt:
    """Send a record with what leads its reader back here; the tracer is told what became of it."""
    record, settled = tracer.sending(record)
    try:
        receipt = send(record)
    except BaseException as error:
        settled(error)
        raise
    receipt.add_done_callback(settled)
    return receipt


OBSERVED: Final = Observed()
"""That of this process."""
os.register_at_fork(after_in_child=OBSERVED.forked)
