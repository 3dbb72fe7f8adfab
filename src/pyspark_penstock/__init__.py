"""What Spark looks for: a module whose name begins with `pyspark_` brings its `DefaultSource` with it.

So `spark.readStream.format("penstock")` works wherever Penstock is installed, without an import.
"""

from __future__ import annotations

from penstock.spark.source.format import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
