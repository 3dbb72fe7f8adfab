"""The metrics of this process, for Prometheus: what its consumers, producers, deadlines and pipelines do.

`App(..., metrics="127.0.0.1:9464")` and `penstock run --metrics` serve them. To have them beside your own, mount
`registry()` in your server: `prometheus_client.make_asgi_app(registry())`. But for how long handlers take, nothing is
counted for this that is not counted anyway; the numbers are read when somebody asks.
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
from penstock.observe.metrics_consumers import ConsumerTotals
from penstock.observe.metrics_deadlines import DeadlineTotals
from penstock.observe.metrics_producers import ProducerTotals

PIPELINES: Final = "penstock.spark.progress"
"""Where pipelines count, if this process has any."""

_lock = threading.Lock()
_registry: CollectorRegistry | None = None


class LibraryCollector(Collector):
    """Everything of the library that is at work in this process, and what is over."""

    def __init__(self) -> None:
        self._kinds = (ConsumerTotals(), DeadlineTotals(), ProducerTotals())
        OBSERVED.when_left(self._left)
        OBSERVED.is_timed = True

    def collect(self) -> Iterator[Metric]:
        parts = OBSERVED.parts()
        for kind in self._kinds:
            yield from kind.collect(parts)

    def describe(self) -> Iterator[Metric]:
        """Nothing: what there is to tell of is known when it is asked for."""
        yield from ()

    def _left(self, part: object) -> None:
        for kind in self._kinds:
            kind.left(part)


class PipelineCollector(Collector):
    """What the pipelines of this process count, once there are any: Spark is not loaded for the sake of asking."""

    def collect(self) -> Iterator[Metric]:
        progress = sys.modules.get(PIPELINES)
        if progress is not None:
            yield from progress.REGISTRY.collect()

    def describe(self) -> Iterator[Metric]:
        yield from ()


def registry() -> CollectorRegistry:
    """All metrics of this process: of the library, of its pipelines, and of the process itself (memory, CPU, files).

    It is the same one each time. What ended before the first call is not in it, and handlers are timed from then on.
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
