"""Watching what runs: lag in records and in seconds, time to drain and to loss, history, alerts, metrics and traces.

Input: the stream, the checkpoint stores, the dead letters and the folders of pipelines; nothing here changes any of
them. Output: facts (`facts.Snapshot`), which a `StreamObserver` gives once and a `Watch` every few seconds, time series
(`history`), and alerts. `metrics.registry` exposes this process's own numbers, `trace` follows records through it, and
`report_lineage` reports what reads and writes which data.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.observe.lineage import report_lineage, stop_lineage
from penstock.observe.tracing import trace

if TYPE_CHECKING:
    from penstock.observe.stream_observer import StreamObserver as StreamObserver
    from penstock.observe.watching import Watch as Watch

_HOMES = {"StreamObserver": "stream_observer", "Watch": "watching"}

__all__ = ["StreamObserver", "Watch", "report_lineage", "stop_lineage", "trace"]


def __getattr__(name: str) -> object:
    """Load a name on first use: programs that only trace connect to no stream."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
