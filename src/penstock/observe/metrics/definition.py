"""The definition of a metric: its name, its labels, its meaning, and what to do about it.

Each is defined once: in `library` (a process that uses the library) or `stream` (a whole stream, by `penstock
metrics`); the broker's in `penstock.broker.metrics`, those of pipelines in `penstock.spark.run.progress`.
The reference in the documentation is generated from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily


class MetricKind(StrEnum):
    COUNTER = "counter"
    """Only grows, and starts at 0 with the process: use its rate."""
    GAUGE = "gauge"
    """The current value."""
    HISTOGRAM = "histogram"
    """How often something took how long: use quantiles, or divide its sum by its count."""


@dataclass(frozen=True, slots=True)
class Definition:
    kind: MetricKind
    name: str
    """Without the suffixes that Prometheus adds: `_total` to a counter, `_bucket` and others to a histogram."""
    labels: tuple[str, ...]
    what: str
    """What is counted or measured, in a sentence."""
    advice: str

    @property
    def documentation(self) -> str:
        return f"{self.what} {self.advice}"

    @property
    def exported(self) -> tuple[str, ...]:
        """The names for queries."""
        if self.kind is MetricKind.COUNTER:
            return (f"{self.name}_total",)
        if self.kind is MetricKind.HISTOGRAM:
            return tuple(f"{self.name}_{ending}" for ending in ("bucket", "count", "sum"))
        return (self.name,)

    def counter(self) -> CounterMetricFamily:
        assert self.kind is MetricKind.COUNTER, f"{self.name} is a {self.kind}"
        return CounterMetricFamily(self.name, self.documentation, labels=self.labels)

    def gauge(self) -> GaugeMetricFamily:
        assert self.kind is MetricKind.GAUGE, f"{self.name} is a {self.kind}"
        return GaugeMetricFamily(self.name, self.documentation, labels=self.labels)

    def histogram(self) -> HistogramMetricFamily:
        assert self.kind is MetricKind.HISTOGRAM, f"{self.name} is a {self.kind}"
        return HistogramMetricFamily(self.name, self.documentation, labels=self.labels)


counter = partial(Definition, MetricKind.COUNTER)
gauge = partial(Definition, MetricKind.GAUGE)
histogram = partial(Definition, MetricKind.HISTOGRAM)
