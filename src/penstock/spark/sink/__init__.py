"""Where the results of a query go: topics, SQL tables, folders, functions.

In come the batches of a query, by number; out goes each of them once, as far as the target can promise it. Tasks stage
rows; the driver makes them count, all at once, together with the number of the batch.
"""

from __future__ import annotations

from penstock.spark.sink.choosing import target_of
from penstock.spark.sink.folders import Folder
from penstock.spark.sink.functions import Console, FunctionTarget
from penstock.spark.sink.sql import SqlTable
from penstock.spark.sink.topic import TopicTarget

__all__ = ["Console", "Folder", "FunctionTarget", "SqlTable", "TopicTarget", "target_of"]
