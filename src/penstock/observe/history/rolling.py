"""Averaging old rows, and deleting older ones."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

Step = tuple[int, float | None]
"""From this second on, this value; None: unknown."""
Span = tuple[int, int]
"""From this second until, not including, that one."""


def merged(spans: Iterable[Span], gap_s: int) -> list[Span]:
    """The spans in order, with those merged that overlap or are at most `gap_s` apart."""
    found: list[Span] = []
    for began, until in sorted(spans):
        if found and began <= found[-1][1] + gap_s:
            found[-1] = (found[-1][0], max(until, found[-1][1]))
        else:
            found.append((began, until))
    return found


def means(steps: Sequence[Step], spans: Sequence[Span], edges: Sequence[int]) -> list[tuple[int, float]]:
    """The time-weighted mean of the known values between each edge and the next, within the spans.

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
    """The values from `since` until `until`, in buckets that start at multiples of `length`.

    Steps before `since` give the initial value. A bucket in which something changed has the time-weighted mean of the
    known values; else the last value holds. A bucket has a step only if its value differs from the previous one.
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
    if told != held:  # continuing at `until` must use the value that holds, not the last bucket's mean
        found.append((_behind(found, length, since), held))
    return found


def _behind(found: Sequence[Step], length: int, since: int) -> int:
    """Where the bucket after the last one starts."""
    return found[-1][0] // length * length + length if found else since


def _pieces(steps: Sequence[Step], spans: Sequence[Span]) -> Iterable[tuple[int, int, float]]:
    """Each interval within a span during which one known value held, in order."""
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


FINE_KEPT_S: Final = 6 * 3600
COARSE_S: Final = 300
COARSE_KEPT_S: Final = 14 * 86_400
SERIES_FOR_COARSE: Final = 1_000
_HALVINGS: Final = 8

_OLD: Final = """DELETE FROM {table} WHERE at_s < ?1 AND (value IS NULL OR EXISTS (
    SELECT 1 FROM {table} AS later WHERE later.series = {table}.series
    AND later.at_s > {table}.at_s AND later.at_s <= ?1))"""
"""A step is deleted when a later one held at that time already; the last one stays, however old it is."""


def roll(connection: sqlite3.Connection, now_s: int, limit_bytes: int) -> None:
    """Inside a transaction: average, delete, and keep the file below its limit."""
    count = _count(connection, "series")
    length_s = COARSE_S * (1 + count // SERIES_FOR_COARSE)
    _sum_up(connection, (now_s - FINE_KEPT_S) // length_s * length_s, length_s)
    _let_go(connection, now_s, COARSE_KEPT_S)
    for halving in range(1, _HALVINGS + 1):
        if used_bytes(connection) <= limit_bytes:
            break
        fine_kept_s = FINE_KEPT_S >> halving
        _sum_up(connection, (now_s - fine_kept_s) // length_s * length_s, length_s)
        _let_go(connection, now_s, COARSE_KEPT_S >> halving)


def used_bytes(connection: sqlite3.Connection) -> int:
    """The size of the file's rows; freed space is reused before the file grows."""
    (pages,), (free,), (size,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _sum_up(connection: sqlite3.Connection, until_s: int, length_s: int) -> None:
    (since_s,) = connection.execute("SELECT until_s FROM rolled").fetchone()
    if until_s <= since_s:
        return
    rows = connection.execute("SELECT series, at_s, value FROM fine WHERE at_s < ? ORDER BY series, at_s", (until_s,))
    summed = []
    for series, steps in itertools.groupby(rows.fetchall(), key=lambda row: row[0]):
        own = [(at_s, value) for _, at_s, value in steps]
        summed += [(series, at_s, value) for at_s, value in coarser(own, length_s, since_s, until_s)]
    connection.executemany("INSERT OR REPLACE INTO coarse VALUES (?, ?, ?)", summed)
    connection.execute("UPDATE rolled SET until_s = ?", (until_s,))
    connection.execute(_OLD.format(table="fine"), (until_s,))


def _let_go(connection: sqlite3.Connection, now_s: int, coarse_kept_s: int) -> None:
    connection.execute(_OLD.format(table="coarse"), (now_s - coarse_kept_s,))
    connection.execute("DELETE FROM watched WHERE until_s < ?", (now_s - coarse_kept_s,))
    connection.execute(
        "DELETE FROM series WHERE id NOT IN (SELECT series FROM fine) AND id NOT IN (SELECT series FROM coarse)"
    )


def _count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
