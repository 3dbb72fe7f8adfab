"""What a metric is, before there are any numbers: its name, its labels, what it tells, and what to do about it.

Each is defined once, in `metrics_library` (a process that uses the library) or `metrics_stream` (a whole stream, by
`penstock metrics`); the broker's stand in `penstock.broker.metrics`, those of pipelines in `penstock.spark.progress`.
The reference in the documentation is made from all of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily


class Kind(StrEnum):
    COUNTER = "counter"
    """Only grows, and begins at 0 with the process: look at its rate."""
    GAUGE = "gauge"
    """As it is now."""
    HISTOGRAM = "histogram"
    """How often something took how long: ask for quantiles, or divide its sum by its count."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric."""

    name: str
    """Without the endings that Prometheus adds: `_total` to a counter, `_bucket` and others to a histogram."""
    kind: Kind
    labels: tuple[str, ...]
    what: str
    """What is counted or measured, in a sentence."""
    advice: str
    """What to do about it, and when."""

    @property
    def documentation(self) -> str:
        return f"{self.what} {self.advice}"

    @property
    def exported(self) -> tuple[str, ...]:
        """The names that a query may use."""
        if self.kind is Kind.COUNTER:
            return (f"{self.name}_total",)
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{ending}" for ending in ("bucket", "count", "sum"))
        return (self.name,)

    def counter(self) -> CounterMetricFamily:
        assert self.kind is Kind.COUNTER, f"{self.name} is a {self.kind}"
        return CounterMetricFamily(self.name, self.documentation, labels=self.labels)

    def gauge(self) -> GaugeMetricFamily:
        assert self.kind is Kind.GAUGE, f"{self.name} is a {self.kind}"
        return GaugeMetricFamily(self.name, self.documentation, labels=self.labels)

    def histogram(self) -> HistogramMetricFamily:
        assert self.kind is Kind.HISTOGRAM, f"{self.name} is a {self.kind}"
        return HistogramMetricFamily(self.name, self.documentation, labels=self.labels)


def counter(name: str, labels: Sequence[str], what: str, advice: str) -> Definition:
    return Definition(name, Kind.COUNTER, tuple(labels), what, advice)


def gauge(name: str, labels: Sequence[str], what: str, advice: str) -> Definition:
    return Definition(name, Kind.GAUGE, tuple(labels), what, advice)


def histogram(name: str, labels: Sequence[str], what: str, advice: str) -> Definition:
    return Definition(name, Kind.HISTOGRAM, tuple(labels), what, advice)
