"""The design patterns of stream processing, each a small function from DataFrames to a DataFrame.

Streams come in as `Pipeline.read` gives them, tables as `Pipeline.table` gives them; what goes out is a frame for
`Pipeline.write`. Inside is plain Spark: they save thinking about watermarks, column names and output modes, and can be
mixed with anything else that Spark does. Events one by one need nothing but `select` and `where`; a second version of a
pipeline that reprocesses everything is the business of `penstock.spark.versions`.
"""

from __future__ import annotations

from penstock.spark.patterns.duplicates import by_idempotency_key, without_duplicates
from penstock.spark.patterns.enriching import enrich
from penstock.spark.patterns.joining import join_within
from penstock.spark.patterns.ordering import in_order
from penstock.spark.patterns.ranking import top_n
from penstock.spark.patterns.routing import route, split
from penstock.spark.patterns.summaries import summary

__all__ = [
    "by_idempotency_key",
    "enrich",
    "in_order",
    "join_within",
    "route",
    "split",
    "summary",
    "top_n",
    "without_duplicates",
]
