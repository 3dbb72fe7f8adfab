"""`RareWarnings`: log what may happen a million times a second, now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 10.0


class RareWarnings:
    """Warnings of each kind at most every 10 s, with how many were left out since the last one."""

    def __init__(self, logger: logging.Logger, prefix: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._prefix = prefix
        self._now_s = now_s
        self._last_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warn(self, kind: str, text: str, *arguments: object) -> bool:
        """Whether it was logged. There is a limited number of kinds."""
        now_s = self._now_s()
        if now_s < self._last_s.get(kind, -EVERY_S) + EVERY_S:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return False
        self._last_s[kind] = now_s
        left_out = self._left_out.pop(kind, 0)
        if left_out:
            text += f" ({left_out} such warnings were left out)"
        self._logger.warning(f"%s: {text}", self._prefix, *arguments)
        return True
