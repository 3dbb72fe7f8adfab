"""The design patterns of stream processing, each a small function from DataFrames to a DataFrame.

They take streams from `Pipeline.read` and tables from `Pipeline.table`, and return frames for `Pipeline.write`. They
are plain Spark, handle watermarks, column names and output modes, and can be combined with anything else in Spark.
Single-event processing needs only `select` and `where`; `penstock.spark.versions` reprocesses with a second version of
a pipeline.
"""

from __future__ import annotations

from penstock.spark.patterns.as_of import enrich_as_of
from penstock.spark.patterns.duplicates import by_idempotency_key, without_duplicates
from penstock.spark.patterns.joins import enrich, join_within
from penstock.spark.patterns.moving import moving
from penstock.spark.patterns.ordering import in_order
from penstock.spark.patterns.ranking import summary, top_n
from penstock.spark.patterns.routing import route, split
from penstock.spark.patterns.sequences import sequence
from penstock.spark.patterns.table_joins import join_tables

__all__ = [
    "by_idempotency_key",
    "enrich",
    "enrich_as_of",
    "in_order",
    "join_tables",
    "join_within",
    "moving",
    "route",
    "sequence",
    "split",
    "summary",
    "top_n",
    "without_duplicates",
]
