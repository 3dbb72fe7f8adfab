"""Pipelines on Spark Structured Streaming.

What comes in are streams, by their URLs; what goes out are DataFrames, and what users make of them goes back into
streams, SQL tables and folders. `Pipeline` is the whole of it; `session`, `read_stream`, `read_batch` and the format
"penstock" serve those who write plain Spark. Importing it needs the extra `penstock[spark]` and no Java; a session
needs Java 17 or newer.
"""

from __future__ import annotations

from penstock.errors import MissingExtraError

try:
    import pyarrow  # noqa: F401
    import pyspark  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("pyarrow", "pyspark"):
        raise
    raise MissingExtraError("penstock.spark", "spark") from error
