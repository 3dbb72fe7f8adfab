"""Summing up what is old, and letting go of what is older."""

from __future__ import annotations

import itertools
import sqlite3
from typing import Final

from penstock.observe.steps import coarser

FINE_KEPT_S: Final = 6 * 3600
COARSE_S: Final = 300
COARSE_KEPT_S: Final = 14 * 86_400
SERIES_FOR_COARSE: Final = 1_000
_HALVINGS: Final = 8

_OLD: Final = """DELETE FROM {table} WHERE at_s < ?1 AND (value IS NULL OR EXISTS (
    SELECT 1 FROM {table} AS later WHERE later.series = {table}.series
    AND later.at_s > {table}.at_s AND later.at_s <= ?1))"""
"""A step goes when another one held at that time already; the last one holds on, however old it is."""


def roll(connection: sqlite3.Connection, now_s: int, limit_bytes: int) -> None:
    """Inside a transaction: sum up, let go, and see that the file stays below its limit."""
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
    """What the file's rows take; what was freed is used again before the file grows."""
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
