"""Where the results of a query go: topics, SQL tables, folders, functions.

In come the batches of a query, by number; out goes each of them once, as far as the target can promise it. Tasks stage
rows; the driver makes them count, all at once, together with the number of the batch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.sink.choosing import target_of
    from penstock.spark.sink.folders import Folder
    from penstock.spark.sink.functions import Console, FunctionTarget
    from penstock.spark.sink.sql import SqlTable
    from penstock.spark.sink.topic import TopicTarget

_HOMES = {
    "Console": "functions",
    "Folder": "folders",
    "FunctionTarget": "functions",
    "SqlTable": "sql",
    "TopicTarget": "topic",
    "target_of": "choosing",
}

__all__ = ["Console", "Folder", "FunctionTarget", "SqlTable", "TopicTarget", "target_of"]


def __getattr__(name: str) -> object:
    """Tasks import what stages rows and nothing else: a name is loaded when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
