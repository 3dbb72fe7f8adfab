"""Pipelines on Spark Structured Streaming.

What comes in are streams, by their URLs; what goes out are DataFrames, and what users make of them goes back into
streams, SQL tables and folders. `Pipeline` is the whole of it; `session`, `read_stream`, `read_batch` and the format
"penstock" serve those who write plain Spark. Importing it needs the extra `penstock[spark]` and no Java; a session
needs Java 17 or newer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.errors import MissingExtraError

try:
    import pyarrow  # noqa: F401
    import pyspark  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("pyarrow", "pyspark"):
        raise
    raise MissingExtraError("penstock.spark", "spark") from error

if TYPE_CHECKING:
    from penstock.spark.pipeline import Pipeline, run_together
    from penstock.spark.progress import QueryProgress
    from penstock.spark.reading import read_batch, read_stream, read_table, register
    from penstock.spark.restart import Restart
    from penstock.spark.sessions import session
    from penstock.spark.sink import Console, Folder, FunctionTarget, SqlTable, TopicTarget
    from penstock.spark.state import stateful
    from penstock.spark.triggers import RealTime

_HOMES = {
    "Console": "sink",
    "Folder": "sink",
    "FunctionTarget": "sink",
    "Pipeline": "pipeline",
    "QueryProgress": "progress",
    "RealTime": "triggers",
    "Restart": "restart",
    "SqlTable": "sink",
    "TopicTarget": "sink",
    "read_batch": "reading",
    "read_stream": "reading",
    "read_table": "reading",
    "register": "reading",
    "run_together": "pipeline",
    "session": "sessions",
    "stateful": "state",
}

__all__ = [
    "Console",
    "Folder",
    "FunctionTarget",
    "Pipeline",
    "QueryProgress",
    "RealTime",
    "Restart",
    "SqlTable",
    "TopicTarget",
    "read_batch",
    "read_stream",
    "read_table",
    "register",
    "run_together",
    "session",
    "stateful",
]


def __getattr__(name: str) -> object:
    """Tasks import a few modules of this room and none of the others: a name is loaded when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
