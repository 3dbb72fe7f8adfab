"""`RareWarnings`: log what may happen a million times a second, now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 10.0


class RareWarnings:
    """Logs at most one warning of each kind in 10 s, with the number of those that were left out."""

    def __init__(self, logger: logging.Logger, prefix: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._prefix = prefix
        self._now_s = now_s
        self._last_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warn(self, kind: str, text: str, *arguments: object) -> bool:
        """Log a warning, unless one of this kind was logged just now. Whether it was logged. Kinds are limited in
        number."""
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
