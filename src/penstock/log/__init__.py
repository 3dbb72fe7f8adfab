"""The storage engine: a partitioned, durable, replayable log of record batches, in plain files.

Batches are stored byte for byte as clients sent them. The room knows nothing of sockets: the broker, the spool, and
readers in other processes use it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.log.reader import LogReader as LogReader

__all__ = ["LogReader"]


def __getattr__(name: str) -> object:
    """Load the reader on first use: the broker does not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("penstock.log.reader"), name)
