"""`Retirement`: how a run learns that its version is being retired."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from penstock.abc import Stream
from penstock.errors import PenstockError
from penstock.spark.versions.register import GONE, Register, Version, check_not_retired

LOOK_EVERY_S: Final = 5.0
_REFRESH_EVERY_S: Final = 60.0
_END_S: Final = 10.0
_log = logging.getLogger("penstock.spark")


class Retirement:
    """Whether the version of a run is being retired, by the register. A run that finds this ends.

    The one who retires a version marks it in the register before looking for its runs, and a run shows itself before it
    looks into the register: so at least one of them sees the other. A driver that was cut off and comes back looks
    before its next batch.
    """

    def __init__(self, stream: Stream, pipeline: str, version: str) -> None:
        self._register = Register(stream)
        self._pipeline = pipeline
        self._version = version
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def has_begun(self) -> bool:
        """Whether this version is being retired, or was."""
        entry = self._entry()
        return entry is not None and entry.state in GONE

    def check(self) -> None:
        """Raise PipelineError if this version is being retired, or was."""
        entry = self._entry()
        if entry is not None:
            check_not_retired(entry)

    def _entry(self) -> Version | None:
        if not self._register.is_possible:
            return None
        versions = self._register.versions(self._pipeline)
        return next((each for each in versions if each.version == self._version), None)

    def watch(self, on_retirement: Callable[[], None], refresh: Callable[[], None]) -> None:
        """Look from time to time, in a thread, and call `on_retirement` once. Call `refresh` once a minute.

        A stream that cannot keep versions is not asked.
        """
        if not self._register.is_possible:
            return
        arguments = (on_retirement, refresh)
        self._thread = threading.Thread(target=self._watch, args=arguments, name="penstock-retirement", daemon=True)
        self._thread.start()

    def _watch(self, on_retirement: Callable[[], None], refresh: Callable[[], None]) -> None:
        refresh_s = time.monotonic() + _REFRESH_EVERY_S
        while not self._stopping.wait(LOOK_EVERY_S):
            try:
                if self.has_begun():
                    on_retirement()
                    return
                if time.monotonic() >= refresh_s:
                    refresh()
                    refresh_s = time.monotonic() + _REFRESH_EVERY_S
            except PenstockError as error:
                _log.info("cannot look whether %s is being retired: %s", self._pipeline, error)
            except Exception as error:  # of the store or the JVM: the run must not end by that
                _log.warning("the watch for a retirement of %s goes on after an error: %s", self._pipeline, error)

    def stop(self) -> None:
        """End the thread. It may be called by that thread."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_S)
