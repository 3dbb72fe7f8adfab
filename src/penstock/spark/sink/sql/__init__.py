"""SQL tables as places for results: the rows of a batch and its mark in one database transaction.

`table` is what users name; `columns` says what a column is in each database; `database` is what the rest needs of one,
and `postgres` and `sqlite` are those there are. `delivery` writes batches.
"""

from __future__ import annotations

from penstock.spark.sink.sql.table import SqlTable

__all__ = ["SqlTable"]
