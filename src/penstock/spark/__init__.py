"""Pipelines on Spark Structured Streaming.

A `Pipeline` reads streams by URL as DataFrames and writes DataFrames to topics, SQL tables and folders. `session`,
`read_stream`, `read_batch` and the format "penstock" are for programs in plain Spark. Importing this package needs the
extra `penstock[spark]` but no Java; a session needs Java 17 or newer.

The way of a record: `source` reads it, `values` decodes it, `run` runs the queries of the `pipeline`, `sink` delivers
each batch once.
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
    from penstock.spark.errors.guards import guarded as guarded
    from penstock.spark.pipeline import Pipeline as Pipeline
    from penstock.spark.reading import read_batch as read_batch
    from penstock.spark.reading import read_stream as read_stream
    from penstock.spark.reading import read_table as read_table
    from penstock.spark.reading import register as register
    from penstock.spark.run.pipeline_run import run_together as run_together
    from penstock.spark.run.progress import QueryProgress as QueryProgress
    from penstock.spark.run.restart import Restart as Restart
    from penstock.spark.run.triggers import RealTime as RealTime
    from penstock.spark.sessions.opening import session as session
    from penstock.spark.sink.folders.folder import Folder as Folder
    from penstock.spark.sink.functions import Console as Console
    from penstock.spark.sink.functions import FunctionTarget as FunctionTarget
    from penstock.spark.sink.sql.shared_state import SqlState as SqlState
    from penstock.spark.sink.sql.table import SqlTable as SqlTable
    from penstock.spark.sink.topic import TopicTarget as TopicTarget
    from penstock.spark.state.stateful_functions import simulate as simulate
    from penstock.spark.state.stateful_functions import stateful as stateful

_HOMES = {
    "Console": "sink.functions",
    "Folder": "sink.folders.folder",
    "FunctionTarget": "sink.functions",
    "Pipeline": "pipeline",
    "QueryProgress": "run.progress",
    "RealTime": "run.triggers",
    "Restart": "run.restart",
    "SqlState": "sink.sql.shared_state",
    "SqlTable": "sink.sql.table",
    "TopicTarget": "sink.topic",
    "guarded": "errors.guards",
    "read_batch": "reading",
    "read_stream": "reading",
    "read_table": "reading",
    "register": "reading",
    "run_together": "run.pipeline_run",
    "session": "sessions.opening",
    "simulate": "state.stateful_functions",
    "stateful": "state.stateful_functions",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Load a name on first use: tasks import a few modules of this package and none of the others."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
