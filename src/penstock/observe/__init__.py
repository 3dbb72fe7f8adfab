"""Watching what runs: lag in records and in seconds, time to drain and to loss, history, alerts, metrics and traces.

Input: the stream, the checkpoint stores, the dead letters and the folders of pipelines; nothing here changes any of
them. Output: facts (`facts.Snapshot`), time series (`history`), and alerts. `metrics.registry` exposes this process's
own numbers, `trace` follows records through it, and `report_lineage` reports what reads and writes which data.
"""

from __future__ import annotations

from penstock.observe.lineage import report_lineage
from penstock.observe.tracing import trace

__all__ = ["report_lineage", "trace"]
