"""Values that hold until they change: how the past is kept and summed up. Pure functions; times in seconds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

Step = tuple[int, float | None]
"""From this second on, this value; None: nobody knows."""
Span = tuple[int, int]
"""From this second until, not including, that one."""


def merged(spans: Iterable[Span], gap_s: int) -> list[Span]:
    """Spans in order, those that overlap or lie at most `gap_s` apart made one."""
    found: list[Span] = []
    for began, until in sorted(spans):
        if found and began <= found[-1][1] + gap_s:
            found[-1] = (found[-1][0], max(until, found[-1][1]))
        else:
            found.append((began, until))
    return found


def means(steps: Sequence[Step], spans: Sequence[Span], edges: Sequence[int]) -> list[tuple[int, float]]:
    """The mean between each edge and the next, by time, of what is known within the spans; without what is unknown.

    With the steps (0, 10), (40, 20) and one span over all, the edges 0 and 80 give (40 x 10 + 40 x 20) / 80 = 15.
    """
    sums = [0.0] * len(edges)
    known = [0] * len(edges)
    bucket = 0
    for began, until, value in _pieces(steps, spans):
        while bucket + 1 < len(edges) - 1 and edges[bucket + 1] <= began:
            bucket += 1
        index = bucket
        while index + 1 < len(edges) and edges[index] < until:
            length = min(until, edges[index + 1]) - max(began, edges[index])
            if length > 0:
                sums[index] += length * value
                known[index] += length
            index += 1
    return [(edges[index], sums[index] / known[index]) for index in range(len(edges)) if known[index]]


def coarser(steps: Sequence[Step], length: int, since: int, until: int) -> list[Step]:
    """What held from `since` until `until`, in buckets that begin at multiples of `length`; steps before `since` tell
    what held then.

    Where something changed within a bucket it has the mean of what was known, by time; where nothing did, the last
    value holds. A bucket has a step only if its value is another than that of the one before.
    """
    held = next((value for at, value in reversed(steps) if at < since), None)
    inside = [step for step in steps if since <= step[0] < until]
    found: list[Step] = []
    told = held
    for _, group in itertools.groupby(inside, key=lambda step: step[0] // length):
        changes = list(group)
        start = max(since, changes[0][0] // length * length)
        end = changes[0][0] // length * length + length
        if told != held and (not found or found[-1][0] < start):
            found.append((_behind(found, length, since), held))
            told = held
        own = [(start, held), *changes]
        mean = means(own, [(start, end)], [start, end])
        value = mean[0][1] if mean else None
        if found and found[-1][0] == start:
            found.pop()
        found.append((start, value))
        held, told = changes[-1][1], value
    if told != held:  # perhaps at `until`: who goes on from there must not take the last bucket's mean for what holds
        found.append((_behind(found, length, since), held))
    return found


def _behind(found: Sequence[Step], length: int, since: int) -> int:
    """Where the bucket behind the last one begins."""
    return found[-1][0] // length * length + length if found else since


def _pieces(steps: Sequence[Step], spans: Sequence[Span]) -> Iterable[tuple[int, int, float]]:
    """Each stretch of time within a span during which one known value held, in order."""
    index = 0
    for began, until in spans:
        while index + 1 < len(steps) and steps[index + 1][0] <= began:
            index += 1
        while index < len(steps) and steps[index][0] < until:
            at, value = steps[index]
            end = min(until, steps[index + 1][0] if index + 1 < len(steps) else until)
            if value is not None and end > max(at, began):
                yield max(at, began), end, value
            if index + 1 >= len(steps) or steps[index + 1][0] >= until:
                break
            index += 1
