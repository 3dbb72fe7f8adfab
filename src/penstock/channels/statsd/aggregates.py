"""`Aggregates`: what StatsD makes of the values of an interval, by the same rules."""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from penstock.channels.statsd.lines import Kind, Metric

_VALUES_EACH: Final = 10_000
"""A timer with more values in an interval keeps a random sample of them."""
_VALUES_ALL: Final = 1_000_000

Series = tuple[str, Kind, tuple[str, ...]]
"""Name, kind and tags."""


class _Timer:
    """The values of a timer in an interval. All are counted; a sample is kept."""

    __slots__ = ("count", "seen", "values")

    def __init__(self) -> None:
        self.values: list[float] = []
        self.seen = 0
        self.count = 0.0


class Aggregates:
    """Collects values with `add`. `flush` returns their aggregates, and begins the next interval."""

    def __init__(self, percentages: Sequence[float], max_series: int, choose: random.Random | None = None) -> None:
        self._percentages = percentages
        self._max_series = max_series
        self._random = choose or random.Random()
        self._counts: dict[Series, float] = {}
        self._timers: dict[Series, _Timer] = {}
        self._sets: dict[Series, set[str]] = {}
        self._gauges: collections.OrderedDict[Series, float] = collections.OrderedDict()
        """The current values, kept for changes to come; the one that changed last is at the end."""
        self._changed: dict[Series, None] = {}
        """The gauges that got a value in this interval."""
        self._kept = 0
        """Values of timers and members of sets."""

    def add(self, metric: Metric) -> bool:
        """Add a value. False if there is no room for another name."""
        series = (metric.name, metric.kind, tuple(metric.tags))
        if metric.kind == "set":
            return self._add_member(series, str(metric.value))
        value = float(metric.value)
        if metric.kind == "gauge":
            return self._set_gauge(series, value, metric.delta)
        if metric.kind in ("counter", "meter"):
            if series not in self._counts and not self._has_room():
                return False
            self._counts[series] = self._counts.get(series, 0.0) + value / metric.rate
            return True
        timer = self._timers.get(series)
        if timer is None:
            if not self._has_room():
                return False
            timer = self._timers[series] = _Timer()
        timer.seen += 1
        timer.count += 1 / metric.rate
        if len(timer.values) < _VALUES_EACH and (self._kept < _VALUES_ALL or not timer.values):
            timer.values.append(value)
            self._kept += 1
        elif (place := self._random.randrange(timer.seen)) < len(timer.values):
            timer.values[place] = value
        return True

    def flush(self, interval_s: float) -> list[tuple[str, bytes]]:
        """Names, and their aggregates as JSON, for an interval of this length."""
        flushed = list(self._aggregated(interval_s))
        self._counts, self._changed, self._timers, self._sets = {}, {}, {}, {}
        self._kept = 0
        return flushed

    def _aggregated(self, interval_s: float) -> Iterator[tuple[str, bytes]]:
        for series, count in self._counts.items():
            yield _record(series, interval_s, {"count": _plain(count), "rate_per_s": count / interval_s})
        for series in self._changed:
            yield _record(series, interval_s, {"value": _plain(self._gauges[series])})
        for series, timer in self._timers.items():
            counted = {"count": _plain(timer.count), "rate_per_s": timer.count / interval_s}
            yield _record(series, interval_s, {**counted, **statistics_of(timer.values, self._percentages)})
        for series, members in self._sets.items():
            yield _record(series, interval_s, {"count": len(members)})

    def _has_room(self) -> bool:
        return len(self._counts) + len(self._timers) + len(self._sets) + len(self._changed) < self._max_series

    def _add_member(self, series: Series, member: str) -> bool:
        members = self._sets.get(series)
        if members is None:
            if not self._has_room():
                return False
            members = self._sets[series] = set()
        if member not in members:
            if self._kept >= _VALUES_ALL:
                return False
            members.add(member)
            self._kept += 1
        return True

    def _set_gauge(self, series: Series, value: float, is_delta: bool) -> bool:
        if series not in self._changed and not self._has_room():
            return False
        if is_delta:
            value += self._gauges.get(series, 0.0)
        self._gauges[series] = value
        self._gauges.move_to_end(series)
        self._changed[series] = None
        if len(self._gauges) > self._max_series:
            self._gauges.popitem(last=False)
        return True


def statistics_of(values: list[float], percentages: Sequence[float]) -> dict[str, Any]:
    """The statistics that StatsD computes for the values of a timer."""
    values = sorted(values)
    count = len(values)
    total = math.fsum(values)
    mean = total / count
    middle = count // 2
    found = {
        "lower": values[0],
        "upper": values[-1],
        "sum": total,
        "sum_squares": math.fsum(value * value for value in values),
        "mean": mean,
        "median": values[middle] if count % 2 else (values[middle - 1] + values[middle]) / 2,
        "std": math.sqrt(math.fsum((value - mean) ** 2 for value in values) / count),
    }
    for percentage in percentages:
        within = count if count == 1 else math.floor(percentage / 100 * count + 0.5)
        if not within:
            continue
        name = f"{percentage:g}".replace(".", "_")
        part = values[:within]
        found[f"count_{name}"] = within
        found[f"mean_{name}"] = math.fsum(part) / within
        found[f"upper_{name}"] = part[-1]
        found[f"sum_{name}"] = math.fsum(part)
        found[f"sum_squares_{name}"] = math.fsum(value * value for value in part)
    return found


def _record(series: Series, interval_s: float, found: dict[str, Any]) -> tuple[str, bytes]:
    name, kind, tags = series
    body = {"name": name, "kind": kind, "tags": tags, "interval_s": interval_s, **found}
    return name, msgspec.json.encode(body)


def _plain(number: float) -> int | float:
    """The number as an integer if it has no fraction."""
    return int(number) if number.is_integer() and abs(number) < 1 << 53 else number
