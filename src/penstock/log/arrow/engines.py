"""Choosing the engine: numba is ten times as fast, once it has started."""

from __future__ import annotations

import importlib.util
import logging
import sys
from typing import Final, Literal

from penstock.errors import MissingExtraError
from penstock.log.arrow import by_numpy
from penstock.log.arrow.spans import Engine

Name = Literal["auto", "numba", "numpy"]

WORTH_STARTING_BYTES: Final = 256 * 1024 * 1024
"""numpy decodes about this much in the time that numba takes to start with its machine code already on disk."""

_logger = logging.getLogger(__name__)
_BY_NUMBA: Final = "penstock.log.arrow.by_numba"


class _Progress:
    """How much this process has decoded by numpy while numba was not started."""

    decoded_bytes = 0
    numba_fails = False


def choose(name: str, size_bytes: int) -> Engine:
    """The engine of that name; with "auto", numba if it is installed and has started or is worth starting.

    It is worth starting once this process has decoded, or is about to decode, what numpy decodes in numba's start time.
    """
    if name == "numpy":
        return by_numpy
    if name == "numba":
        if importlib.util.find_spec("numba") is None:
            raise MissingExtraError('engine="numba"', "numba")
        return _numba()
    if name != "auto":
        raise ValueError(f'{name!r} is not an engine; use "auto", "numba" or "numpy"')
    if _BY_NUMBA in sys.modules:
        return _numba()
    _Progress.decoded_bytes += size_bytes
    if _Progress.decoded_bytes < WORTH_STARTING_BYTES or _Progress.numba_fails:
        return by_numpy
    if importlib.util.find_spec("numba") is None:
        return by_numpy
    try:
        return _numba()
    except Exception:
        _Progress.numba_fails = True
        _logger.warning("numba is installed but does not work here; records are decoded by numpy", exc_info=True)
        return by_numpy


def _numba() -> Engine:
    from penstock.log.arrow import by_numba

    return by_numba
