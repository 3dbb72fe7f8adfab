"""Ctrl-C and SIGTERM, heard where the demo can stop cleanly, and not between starting a process and owning it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from penstock.errors import PenstockError

LOOK_AGAIN_S: Final = 0.05


class Interruption:
    """Remembers the signal that came. `pause` and `until` raise what it means: KeyboardInterrupt, or SystemExit."""

    def __init__(self) -> None:
        self._came: int | None = None

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Signals only leave a note until the block is left, however many come: cleaning up is not interrupted."""
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def check(self) -> None:
        if self._came == signal.SIGINT:
            raise KeyboardInterrupt
        if self._came is not None:
            raise SystemExit(128 + self._came)

    def pause(self, duration_s: float) -> None:
        until_s = time.monotonic() + duration_s
        while (left_s := until_s - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left_s, LOOK_AGAIN_S))
        self.check()

    def until(self, is_so: Callable[[], bool], what: str, timeout_s: float, every_s: float = LOOK_AGAIN_S) -> None:
        """Wait for it. PenstockError names `what` did not come when it takes so long that something must be wrong."""
        until_s = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > until_s:
                raise PenstockError(f"{what}: not within {timeout_s:g} s. The machine is very busy, or something hangs")
            self.pause(every_s)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._came is None:
            self._came = number
