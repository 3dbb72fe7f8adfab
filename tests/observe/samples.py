"""What a registry gives to Prometheus, to be asked for by name and labels."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families


class Samples:
    """The samples of one scrape, as Prometheus would read them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = generate_latest(registry).decode()
        self._found = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of those that have these labels, among others; 0 when there are none."""
        return sum(value for value in self.all(name, **labels))

    def all(self, name: str, **labels: str) -> list[float]:
        return [
            value
            for found, has, value in self._found
            if found == name and all(has.get(k) == v for k, v in labels.items())
        ]

    @property
    def names(self) -> set[str]:
        return {name for name, _, _ in self._found}


def gained(registry: CollectorRegistry, doing: Callable[[], object], name: str, **labels: str) -> float:
    """By how much a counter grows while something is done."""
    before = Samples(registry)(name, **labels)
    doing()
    return Samples(registry)(name, **labels) - before
