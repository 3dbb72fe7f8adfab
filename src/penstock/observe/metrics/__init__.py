"""The metrics of this process, for Prometheus: its consumers, producers, deadlines, captures, tables and
pipelines.

`App(..., metrics="127.0.0.1:9464")` and `penstock run --metrics` serve them. To serve them beside your own, mount
`registry()` in your server: `prometheus_client.make_asgi_app(registry())`. Except for handler durations, the numbers
are counted anyway, and read at each scrape.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from penstock.model.observing import OBSERVED
from penstock.observe.metrics.totals import CaptureTotals, ConsumerTotals, CountTotals, RelayTotals, TableGauges

PIPELINES: Final = "penstock.spark.run.progress"
"""The module in which pipelines count, if this process has any."""

_lock = threading.Lock()
_registry: CollectorRegistry | None = None


class LibraryCollector(Collector):
    """Everything of the library in this process, also what has ended."""

    def __init__(self) -> None:
        self._kinds = (ConsumerTotals(), CountTotals(), CaptureTotals(), RelayTotals(), TableGauges())
        OBSERVED.when_left(self._left)
        OBSERVED.is_timed = True

    def collect(self) -> Iterator[Metric]:
        parts = OBSERVED.parts()
        for kind in self._kinds:
            yield from kind.collect(parts)

    def describe(self) -> Iterator[Metric]:
        """Nothing: what exists is known at the scrape."""
        yield from ()

    def _left(self, part: object) -> None:
        for kind in self._kinds:
            kind.left(part)


class PipelineCollector(Collector):
    """The counts of this process's pipelines. Spark is not loaded for this."""

    def collect(self) -> Iterator[Metric]:
        progress = sys.modules.get(PIPELINES)
        if progress is not None:
            yield from progress.REGISTRY.collect()

    def describe(self) -> Iterator[Metric]:
        yield from ()


def registry() -> CollectorRegistry:
    """All metrics of this process: of the library, of its pipelines, and of the process itself (memory, CPU, files).

    Always the same registry. It lacks what ended before the first call, and handlers are timed from then on.
    """
    global _registry
    with _lock:
        if _registry is None:
            made = CollectorRegistry()
            made.register(LibraryCollector())
            made.register(PipelineCollector())
            ProcessCollector(registry=made)
            _registry = made
        return _registry
