"""The log of Pulsar's client, as a logger of Python.

The client would write to the terminal. Given a logger of Python, it calls that twice for each record, whatever the
level. So it writes to a file, which is a pipe, and a thread logs what comes out. All clients of a process share a log.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, Final

logger = logging.getLogger(__name__)

_LEVELS: Final = {" DEBUG ": logging.DEBUG, " INFO ": logging.DEBUG}
"""The others are INFO: the client reports every broken connection as an error, and repairs it; we raise what it cannot
repair."""
_LINE_CHARACTERS: Final = 2_000


class ClientLog:
    """A pipe and the thread that reads it, from the first client on to the end of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: str | None = None

    def for_client(self, pulsar: Any) -> Any:
        """What a new client takes as its `logger`."""
        level = pulsar.LoggerLevel.Info if logger.isEnabledFor(logging.DEBUG) else pulsar.LoggerLevel.Warn
        with self._lock:
            if self._path is None:
                reading, writing = os.pipe()
                self._path = f"/dev/fd/{writing}"
                threading.Thread(target=_pass_on, args=(reading,), name="pulsar-log", daemon=True).start()
            return pulsar.FileLogger(level, self._path)


LOG: Final = ClientLog()


def _pass_on(reading: int) -> None:
    with os.fdopen(reading, "r", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.rstrip()[:_LINE_CHARACTERS]
            level = next((level for mark, level in _LEVELS.items() if mark in text[:60]), logging.INFO)
            logger.log(level, "%s", text)
