"""Watching what runs: lag in records and in seconds, time to drain and to loss, history, alerts, metrics and traces.

What comes in is what the stream, the checkpoint stores, the dead letters and the folders of pipelines say; nothing here
changes any of them. What goes out are facts (`facts.Snapshot`), series of the past (`history`), and alerts. What this
process does itself is told by `metrics.registry`, and followed from record to record once `trace` is called.
"""

from __future__ import annotations

from penstock.observe.tracing import trace

__all__ = ["trace"]
