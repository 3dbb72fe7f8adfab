"""From the counts and the health of consumers to metrics."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from penstock.consuming.counts import BOUNDS_S, Counts, Timings
from penstock.consuming.handling import HandlerConsumer
from penstock.consuming.health import STALLED_S, Health
from penstock.consuming.shared_handling import SharedConsumer
from penstock.observe import metrics_library as defined
from penstock.observe.metrics_asking import Asking

Labels = tuple[str, str, str]
"""Group, topic, handler."""

_CHANGES: Final = ("assigned", "revoked", "lost")
_OUTCOMES: Final = ("succeeded", "failed", "exhausted", "ignored")


class ConsumerTotals:
    """Sums over all consumers with the same labels: those that are at work, and those that have ended."""

    def __init__(self) -> None:
        self._gone: dict[Labels, Counts] = {}
        self._asking = Asking()
        self._lock = threading.Lock()

    def left(self, part: object) -> None:
        if isinstance(part, HandlerConsumer | SharedConsumer):
            with self._lock:
                self._gone.setdefault(labels_of(part), Counts()).add(part.counts)

    def collect(self, parts: Iterable[object]) -> Iterator[Metric]:
        consumers = [each for each in parts if isinstance(each, HandlerConsumer | SharedConsumer)]
        with self._lock:
            totals = copy.deepcopy(self._gone)
        for each in consumers:
            totals.setdefault(labels_of(each), Counts()).add(each.counts)
        yield from _counted(totals)
        healths = self._asking.ask(consumers)
        yield from _standing([(labels_of(each), health) for each, health in zip(consumers, healths, strict=True)])


def labels_of(consumer: HandlerConsumer | SharedConsumer) -> Labels:
    return consumer.group, consumer.handler.topic.name, consumer.handler.name


def _counted(totals: dict[Labels, Counts]) -> Iterator[Metric]:
    records, changes = defined.CONSUMER_RECORDS.counter(), defined.CONSUMER_REBALANCES.counter()
    retries, letters = defined.CONSUMER_RETRIES.counter(), defined.CONSUMER_DEAD_LETTERS.counter()
    expired = defined.CONSUMER_EXPIRED.counter()
    handling, saving = defined.CONSUMER_HANDLER_SECONDS.histogram(), defined.CONSUMER_SAVE_SECONDS.histogram()
    for labels, counts in totals.items():
        for outcome in _OUTCOMES:
            records.add_metric((*labels, outcome), getattr(counts, outcome))
        for change in _CHANGES:
            changes.add_metric((*labels, change), getattr(counts, change))
        retries.add_metric(labels, counts.retried)
        letters.add_metric(labels, counts.exhausted)
        expired.add_metric(labels, counts.expired)
        add_timings(handling, labels, counts.handling)
        add_timings(saving, labels, counts.saving)
    yield from (records, retries, handling, letters, expired, saving, changes)


def add_timings(family: HistogramMetricFamily, labels: Sequence[str], timings: Timings) -> None:
    bounds = [*map(floatToGoString, BOUNDS_S), "+Inf"]
    family.add_metric(labels, list(zip(bounds, itertools.accumulate(timings.steps), strict=True)), timings.total_s)


def _standing(found: Sequence[tuple[Labels, Health | None]]) -> Iterator[Metric]:
    in_flight, failing = defined.CONSUMER_IN_FLIGHT.gauge(), defined.CONSUMER_FAILING.gauge()
    lag, partitions = defined.CONSUMER_LAG.gauge(), defined.CONSUMER_PARTITIONS.gauge()
    stalled, healthy = defined.CONSUMER_STALLED.gauge(), defined.CONSUMER_HEALTHY.gauge()
    by_labels: dict[Labels, list[Health | None]] = {}
    for labels, health in found:
        by_labels.setdefault(labels, []).append(health)
    for labels, healths in by_labels.items():
        known = [health for health in healths if health is not None]
        healthy.add_metric(labels, len(known) == len(healths) and all(each.is_healthy for each in known))
        if len(known) < len(healths):
            continue
        held = [partition for health in known for partition in health.partitions]
        in_flight.add_metric(labels, sum(each.in_flight for each in held))
        failing.add_metric(labels, sum(each.failing for each in held))
        partitions.add_metric(labels, len(held))
        stalled.add_metric(labels, sum(bool(each.lag) and each.idle_s >= STALLED_S for each in held))
        lags = [health.lag for health in known]
        if None not in lags:
            lag.add_metric(labels, sum(each for each in lags if each is not None))
    yield from (in_flight, failing, lag, partitions, stalled, healthy)
