"""SIGTERM and Ctrl-C, which ask a program to end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def on_stop_signals(stop: Callable[[signal.Signals], None], *, once: bool = False) -> Iterator[None]:
    """Call `stop` at SIGTERM and Ctrl-C while the block runs. Does nothing outside the main thread, as Python does.

    With `once`, a second signal has the effect that it had before the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, _: FrameType | None) -> None:
        if once:
            restore()
        stop(signal.Signals(number))

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        restore()
