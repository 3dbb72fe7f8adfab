"""Streams as a source of Spark: the format "penstock".

What comes in are options: a URL, a topic, where to begin. What goes out are rows, as Arrow batches. The driver asks the
stream what there is (`topic_view`, `chosen_pointers`), decides how much of it a batch takes (`admission`), and shares
it out (`splitting`); tasks read exactly that (`task_reading`), from the files of an embedded log where these are on
their host, else through the client.
"""

from __future__ import annotations

from penstock.spark.source.format import PenstockDataSource

__all__ = ["PenstockDataSource"]
